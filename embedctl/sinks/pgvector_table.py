"""The table: what its columns must be, what they are, how it is made, indexed and given another's name.

Enters: a plan, a connection in a transaction. Leaves: SQL done. The run is remembered in the table's comment, as JSON,
which moves with it when it is renamed. Refused: a table of other columns or another job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec
from embedctl.plan import Plan
from embedctl.sinks.pgvector_link import MAX_NAME_BYTES, Connection, Place
from embedctl.sinks.pgvector_types import Typed, typed
from embedctl.sinks.pgvector_wire import sql_type

POS, JOB, HASH, ORIGINAL = "_pos", "_job", "_hash", "_id"
OWN = (POS, JOB, HASH, ORIGINAL)
SYSTEM = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid", "oid")
MARK, META = "embedctl", "embedctl_meta"
MIN_VERSION = (0, 7)
_MADE = "c.relkind IN ('r', 'p') AND starts_with(obj_description(c.oid, 'pg_class'), %s)"
_MARKED = f'{{"{MARK}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """columns: (name, SQL type), in order. key: of the primary key. outputs: by column."""

    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    outputs: Mapping[str, Typed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A table as the server has it. manifest: what embedctl wrote about it, None on one it did not make."""

    schema: str
    table: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    manifest: Mapping[str, Any] | None


def layout_of(plan: Plan, distance: str | None = None) -> Layout:
    """distance: in the place of the models' own similarity.

    :raises UsageError: an output that pgvector cannot hold, or a column name that PostgreSQL cannot."""
    outputs = {o.name: typed(replace(o, similarity=distance or o.similarity)) for o in plan.outputs}
    columns = [("id", "bigint" if plan.resolved["id_type"] == "int64" else "text")]
    if plan.chunked:
        columns += [("chunk", "integer"), ("char_start", "integer"), ("char_end", "integer")]
    columns += [(name, sql_type(plan.schema.field(name).type).name) for name in plan.keep]
    columns += [(name, one.declared) for name, one in outputs.items()]
    columns += [("token_count", "integer")] if plan.spec["token_count"] else []
    columns += [("truncated", "boolean")] if plan.spec["truncated"] else []
    columns += [(POS, "bigint"), (JOB, "text"), (HASH, "text"), (ORIGINAL, "bytea")]
    for name, _ in columns:
        if len(name.encode()) > MAX_NAME_BYTES:
            raise UsageError(f"column {name!r}: longer than the {MAX_NAME_BYTES} bytes PostgreSQL keeps of a name")
    return Layout(columns=tuple(columns), key=("id", "chunk") if plan.chunked else ("id",), outputs=outputs)


def manifest_of(plan: Plan, layout: Layout, place: Place) -> dict[str, Any]:
    return {
        MARK: 1,
        "name": place.table,
        "job": plan.job,
        "recipe": plan.recipe,
        "outputs": [one.spec.to_json() for one in layout.outputs.values()],
        "model": dict(plan.model),
    }


def need_extension(c: Connection, place: Place) -> None:
    """pgvector in this database. :raises UsageError: it is not there and may not be made, or too old."""
    import psycopg

    try:
        with c.transaction():
            c.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error as exc:
        if exc.sqlstate not in ("42501", "0A000", "58P01", "23505", "42710"):
            raise
        if c.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone() is None:
            text = " ".join(str(exc).split())
            raise UsageError(
                f"{place.name}: pgvector is not in this database, and cannot be made: {text}",
                hint="install pgvector on the server, then as its owner: CREATE EXTENSION vector",
            ) from exc
    (version,) = c.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < MIN_VERSION:
        raise UsageError(
            f"{place.name}: pgvector {version} is too old, at least {'.'.join(map(str, MIN_VERSION))} is needed",
            hint="ALTER EXTENSION vector UPDATE",
        )


def find(c: Connection, place: Place) -> Found | None:
    """The table of this name, else the one that was made under it and is now called by an alias.

    :raises UsageError: a view or something else has this name.
    """
    chosen = "SELECT c.oid, n.nspname, c.relname, c.relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class c"
    chosen += " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = coalesce(%s, current_schema()) AND "
    row = c.execute(chosen + "c.relname = %s", [place.schema, place.table]).fetchone()
    if row is None:
        made = c.execute(chosen + _MADE, [place.schema, _MARKED]).fetchall()
        row = next((r for r in made if (_manifest(r[4]) or {}).get("name") == place.table), None)
    if row is None:
        return None
    oid, schema, table, kind, comment = row
    if kind not in ("r", "p"):
        raise UsageError(f"{place.name}: is not a table", hint="choose another table with --to")
    columns = c.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [oid],
    ).fetchall()
    key = c.execute(
        "SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(attnum, place), pg_attribute a"
        " WHERE i.indrelid = %s AND i.indisprimary AND a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY place",
        [oid],
    ).fetchall()
    return Found(
        schema=schema,
        table=table,
        columns={name: re.sub(r"^[^\s(]+\.", "", declared) for name, declared in columns},
        key=tuple(k for (k,) in key),
        manifest=_manifest(comment),
    )


def made_tables(c: Connection, place: Place) -> list[str]:
    """Names that embedctl's tables in the schema were made by."""
    rows = c.execute(
        "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = coalesce(%s, current_schema()) AND {_MADE}",
        [place.schema, _MARKED],
    )
    return [str(found["name"]) for (text,) in rows.fetchall() if (found := _manifest(text)) and "name" in found]


def _manifest(comment: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(comment or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) and MARK in found else None


def statement(layout: Layout, schema: str | None, table: str) -> Any:
    """CREATE TABLE, composed."""
    from psycopg import sql

    rows = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(declared)) for name, declared in layout.columns]
    key = sql.SQL("PRIMARY KEY ({})").format(_names(layout.key))
    return sql.SQL("CREATE TABLE {} ({})").format(named(schema, table), sql.SQL(", ").join([*rows, key]))


def create(c: Connection, place: Place, layout: Layout, manifest: Mapping[str, Any]) -> None:
    c.execute(statement(layout, place.schema, place.table))
    remember(c, place.schema, place.table, manifest)


def remember(c: Connection, schema: str | None, table: str, manifest: Mapping[str, Any]) -> None:
    """Write the run into the table's comment, which it then holds whole."""
    from psycopg import sql

    text = sql.Literal(json.dumps(manifest, ensure_ascii=True))
    c.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(named(schema, table), text))


def check(c: Connection, place: Place, found: Found, layout: Layout) -> None:
    """:raises UsageError: a column is missing or of another type, or the key is not this job's."""
    flaws = [
        f"column {name} is {found.columns[name]}, this job needs {declared}"
        if name in found.columns
        else f"column {name} ({declared}) is missing"
        for name, declared in layout.columns
        if found.columns.get(name) != declared
    ]
    if not flaws and found.key != layout.key:
        flaws = [f"its primary key is ({', '.join(found.key)}), this job needs ({', '.join(layout.key)})"]
    if flaws:
        made = statement(layout, place.schema, place.table).as_string(c)
        raise UsageError(
            f"{place.name}: {'; '.join(flaws)}", hint=f"choose a new table with --to and --create, which does: {made}"
        )


def index_name(table: str, column: str) -> str:
    """The same each time, and short enough for PostgreSQL at any length of names."""
    digest = hashlib.sha256(f"{table}\0{column}".encode()).hexdigest()[:8]
    return f"{table.encode()[:40].decode(errors='ignore')}_{digest}_idx"


def named(schema: str | None, table: str) -> Any:
    from psycopg import sql

    return sql.Identifier(schema, table) if schema else sql.Identifier(table)


def _names(columns: Sequence[str]) -> Any:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def specs_of(found: Found) -> tuple[OutputSpec, ...]:
    """The outputs of the table, as its manifest or, on one that embedctl did not make, its columns declare them."""
    if found.manifest is not None:
        return tuple(map(OutputSpec.from_json, found.manifest["outputs"]))
    specs = []
    for name, declared in found.columns.items():
        match = re.fullmatch(r"(vector|halfvec|sparsevec|bit)\((\d+)\)(\[\])?", declared)
        if match is None or (match[1] == "bit" and int(match[2]) < 8):
            continue
        kind = "multivector" if match[3] else "sparse" if match[1] == "sparsevec" else "dense"
        stored = {"halfvec": "float16", "bit": "ubinary"}.get(match[1], "float32")
        specs.append(OutputSpec(name=name, kind=kind, dim=int(match[2]), vector_type=stored))  # type: ignore[arg-type]
    return tuple(specs)


def keep_text(c: Connection, found: Found, text: str) -> None:
    """Keep a text beside the table, in `embedctl_meta`, under the name that it was made by."""
    from psycopg import sql

    meta = named(found.schema, META)
    made = sql.SQL("CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, manifest text NOT NULL)")
    put = sql.SQL("INSERT INTO {} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET manifest = EXCLUDED.manifest")
    c.execute(made.format(meta))
    c.execute(put.format(meta), [own_name(found), text.replace("\x00", "\\u0000")])


def forget_text(c: Connection, found: Found) -> None:
    from psycopg import sql

    if kept_text(c, found) is not None:
        c.execute(sql.SQL("DELETE FROM {} WHERE name = %s").format(named(found.schema, META)), [own_name(found)])


def kept_text(c: Connection, found: Found) -> str | None:
    from psycopg import sql

    known = c.execute("SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = %s", [found.schema, META])
    if known.fetchone() is None:
        return None
    asked = sql.SQL("SELECT manifest FROM {} WHERE name = %s").format(named(found.schema, META))
    row = c.execute(asked, [own_name(found)]).fetchone()
    return None if row is None else str(row[0])


def own_name(found: Found) -> str:
    """The name that the table was made by, whatever alias it has now."""
    return str((found.manifest or {}).get("name", found.table))
