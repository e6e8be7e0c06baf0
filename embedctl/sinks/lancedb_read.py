"""Reading a LanceDB table back: nearest rows, all rows, and taking rows out by id.

Enters: queries by output, or nothing. Leaves: hits, or Arrow batches as they are stored. Any table with vectors can be
read, also one that embedctl did not make. Sparse outputs have no index there and are compared one by one, exactly.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import Multivector, OutputSpec, Sparse, Values, take
from embedctl.sinks import stores
from embedctl.sinks.base import Hit
from embedctl.sinks.columns import kind_of, width_of
from embedctl.sinks.keyed_records import POS
from embedctl.sinks.keyed_search import Found, depth_of, fused
from embedctl.sinks.lancedb_table import Lance, Table

MANIFEST = b"embedctl"
METRICS = {"cosine": "cosine", "dot": "dot", "euclidean": "l2"}
IDS_AT_ONCE, ROWS_AT_ONCE = 1000, 8192
_ELEMENTS: dict[str, pa.DataType] = {"float32": pa.float32(), "float16": pa.float16(), "ubinary": pa.uint8()}


def column_type(spec: OutputSpec) -> pa.DataType:
    """:raises UsageError: LanceDB would misread it."""
    if spec.kind == "sparse":
        if spec.modifier is not None:
            raise UsageError(
                f"output {spec.name!r}: its values are to be weighed by {spec.modifier}, which LanceDB cannot do",
                hint="--to qdrant-edge://./vectors.qdrant",
            )
        return pa.struct([("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32()))])
    if spec.kind == "score":
        return pa.list_(pa.float32(), spec.dim)
    if spec.vector_type not in _ELEMENTS or spec.similarity not in METRICS:
        raise UsageError(
            f"output {spec.name!r}: LanceDB has no {spec.vector_type} vectors by {spec.similarity}",
            hint="--vector-type float32 --distance cosine",
        )
    if spec.kind == "multivector" and (spec.similarity != "cosine" or spec.vector_type == "ubinary"):
        raise UsageError(
            f"output {spec.name!r}: LanceDB compares multivectors by cosine only", hint="--distance cosine"
        )
    fixed = pa.list_(_ELEMENTS[spec.vector_type], width_of(spec))
    return pa.list_(fixed) if spec.kind == "multivector" else fixed


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def manifest_of(schema: pa.Schema) -> dict[str, Any] | None:
    found = (schema.metadata or {}).get(MANIFEST)
    return None if found is None else json.loads(found)


def specs_of(schema: pa.Schema) -> tuple[OutputSpec, ...]:
    """The table's outputs, as its manifest or, on one that embedctl did not make, its columns declare them."""
    manifest = manifest_of(schema)
    if manifest is not None:
        return tuple(map(OutputSpec.from_json, manifest["outputs"]))
    specs = []
    for field in schema:
        kind, inner = kind_of(field.type), field.type
        while not pa.types.is_struct(inner) and hasattr(inner, "value_type"):
            if pa.types.is_fixed_size_list(inner):
                break
            inner = inner.value_type
        if kind == "sparse":
            specs.append(OutputSpec(name=field.name, kind=kind, dim=1 << 32))
        elif kind is not None and pa.types.is_fixed_size_list(inner):
            stored = {"halffloat": "float16", "uint8": "ubinary"}.get(str(inner.value_type), "float32")
            dim = inner.list_size * (8 if stored == "ubinary" else 1)
            specs.append(OutputSpec(name=field.name, kind=kind, dim=dim, vector_type=stored))
    return tuple(specs)


def windows_there(table: Lance) -> set[int]:
    """The numbers of all windows of which the table has a row."""
    found: set[int] = set()
    for batch in table.search().select([POS]).to_batches(ROWS_AT_ONCE):
        found.update(np.unique(batch.column(0).to_numpy() >> stores.ROW_BITS).tolist())
    return found


def at_positions(table: Lance, positions: np.ndarray) -> pa.Table:
    """The rows of these `_pos` (int64), in their order, chunks in theirs."""
    pieces = []
    for begin in range(0, len(positions), IDS_AT_ONCE):
        some = ", ".join(map(str, positions[begin : begin + IDS_AT_ONCE].tolist()))
        pieces.append(table.search().where(f"{POS} IN ({some})").to_arrow())
    whole = pa.concat_tables(pieces)
    return whole.sort_by([(name, "ascending") for name in (POS, "chunk") if name in whole.column_names])


def search(table: Table, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool) -> list[list[Hit]]:
    """See `Searchable`. `where`: a condition in the SQL of DataFusion.

    :raises UsageError: the table has no such output, or LanceDB does not understand `where`.
    """
    specs = {spec.name: spec for spec in table.ask(lambda t: specs_of(t.schema))}
    for name in query:
        if name not in specs or specs[name].kind == "score":
            raise UsageError(f"{table.name}: no output {name!r} to search; it has {', '.join(specs)}")
    depth, count = depth_of(limit, len(query)), len(next(iter(query.values())))
    answers = []
    for i in range(count):
        ranked = [
            _nearest(table, specs, specs[name], take(values, np.array([i])), depth, where, exact)
            for name, values in query.items()
        ]
        answers.append(fused(ranked, limit))
    return answers


def _nearest(
    table: Table, specs: Mapping[str, OutputSpec], spec: OutputSpec, query: Values, limit: int, where: str | None,
    exact: bool,
) -> list[Found]:  # fmt: skip
    def ask(t: Lance) -> list[dict[str, Any]]:
        columns = [name for name in t.schema.names if name not in specs]
        try:
            if isinstance(query, Sparse):
                return _by_one(t, spec, query, columns, limit, where)
            asked = t.search(_asked(query, spec), vector_column_name=spec.name)
            asked = asked.distance_type(_metric(spec)).select([*columns, "_distance"]).limit(limit)
            asked = asked.where(where, prefilter=True) if where else asked
            rows: list[dict[str, Any]] = (asked.bypass_vector_index() if exact else asked).to_list()
            return [{"_score": _score(spec, row.pop("_distance")), **row} for row in rows]
        except ValueError as exc:
            if where is None:
                raise
            raise UsageError(
                f"--where: {' '.join(str(exc).split())[:300]}", hint="a condition in SQL over the table's columns"
            ) from exc

    rows = table.ask(ask)
    return [Found(key=f"{r.get('id')}#{r.get('chunk')}", score=r.pop("_score"), fields=r) for r in rows]


def _metric(spec: OutputSpec) -> str:
    return "hamming" if spec.vector_type == "ubinary" else METRICS[spec.similarity]


def _asked(query: Values, spec: OutputSpec) -> np.ndarray:
    if isinstance(query, Multivector):
        return query.vectors.astype(np.float32)
    assert isinstance(query, np.ndarray)
    return np.packbits(query[0] > 0) if spec.vector_type == "ubinary" else query[0].astype(np.float32)


def _score(spec: OutputSpec, distance: float) -> float:
    """Higher is nearer: cosine and dot as they are, minus the distance, or the share of equal bits."""
    if spec.vector_type == "ubinary":
        return 1 - distance / spec.dim
    if spec.kind == "multivector":
        return -distance
    return -float(np.sqrt(distance)) if spec.similarity == "euclidean" else 1 - distance


def _by_one(
    table: Lance, spec: OutputSpec, query: Sparse, columns: Sequence[str], limit: int, where: str | None
) -> list[dict[str, Any]]:
    """Every row's product with the query; the best are read whole."""
    weights = dict(zip(query.indices.tolist(), query.values.tolist(), strict=True))
    wanted = np.array(sorted(weights), dtype=np.uint32)
    numbers = np.array([weights[i] for i in wanted.tolist()], dtype=np.float64)
    asked = table.search().select([spec.name]).with_row_id(True)
    best: list[tuple[float, int]] = []
    for batch in (asked.where(where) if where else asked).to_batches(ROWS_AT_ONCE):
        scores = _products(batch.column(spec.name), wanted, numbers)
        top = np.argsort(-scores, kind="stable")[:limit]
        best += zip(scores[top].tolist(), batch.column("_rowid").to_numpy()[top].tolist(), strict=True)
        best = sorted(best, key=lambda pair: -pair[0])[:limit]
    best = [pair for pair in best if pair[0] != 0]
    if not best:
        return []
    asked = table.take_row_ids([id for _, id in best]).select(list(columns)).with_row_id()
    rows = {row.pop("_rowid"): row for row in asked.to_arrow().to_pylist()}  # they come in an order of their own
    return [{**rows[id], "_score": score} for score, id in best]


def _products(column: Any, wanted: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """float64 (n,): each row's product with (wanted, numbers)."""
    indices, values = column.field("indices"), column.field("values")
    lengths = indices.value_lengths().fill_null(0).to_numpy()
    row = np.repeat(np.arange(len(column)), lengths)
    flat, weights = indices.flatten().to_numpy(), values.flatten().to_numpy()
    if not len(wanted) or not len(flat):
        return np.zeros(len(column))
    at = np.minimum(np.searchsorted(wanted, flat), len(wanted) - 1)
    hit = wanted[at] == flat
    return np.bincount(row[hit], weights=numbers[at[hit]] * weights[hit], minlength=len(column))


def scan(table: Table, batch_rows: int, only: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
    """See `Scannable`. Rows as they lie, of one version. only: these columns, where the table has them."""

    def opened(t: Any) -> Any:
        names = [n for n in t.schema.names if not only or n in only]
        return t.search().select(names).to_batches(batch_rows)

    reader = table.ask(opened)
    try:
        for batch in reader:
            for begin in range(0, batch.num_rows, batch_rows):
                yield batch.slice(begin, batch_rows)
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as exc:
        raise SinkError(f"{table.name}: {' '.join(str(exc).split())[:300]}") from exc


def delete(table: Table, ids: Sequence[str]) -> int:
    """See `Deletable`."""
    whole = table.ask(lambda t: pa.types.is_integer(t.schema.field("id").type))
    gone = 0
    for begin in range(0, len(ids), IDS_AT_ONCE):
        some = ids[begin : begin + IDS_AT_ONCE]
        names = [i for i in some if i.removeprefix("-").isdecimal() and len(i) < 20] if whole else map(quoted, some)
        listed = ", ".join(names)
        if listed:
            gone += table.change(lambda t, listed=listed: t.delete(f"id IN ({listed})").num_deleted_rows)  # type: ignore[misc]
    return gone
