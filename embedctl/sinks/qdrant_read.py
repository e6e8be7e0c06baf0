"""What is asked of a collection: the nearest points, what it holds, all of it.

Enters: queries in float32, filters, a collection that embedctl made or another's. Leaves: hits, outputs as the
collection declares them, record batches whose columns keep one type from first to last (see `payload_types`). Refused:
a query for a vector that is not there.

A point of another's making is named by its point id; fields of its payload that have a name of ours come as
NAME_payload.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.outputs import SINGLE, Multivector, OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.sinks import payload_types, qdrant_columns
from embedctl.sinks.base import UNIT_COLUMNS, Hit, Stored
from embedctl.sinks.qdrant_engine import HASH, JOB, POS, UNNAMED, Ask, Engine, Layout, Plain, Record
from embedctl.sinks.qdrant_layout import SIMILARITIES
from embedctl.sinks.qdrant_where import Filter, parse_where
from embedctl.sinks.stored import KEYS_AT_ONCE, in_order, stored_of, units_of
from embedctl.sinks.stores import PointId, WindowRows, point_id

OWN = (JOB, POS, HASH)
MIN_POOL = 100
QUERIES_AT_ONCE = 64
UNITS_AT_ONCE = 4096
ANY_INDEX = 1 << 32
"""Size of the vocabulary of a sparse vector that does not tell it."""


def search(
    engine: Engine,
    plan: Plan | None,
    query: Mapping[str, Values],
    *,
    limit: int,
    where: str | None,
    exact: bool,
) -> list[list[Hit]]:
    """:raises UsageError: no such vector, or a filter that is not understood."""
    layout = _layout(engine)
    chosen = None if where is None else parse_where(where, None if plan is None else _kept(plan))
    names = {output: _vector_of(engine.name, layout, output) for output in query}
    columns = {names[o]: _plain(_as_stored(v, o, plan)) for o, v in query.items()}
    quantized = {n: kind for n in columns if (kind := layout[n].quantization)}
    asks = [
        Ask(
            vectors=dict(zip(columns, vectors, strict=True)),
            where=chosen,
            limit=limit,
            pool=max(4 * limit, MIN_POOL),
            exact=exact,
            quantized=quantized,
        )
        for vectors in zip(*columns.values(), strict=True)
    ]
    found = itertools.chain.from_iterable(
        engine.query(asks[i : i + QUERIES_AT_ONCE]) for i in range(0, len(asks), QUERIES_AT_ONCE)
    )
    return [[_hit(p.id, p.score, p.payload) for p in points] for points in found]


def _kept(plan: Plan) -> pa.Schema:
    types = {f.name: f.type for f in plan.schema}
    return pa.schema([(name, types.get(name, pa.null())) for name in plan.keep])


def _layout(engine: Engine) -> Layout:
    layout = engine.layout()
    if layout is None:
        raise UsageError(f"{engine.name}: no such collection", hint="see that its name is right")
    return layout


def _vector_of(name: str, layout: Layout, output: str) -> str:
    found = UNNAMED if UNNAMED in layout and output not in layout else output
    if found not in layout:
        raise UsageError(f"{name}: has no vector {output!r}; it has {', '.join(sorted(layout)) or 'none'}")
    return found


def _as_stored(values: Values, output: str, plan: Plan | None) -> Values:
    """8-bit vectors are compared in the steps that they are stored in."""
    spec = next((o for o in plan.outputs if o.name == output), None) if plan is not None else None
    if spec is None or spec.vector_type != "uint8" or not isinstance(values, np.ndarray):
        return values
    ranges = (plan.int8_ranges or {}).get(output) if plan is not None else None
    if ranges is None:
        raise UsageError(
            "the ranges of 8-bit vectors made from standard input are not in the plan; they cannot be searched",
            hint="embed from a file, or with --vector-type float32",
        )
    low, high = np.asarray(ranges, dtype=np.float32)
    steps = np.where(high > low, (high - low) / 255, 1)
    levels: np.ndarray = np.clip(np.floor((values - low) / steps), 0, 255)
    return levels


def _plain(values: Values) -> list[Plain]:
    if isinstance(values, np.ndarray):
        return values.astype(np.float32, copy=False).tolist()  # type: ignore[no-any-return]
    spans = [slice(b, e) for b, e in itertools.pairwise(values.offsets.tolist())]
    if isinstance(values, Multivector):
        return [values.vectors[s].astype(np.float32, copy=False).tolist() for s in spans]
    return [(values.indices[s].tolist(), values.values[s].tolist()) for s in spans]


def _hit(id: PointId, score: float, payload: Mapping[str, Any]) -> Hit:
    ours = JOB in payload
    name = payload.get("id", id) if ours else id
    chunk = payload.get("chunk") if ours else None
    kept = {k: v for k, v in payload.items() if k not in OWN and not (ours and k in ("id", "chunk"))}
    return Hit(id=str(name), chunk=chunk, score=score, kept=kept)


def units(engine: Engine) -> Iterator[pa.RecordBatch]:
    """What a rebuild of a job's state needs of each of its points: id, chunk, _pos, _hash."""
    after: PointId | None = None
    while True:
        points, after = engine.scroll(after, UNITS_AT_ONCE, vectors=False)
        told = [p.payload for p in points if POS in p.payload and "id" in p.payload]
        if told:
            columns: dict[str, pa.Array[Any]] = {
                "id": pa.array([str(p["id"]) for p in told], pa.string()),
                "chunk": pa.array([p.get("chunk") for p in told], pa.int32()),
                POS: pa.array([int(p[POS]) for p in told], pa.int64()),
                HASH: pa.array([p.get(HASH) for p in told], pa.string()),
            }
            yield pa.RecordBatch.from_pydict(columns)
        if after is None:
            return


def contents(engine: Engine, plan: Plan | None) -> list[OutputSpec]:
    """As the plan says where it is known, else as the collection declares them; the unnamed vector is `embedding`."""
    layout = _layout(engine)
    known = {o.name: o for o in plan.outputs} if plan is not None else {}
    if known and {_vector_of(engine.name, layout, o) for o in known} == set(layout):
        return list(known.values())
    return [
        OutputSpec(
            name=name or SINGLE,
            kind=vector.kind,
            dim=vector.size or ANY_INDEX,
            vector_type=vector.datatype,
            similarity="dot" if vector.kind == "sparse" else SIMILARITIES[vector.distance],
            modifier=vector.modifier,
        )
        for name, vector in sorted(layout.items())
    ]


def scan(engine: Engine, plan: Plan | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Reads all payloads once for their types, then everything. :raises SinkError: a point written meanwhile."""
    outputs, layout = contents(engine, plan), _layout(engine)
    names = {o.name: _vector_of(engine.name, layout, o.name) for o in outputs}
    taken = {"id", *names}
    seen = payload_types.Seen()
    for records in _scrolled(engine, batch_rows, vectors=False):
        seen.look([_row(r, taken) for r in records])
    schema = seen.schema(first=("id", "chunk"), last=OWN)
    for records in _scrolled(engine, batch_rows, vectors=True):
        table = payload_types.batch([_row(r, taken) for r in records], schema, engine.name)
        columns, fields = list(table.columns), list(schema)
        for output in outputs:
            made = qdrant_columns.column([r.vectors.get(names[output.name]) for r in records], output)
            columns.append(made)
            fields.append(pa.field(output.name, made.type))
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def stored(engine: Engine, plan: Plan, record: WindowRecord, known: WindowRows, rows: np.ndarray) -> Stored:
    """See `Reusable`. Of cosine vectors, what Qdrant made of them: it holds and gives back unit vectors."""
    wanted = [point_id(id, chunk) for id, chunk in units_of(known, rows, plan)]
    parts = [wanted[i : i + KEYS_AT_ONCE] for i in range(0, len(wanted), KEYS_AT_ONCE)]
    points = [point for part in parts for point in engine.retrieve(part)]
    layout = _layout(engine)
    names = {o: _vector_of(engine.name, layout, o.name) for o in plan.outputs}
    columns: dict[str, Any] = {
        o.name: qdrant_columns.column([p.vectors.get(n) for p in points], o) for o, n in names.items()
    }
    columns |= {
        n: pa.array([p.payload[n] for p in points]) for n in UNIT_COLUMNS if all(n in p.payload for p in points)
    }
    table = pa.table(columns)
    return stored_of(known, rows, in_order(table, [p.id for p in points], wanted, engine.name, record), plan)


def _scrolled(engine: Engine, limit: int, *, vectors: bool) -> Iterator[list[Record]]:
    after: PointId | None = None
    while True:
        records, after = engine.scroll(after, limit, vectors=vectors)
        if records:
            yield records
        if after is None:
            return


def _row(record: Record, taken: set[str]) -> dict[str, Any]:
    if JOB in record.payload:
        return {"id": record.payload.get("id"), **record.payload}
    return {"id": record.id, **{f"{k}_payload" if k in taken else k: v for k, v in record.payload.items()}}


def points_of_rows(plan: Plan | None, ids: Sequence[str]) -> Filter:
    """All points of these rows. Chunks are found by the `id` in their payload, whole documents by their point ids."""
    if plan is not None and not plan.chunked:
        where: Filter = {"must": [{"has_id": [point_id(i) for i in ids]}]}
    else:
        numbers = plan is not None and plan.resolved["id_type"] == "int64"
        named = {"key": "id", "match": {"any": [int(i) for i in ids] if numbers else list(ids)}}
        where = {"must": [named if plan is not None else {"should": [named, {"has_id": [point_id(i) for i in ids]}]}]}
    if plan is not None:
        where["must"].append({"key": JOB, "match": {"value": plan.job}})
    return where
