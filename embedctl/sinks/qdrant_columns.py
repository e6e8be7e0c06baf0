"""Vectors read back from Qdrant as a column, null where a point has none of that name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from embedctl.outputs import Multivector, OutputSpec, Sparse, Values
from embedctl.sinks.parts import output_array
from embedctl.sinks.qdrant_engine import Plain

_NUMPY: dict[str, type[np.generic]] = {"float16": np.float16, "uint8": np.uint8}


def column(vectors: Sequence[Plain | None], spec: OutputSpec) -> pa.Array[Any]:
    """n vectors of one output as its column in a part of Parquet (see `output_array`)."""
    there = [v for v in vectors if v is not None]
    made = output_array(_values(there, spec))
    if len(there) == len(vectors):
        return made
    places = iter(range(len(there)))
    return made.take(pa.array([None if v is None else next(places) for v in vectors], pa.int64()))


def _values(vectors: list[Plain], spec: OutputSpec) -> Values:
    stored = _NUMPY.get(spec.vector_type, np.float32)
    if spec.kind == "sparse":
        pairs = cast(list[tuple[list[int], list[float]]], vectors)
        return Sparse(
            offsets=_offsets([len(indices) for indices, _ in pairs]),
            indices=np.array([i for indices, _ in pairs for i in indices], dtype=np.uint32),
            values=np.array([v for _, values in pairs for v in values], dtype=np.float32),
        )
    if spec.kind == "multivector":
        many = cast(list[list[list[float]]], vectors)
        flat = [token for tokens in many for token in tokens]
        return Multivector(
            offsets=_offsets([len(tokens) for tokens in many]),
            vectors=np.array(flat, dtype=stored).reshape(len(flat), spec.dim),
        )
    return np.array(vectors, dtype=stored).reshape(len(vectors), spec.dim)


def _offsets(lengths: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
