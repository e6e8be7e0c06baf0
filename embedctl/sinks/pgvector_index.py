"""What is built when all rows are in: HNSW or IVF on the vectors, indexes on fields that were asked for, statistics.

Enters: a loaded table. Leaves: it indexed; each index whole or not at all, so that it may be done again. Left without a
vector index: what pgvector cannot index (more than 4,000 dimensions, sparse vectors of more than 1,000 numbers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedctl.errors import UsageError
from embedctl.sinks.pgvector_link import Connection, Link
from embedctl.sinks.pgvector_table import JOB, POS, Found, Layout, index_name, named, own_name, specs_of
from embedctl.sinks.pgvector_types import Typed, typed

MAX_WORK_BYTES, BYTES_BESIDE = 1 << 30, 400
IVF_ROWS_A_LIST = 1000
_LIMIT, _DISK = "54000", "53100"


def check_fields(fields: Sequence[tuple[str, str]], layout: Layout) -> None:
    """:raises UsageError: no such column."""
    known = [name for name, _ in layout.columns]
    for name, _ in fields:
        if name not in known:
            raise UsageError(
                f"--index-field: the table has no column {name!r}; it has {', '.join(known)}", hint=f"--keep {name}"
            )


def build(link: Link, found: Found, kind: str | None, fields: Sequence[tuple[str, str]]) -> None:
    """kind: hnsw, ivf or none; None: hnsw. :raises SinkError: the server's last word."""
    link.run(lambda c: _create(c, found, POS, f'btree ("{JOB}", "{POS}")'))
    for name, how in fields:
        link.run(lambda c, n=name, h=how: _create(c, found, n, _field(found.columns[n], n, h)))  # type: ignore[misc]
    for spec in specs_of(found):
        if kind != "none" and spec.kind != "score":
            _vectors(link, found, typed(spec), kind or "hnsw")
    link.outside(_vacuum(found))


def _vacuum(found: Found) -> Any:
    from psycopg import sql

    return sql.SQL("VACUUM (ANALYZE) {}").format(named(found.schema, found.table))


def _create(c: Connection, found: Found, column: str, method: str) -> None:
    from psycopg import sql

    name = index_name(own_name(found), column)
    statement = sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING ").format(
        sql.Identifier(name), named(found.schema, found.table)
    )
    c.execute(statement + sql.SQL(method))


def _field(declared: str, name: str, kind: str) -> str:
    column = _quoted(name)
    if kind == "text":
        return f"gin (to_tsvector('simple', {column}))"
    if declared.endswith("[]") or declared == "jsonb":
        return f"gin ({column})"
    return f"{'hash' if declared == 'text' else 'btree'} ({column})"  # a hash takes text of any length


def _vectors(link: Link, found: Found, one: Typed, kind: str) -> None:
    import psycopg

    method = _method(one, kind)
    if method is None:
        return

    def work(c: Connection) -> None:
        (rows,) = c.execute(f"SELECT count(*) FROM {named(found.schema, found.table).as_string(c)}").fetchone()
        if not rows:
            return
        wanted = method.replace("{lists}", str(max(10, min(32_768, rows // IVF_ROWS_A_LIST))))
        _grant(c, rows * (4 * one.spec.dim + BYTES_BESIDE) if one.base != "sparsevec" else MAX_WORK_BYTES)
        try:
            with c.transaction():
                _create(c, found, one.spec.name, wanted)
        except psycopg.Error as exc:
            if exc.sqlstate == _LIMIT:
                return
            if exc.sqlstate != _DISK or "shared memory" not in str(exc):
                raise
            c.execute("SET LOCAL max_parallel_maintenance_workers = 0")  # a container's /dev/shm is often small
            _create(c, found, one.spec.name, wanted)

    link.run(work)


def _grant(c: Connection, need_bytes: int) -> None:
    """Memory and workers for this transaction: what the build needs, never less than the server gives by itself."""
    asked = "SELECT pg_size_bytes(current_setting('maintenance_work_mem')), current_setting('max_parallel_workers')"
    has, workers = c.execute(asked).fetchone()
    c.execute(f"SET LOCAL maintenance_work_mem = '{max(has, min(need_bytes, MAX_WORK_BYTES)) >> 10}kB'")
    c.execute(f"SET LOCAL max_parallel_maintenance_workers = {min(8, int(workers))}")


def _method(one: Typed, kind: str) -> str | None:
    if one.index is None:
        return None
    what, operators = one.index
    column = what.format(_quoted(one.spec.name))
    if kind == "ivf":
        fits = one.base != "sparsevec" and one.spec.similarity != "manhattan"
        return f"ivfflat ({column} {operators}) WITH (lists = {{lists}})" if fits else None
    return f"hnsw ({column} {operators})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
