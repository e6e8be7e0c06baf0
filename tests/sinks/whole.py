"""A window of every kind of output, and for each row a query that must find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from embedctl.outputs import Multivector, OutputSpec, Sparse, Values
from embedctl.plan import Plan
from embedctl.records import Cursor, WindowKey, WindowOutput, WindowRecord
from embedctl.testing.plans import hand_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """queries: float32, value i nearest to row i."""

    plan: Plan
    output: WindowOutput
    queries: Mapping[str, Values]


def whole(specs: Sequence[OutputSpec], rows: int) -> Whole:
    """Ids `d0`, `d1`, ...; kept column `n` is the row's number."""
    chance = np.random.default_rng(7)
    queries = {spec.name: _values(spec, rows, chance) for spec in specs}
    cursor = Cursor(segment=0, position=0)
    record = WindowRecord(
        key=WindowKey(generation=1, slice=0, window=0), begin=cursor, end=cursor, last=True, books=(),
        units=rows, tokens=rows, padded_tokens=rows, truncated=0,
    )  # fmt: skip
    output = WindowOutput(
        record=record,
        ids=[f"d{i}" for i in range(rows)],
        positions=np.arange(rows, dtype=np.int64),
        outputs={spec.name: _stored(queries[spec.name], spec) for spec in specs},
        kept=pa.table({"n": pa.array(range(rows), pa.int64())}),
        token_count=np.ones(rows, dtype=np.int64),
        truncated=np.zeros(rows, dtype=bool),
        chunk=None,
        char_start=None,
        char_end=None,
        dead=(),
        hashes=np.arange(2 * rows, dtype=np.uint64).reshape(rows, 2),
    )
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int64())])
    return Whole(
        plan=hand_plan(schema=schema, id_column="id", keep=["n"], outputs=specs), output=output, queries=queries
    )


def _values(spec: OutputSpec, rows: int, chance: np.random.Generator) -> Values:
    if spec.kind == "sparse":
        offsets = np.arange(rows + 1, dtype=np.int64) * 3
        indices = np.stack([[i, i + 1, 60 + i % 7] for i in range(rows)]).astype(np.uint32).reshape(-1)
        return Sparse(offsets=offsets, indices=indices, values=np.tile([3.0, 1.0, 0.5], rows).astype(np.float32))
    if spec.kind == "multivector":
        vectors = chance.standard_normal((2 * rows, spec.dim)).astype(np.float32)
        return Multivector(offsets=np.arange(rows + 1, dtype=np.int64) * 2, vectors=vectors)
    return chance.standard_normal((rows, spec.dim)).astype(np.float32)


def _stored(values: Values, spec: OutputSpec) -> Values:
    if isinstance(values, Multivector):
        return Multivector(offsets=values.offsets, vectors=values.vectors.astype(spec.vector_type))
    if isinstance(values, Sparse) or spec.vector_type == "float32":
        return values
    if spec.vector_type == "float16":
        return values.astype(np.float16)
    packed = np.packbits(values > 0, axis=1)
    return packed if spec.vector_type == "ubinary" else (packed ^ 0x80).view(np.int8)
