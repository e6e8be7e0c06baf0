"""A window as a stream of binary COPY, and how it comes into the table once.

Enters: a `WindowOutput`. Leaves: rows in the table, committed with the caller's transaction. Ids that PostgreSQL cannot
hold or index (U+0000, more than 2,000 bytes) stand as their uuid5, the original bytes beside them in `_id`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.outputs import take
from embedctl.plan import Plan
from embedctl.records import WindowOutput
from embedctl.sinks import pgvector_types as vectors
from embedctl.sinks import stores
from embedctl.sinks.keyed_records import Gate
from embedctl.sinks.pgvector_link import Connection
from embedctl.sinks.pgvector_table import POS, Found, Layout, named
from embedctl.sinks.pgvector_wire import (
    HEADER,
    NULL,
    TRAILER,
    Fields,
    fixed,
    int64s,
    plain_texts,
    row_bytes,
    sql_type,
    texts,
)

ROWS_AT_ONCE = 1024
MAX_ID_BYTES = 2000


def stored_id(id: str) -> tuple[str, bytes | None]:
    """As the `id` column has it, and the original's bytes where that differs."""
    if len(id) * 3 <= MAX_ID_BYTES and "\x00" not in id and id.isascii():
        return id, None
    raw = id.encode("utf-8", "surrogatepass")
    whole = "\x00" not in id and len(raw) <= MAX_ID_BYTES and not any("\ud800" <= c <= "\udfff" for c in id)
    return (id, None) if whole else (str(stores.point_id(id)), raw)


def stream(
    output: WindowOutput, plan: Plan, layout: Layout, row: np.ndarray, oids: dict[str, int], per_s: int | None
) -> Iterator[bytes]:
    """The units of the window but those whose key came before in it. row: int64 (u,), the row of each unit."""
    chosen = _first_of_key(output)
    began = time.monotonic()
    yield HEADER
    for begin in range(0, len(chosen), ROWS_AT_ONCE):
        if per_s is not None:
            time.sleep(max(0.0, began + begin / per_s - time.monotonic()))
        some = chosen[begin : begin + ROWS_AT_ONCE]
        yield row_bytes(_columns(output, plan, layout, row, some, oids))
    yield TRAILER


def _first_of_key(output: WindowOutput) -> np.ndarray:
    """int64: units, in order."""
    keys: Any = output.ids if output.chunk is None else list(zip(output.ids, output.chunk.tolist(), strict=True))
    if len(set(keys)) == len(keys):
        return np.arange(len(keys), dtype=np.int64)
    first: dict[Any, int] = {}
    for i, key in enumerate(keys):
        first.setdefault(key, i)
    return np.fromiter(first.values(), dtype=np.int64, count=len(first))


def _columns(
    output: WindowOutput, plan: Plan, layout: Layout, row: np.ndarray, some: np.ndarray, oids: dict[str, int]
) -> list[Fields]:
    """Fields of units `some` (int64), a list a column, in the order of the layout."""
    count, rows = len(some), row[some]
    ids = [output.ids[i] for i in some.tolist()]
    numbers = plan.resolved["id_type"] == "int64"
    plain = int64s(np.array(ids, dtype=np.int64)) if numbers else plain_texts(ids, MAX_ID_BYTES)
    names = [] if plain is not None else [stored_id(id) for id in ids]
    columns = [plain if plain is not None else texts([id for id, _ in names])]
    if plan.chunked:
        columns += [_int32s(values, some) for values in (output.chunk, output.char_start, output.char_end)]
    kept = output.kept.take(pa.array(some)) if count != output.kept.num_rows else output.kept
    for name in plan.keep:
        column = kept.column(name)
        columns.append(sql_type(plan.schema.field(name).type).fields(_joined(column)))
    for name, one in layout.outputs.items():
        columns.append(vectors.fields(take(output.outputs[name], some), one, oids.get(one.base.removesuffix("[]"), 0)))
    columns += [_int32s(output.token_count, some)] if plan.spec["token_count"] else []
    columns += [fixed(output.truncated[some].astype(np.uint8).reshape(-1, 1))] if plan.spec["truncated"] else []
    columns.append(int64s(stores.position_number(output.record.key, 0) + rows))
    columns.append(texts([plan.job]) * count)
    columns.append([NULL] * count if output.hashes is None else _hexed(output.hashes[rows]))
    originals = [NULL if raw is None else len(raw).to_bytes(4, "big") + raw for _, raw in names]
    columns.append(originals if names else [NULL] * count)
    return columns


def _joined(column: Any) -> Any:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def _hexed(hashes: np.ndarray) -> Fields:
    """uint64 (n, 2): each pair as 32 digits."""
    digits = hashes.astype(">u8").tobytes().hex().encode()
    return fixed(np.frombuffer(digits, dtype=np.uint8).reshape(-1, 32))


def _int32s(values: np.ndarray | None, some: np.ndarray) -> Fields:
    assert values is not None
    return fixed(np.ascontiguousarray(np.asarray(values)[some], dtype=">i4").view(np.uint8).reshape(-1, 4))


class Loader:
    """Brings windows into a table: by COPY straight into it, or, where a key is there already, through a stage."""

    def __init__(self, schema: str, table: str, layout: Layout, oids: dict[str, int]) -> None:
        self._target, self._layout = named(schema, table), layout
        self.oids = oids
        self._windows, self._clashes = 0, 0

    def load(self, c: Connection, pieces: Callable[[], Iterator[bytes]], may_replace: str) -> None:
        """may_replace: condition in SQL on the row `t` that is there, under which a row of the same key replaces it."""
        import psycopg

        self._windows += 1
        if self._clashes * 4 <= self._windows:
            try:
                with c.transaction():
                    self._copy(c, self._target, pieces())
                return
            except psycopg.errors.UniqueViolation:
                self._clashes += 1
        self._staged(c, pieces(), may_replace)

    def _copy(self, c: Connection, target: Any, pieces: Iterator[bytes]) -> None:
        from psycopg import sql

        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(target, self._names())
        with c.cursor() as cursor, cursor.copy(statement) as copy:
            for piece in pieces:
                copy.write(piece)

    def _staged(self, c: Connection, pieces: Iterator[bytes], may_replace: str) -> None:
        from psycopg import sql

        stage = sql.Identifier("embedctl_stage")
        c.execute(sql.SQL("DROP TABLE IF EXISTS pg_temp.{}").format(stage))
        c.execute(sql.SQL("CREATE TEMP TABLE {} (LIKE {}) ON COMMIT DROP").format(stage, self._target))
        self._copy(c, stage, pieces)
        names = [name for name, _ in self._layout.columns if name not in self._layout.key]
        changes = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in names]
        c.execute(
            sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {} ON CONFLICT ({}) DO UPDATE SET {} WHERE {}").format(
                self._target,
                self._names(),
                self._names(),
                stage,
                sql.SQL(", ").join(map(sql.Identifier, self._layout.key)),
                sql.SQL(", ").join(changes),
                sql.SQL(may_replace),
            )
        )

    def _names(self) -> Any:
        from psycopg import sql

        return sql.SQL(", ").join(sql.Identifier(name) for name, _ in self._layout.columns)


def may_replace(gate: Gate) -> str:
    """The gate as a condition on the row `t` that is there."""
    own = f't."{POS}" >= {gate.own}'
    return f'({own} OR t."{POS}" < {gate.old})' if gate.old else own


def delete_rows(c: Connection, found: Found, ids: Sequence[str], positions: Sequence[int]) -> int:
    """Take out the units of these rows that are still theirs. How many there were."""
    from psycopg import sql

    numbers = found.columns["id"] == "bigint"
    statement = sql.SQL("DELETE FROM {} t USING unnest(%s::{}[], %s::bigint[]) g(id, pos) WHERE t.id = g.id").format(
        named(found.schema, found.table), sql.SQL("bigint" if numbers else "text")
    )
    names = list(ids) if numbers else [stored_id(id)[0] for id in ids]
    return int(c.execute(statement + sql.SQL(' AND t."_pos" = g.pos'), [names, list(positions)]).rowcount)
