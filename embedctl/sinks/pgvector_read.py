"""Reading a table back: nearest rows, all rows, and taking rows out by id.

Enters: queries by output, or nothing. Leaves: hits, or Arrow batches with vectors straight from the wire. Any table
with pgvector columns can be read, also one that embedctl did not make. Refused: outputs the table lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import Multivector, Values, take
from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.sinks.base import Hit, Stored
from embedctl.sinks.keyed_search import Found as Record
from embedctl.sinks.keyed_search import depth_of, fused
from embedctl.sinks.parts import output_array
from embedctl.sinks.pgvector_decode import column_from, selected
from embedctl.sinks.pgvector_link import Connection, Link
from embedctl.sinks.pgvector_rows import stored_id
from embedctl.sinks.pgvector_table import ORIGINAL, OWN, Found, named, specs_of
from embedctl.sinks.pgvector_types import Typed, typed, values_from
from embedctl.sinks.stored import KEYS_AT_ONCE, in_order, stored_of, units_of
from embedctl.sinks.stores import WindowRows

MAX_EF = 1000
_SCORES = {"<=>": "1 - ({})", "<#>": "-({})", "<->": "-({})", "<+>": "-({})"}


def search(
    link: Link, found: Found, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool
) -> list[list[Hit]]:
    """See `Searchable`. `where`: a condition in SQL.

    :raises UsageError: the table has no such output, or the server does not understand `where`.
    """
    outputs = {spec.name: typed(spec) for spec in specs_of(found)}
    for name in query:
        if name not in outputs or outputs[name].operator is None:
            raise UsageError(f"{link.place.name}: no output {name!r} to search; it has {', '.join(outputs)}")
    depth, count = depth_of(limit, len(query)), len(next(iter(query.values())))

    def work(c: Connection) -> list[list[Hit]]:
        _prepare(c, depth, exact, filtered=where is not None)
        if where is not None:
            _check_where(c, found, where)
        answers = []
        for i in range(count):
            at = np.array([i])
            ranked = [
                _nearest(c, link, found, outputs[name], take(values, at), depth, where)
                for name, values in query.items()
            ]
            answers.append(fused(ranked, limit))
        return answers

    return link.run(work)


def _prepare(c: Connection, depth: int, exact: bool, *, filtered: bool) -> None:
    c.execute("SET TRANSACTION READ ONLY")
    if exact:
        c.execute("SET LOCAL enable_indexscan = off")
        c.execute("SET LOCAL enable_bitmapscan = off")
        return
    c.execute(f"SET LOCAL hnsw.ef_search = {min(MAX_EF, max(100, 2 * depth))}")
    (version,) = c.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if (filtered or depth > MAX_EF) and tuple(map(int, version.split(".")[:2])) >= (0, 8):
        c.execute("SET LOCAL hnsw.iterative_scan = strict_order")


def _nearest(
    c: Connection, link: Link, found: Found, one: Typed, query: Values, limit: int, where: str | None
) -> list[Record]:
    from psycopg import sql

    distance = _distance(one, query)
    score = "1 - ({}) / " + str(float(one.spec.dim)) if one.base == "bit" else _SCORES[str(one.operator)]
    if one.base.endswith("[]"):
        score = "-({})"
    kept = [n for n in found.columns if n not in {"id", "chunk", *OWN, *(s.name for s in specs_of(found))}]
    names = ["id", *(["chunk"] if "chunk" in found.columns else []), *([ORIGINAL] if _made(found) else []), *kept]
    if "id" not in found.columns:
        raise UsageError(f"{link.place.name}: has no column id, so that its rows cannot be told")
    statement = sql.SQL("SELECT {}, {} FROM {} WHERE {} IS NOT NULL{} ORDER BY {} LIMIT {}").format(
        sql.SQL(", ").join(map(sql.Identifier, names)),
        sql.SQL(score).format(distance),
        named(found.schema, found.table),
        sql.Identifier(one.spec.name),
        sql.SQL(f" AND ({where}\n)" if where else ""),
        distance,
        sql.Literal(limit),
    )
    rows = c.execute(statement).fetchall()
    return [_found(dict(zip([*names, "\0score"], row, strict=True))) for row in rows]


def _check_where(c: Connection, found: Found, where: str) -> None:
    """:raises UsageError: it is no condition by itself, or not one on this table."""
    import psycopg
    from psycopg import sql

    here = named(found.schema, found.table)
    for form in ("SELECT FROM {} WHERE {}\n LIMIT 0", "SELECT FROM {} WHERE ({}\n) LIMIT 0"):
        try:
            c.execute(sql.SQL(form).format(here, sql.SQL(where)))
        except psycopg.Error as exc:
            if (exc.sqlstate or "")[:2] not in ("0A", "22", "25", "42"):
                raise
            text = str(exc).partition("\n")[0]
            raise UsageError(f"--where: {text}", hint="a condition as PostgreSQL has it") from exc


def _made(found: Found) -> bool:
    return found.manifest is not None and ORIGINAL in found.columns


def _found(row: dict[str, Any]) -> Record:
    original, score = row.pop(ORIGINAL, None), row.pop("\0score")
    id = str(row["id"]) if original is None else bytes(original).decode("utf-8", "surrogatepass")
    return Record(key=f"{id}#{row.get('chunk')}", score=float(score), fields={**row, "id": id})


def _distance(one: Typed, query: Values) -> Any:
    """The SQL of the distance to one query."""
    from psycopg import sql

    column, operator = sql.Identifier(one.spec.name), sql.SQL(str(one.operator))
    if isinstance(query, Multivector):
        base = one.base[:-2]
        entries = [_text(v) for v in query.vectors]
        inner = sql.SQL("SELECT -max(-(d {} q)) AS least FROM unnest({}) d").format(operator, column)
        array = sql.SQL("ARRAY[{}]::{}[]").format(sql.SQL(", ").join(map(sql.Literal, entries)), sql.SQL(base))
        return sql.SQL("(SELECT sum(m.least) FROM unnest({}) q, LATERAL ({}) m)").format(array, inner)
    if isinstance(query, np.ndarray):
        if one.base == "bit":
            bits = "".join("01"[int(b)] for b in (query[0] > 0).tolist())
            return sql.SQL("{} {} {}::bit({})").format(column, operator, sql.Literal(bits), sql.Literal(one.spec.dim))
        what = sql.SQL(one.index[0]).format(column) if one.index else column
        kind = one.base if one.index is None or one.index[0] == "{}" else f"halfvec({one.spec.dim})"
        return sql.SQL("{} {} {}::{}").format(what, operator, sql.Literal(_text(query[0])), sql.SQL(kind))
    pairs = zip(query.indices.tolist(), query.values.tolist(), strict=True)
    text = "{" + ",".join(f"{i + 1}:{v!r}" for i, v in pairs if v) + f"}}/{one.spec.dim}"
    return sql.SQL("{} {} {}::sparsevec").format(column, operator, sql.Literal(text))


def _text(vector: np.ndarray) -> str:
    return "[" + ",".join(map(repr, vector.astype(np.float32).tolist())) + "]"


def scan(
    link: Link, found: Found, batch_rows: int, only: Collection[str] = (), ids: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """See `Scannable`. Rows in the order of the key, of one moment. only: these columns, where the table has them. ids:
    rows of these alone."""
    import psycopg
    from psycopg import sql

    outputs = {spec.name: typed(spec) for spec in specs_of(found) if not only}
    names = [n for n in found.columns if (n in (*only, ORIGINAL) if only else n not in outputs)]
    order = found.key or ("ctid",)
    query = sql.SQL("SELECT {} FROM {}{} ORDER BY {}").format(
        sql.SQL(", ").join([selected(n, found.columns[n]) for n in names] + [sql.Identifier(n) for n in outputs]),
        named(found.schema, found.table),
        sql.SQL("") if ids is None else sql.SQL(" WHERE {}").format(_among(found, ids)),
        sql.SQL(", ").join(map(sql.Identifier, order)),
    )
    reader = Link(link.place)  # a cursor of its own, which stays open while the caller does other work
    try:
        with reader.opened().transaction():
            c = reader.opened()
            c.execute(sql.SQL("DECLARE embedctl_scan NO SCROLL CURSOR FOR ") + query)
            while cells := _fetch(c, batch_rows):
                yield _batch(cells, found, names, outputs)
    except psycopg.Error as exc:
        raise SinkError(f"{link.place.name}: {' '.join(str(exc).split())[:500]}") from exc
    finally:
        reader.close()


def _fetch(c: Connection, rows: int) -> list[list[bytes | None]]:
    """Cells of the next rows by column, as the server sends them in binary; empty at the end."""
    cursor = c.execute(f"FETCH {rows} FROM embedctl_scan", binary=True)
    result = cursor.pgresult
    count = result.ntuples
    return [[result.get_value(i, j) for i in range(count)] for j in range(result.nfields)] if count else []


def _batch(
    cells: list[list[bytes | None]], found: Found, names: Sequence[str], outputs: Mapping[str, Typed]
) -> pa.RecordBatch:
    arrays = {n: column_from(column, found.columns[n]) for n, column in zip(names, cells, strict=False)}
    if _made(found):
        arrays["id"] = _originals(arrays["id"], arrays.pop(ORIGINAL))
    for name, column in zip(outputs, cells[len(names) :], strict=True):
        there = np.array([i for i, cell in enumerate(column) if cell is not None], dtype=np.int64)
        whole = output_array(values_from([cell for cell in column if cell is not None], outputs[name]))
        if len(there) < len(column):
            where = np.full(len(column), -1)
            where[there] = np.arange(len(there))
            whole = whole.take(pa.array(where, mask=where < 0))
        arrays[name] = whole
    return pa.RecordBatch.from_pydict(arrays)


def _originals(ids: Any, originals: Any) -> Any:
    if originals.null_count == len(originals):
        return ids
    pairs = zip(ids.to_pylist(), originals.to_pylist(), strict=True)
    return pa.array([i if raw is None else raw.decode("utf-8", "replace") for i, raw in pairs], pa.string())


def delete(link: Link, found: Found, ids: Sequence[str]) -> int:
    """See `Deletable`. :raises SinkError: the server refuses, or the table has no column id."""
    from psycopg import sql

    statement = sql.SQL("DELETE FROM {} WHERE {}").format(named(found.schema, found.table), _among(found, ids))
    return link.run(lambda c: int(c.execute(statement).rowcount))


def _among(found: Found, ids: Sequence[str]) -> Any:
    """The condition that a row's id is one of these."""
    from psycopg import sql

    whole = found.columns.get("id") in ("bigint", "integer", "smallint")
    wanted = [int(i) for i in ids if _is_int64(i)] if whole else [stored_id(i)[0] for i in ids]
    return sql.SQL("id = ANY({}::{}[])").format(sql.Literal(wanted), sql.SQL("bigint" if whole else "text"))


def stored(link: Link, found: Found, plan: Plan, record: WindowRecord, known: WindowRows, rows: np.ndarray) -> Stored:
    """See `Reusable`."""
    wanted = units_of(known, rows, plan)
    ids = list(dict.fromkeys(id for id, _ in wanted))
    batches = [b for i in range(0, len(ids), KEYS_AT_ONCE)
               for b in scan(link, found, KEYS_AT_ONCE, ids=ids[i : i + KEYS_AT_ONCE])]  # fmt: skip
    table = pa.Table.from_batches(batches) if batches else pa.table({"id": pa.array([], pa.string())})
    names = [str(i) for i in table.column("id").to_pylist()]
    chunks = (
        table.column("chunk").to_pylist() if plan.chunked and "chunk" in table.column_names else [None] * len(names)
    )
    keys = list(zip(names, chunks, strict=True))
    return stored_of(known, rows, in_order(table, keys, wanted, link.place.name, record), plan)


def _is_int64(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 20 and -(2**63) <= int(text) < 2**63
