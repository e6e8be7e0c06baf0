"""The kinds of output as columns: one value a sequence, in arrays, never in Python numbers.

Enters: what an encoder computed for a batch. Leaves: the same, cut, joined and put in order. An output is dense or
score (an array), sparse (`Sparse`) or multivector (`Multivector`); `take` and `join` treat them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

OutputKind = Literal["dense", "sparse", "multivector", "score"]
KINDS: tuple[OutputKind, ...] = ("dense", "sparse", "multivector", "score")
SINGLE = "embedding"
"""Column of a job's only output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """One output of a job, as the plan fixes it.

    name: its column, and its vector's name in stores. dim: numbers of a vector (of a token's for multivector; size of
    the vocabulary for sparse; labels for score). vector_type: how it is stored. modifier: what a store must weigh
    a sparse one by. labels: of a score's columns.
    """

    name: str
    kind: OutputKind
    dim: int
    vector_type: str = "float32"
    similarity: str = "cosine"
    modifier: Literal["idf"] | None = None
    labels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> OutputSpec:
        return cls(**{**obj, "labels": tuple(obj["labels"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """n sparse vectors end to end: vector i is (indices, values)[offsets[i]:offsets[i + 1]], indices ascending.

    offsets: int64 (n + 1,). indices: uint32 (z,). values: float32 (z,).
    """

    offsets: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.offsets.nbytes + self.indices.nbytes + self.values.nbytes)

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Multivector:
    """n lists of vectors end to end: list i is vectors[offsets[i]:offsets[i + 1]].

    offsets: int64 (n + 1,). vectors: float32 as computed, float16 as stored, (t, C).
    """

    offsets: np.ndarray
    vectors: np.ndarray

    @property
    def nbytes(self) -> int:
        return int(self.offsets.nbytes + self.vectors.nbytes)

    def __len__(self) -> int:
        return len(self.offsets) - 1


Values = np.ndarray | Sparse | Multivector
Outputs = Mapping[str, Values]
"""By the kind's name from an encoder, by the output's name in a `WindowOutput`."""


def dense(outputs: Outputs) -> np.ndarray:
    """(N, C): the dense vectors of an encoder that gives them."""
    vectors = outputs["dense"]
    assert isinstance(vectors, np.ndarray)
    return vectors


def take(values: Values, rows: np.ndarray) -> Values:
    """Values `rows` (int64) in this order."""
    if isinstance(values, np.ndarray):
        chosen: np.ndarray = values[rows]
        return chosen
    offsets, flat = _gathered(values.offsets, rows)
    if isinstance(values, Sparse):
        return Sparse(offsets=offsets, indices=values.indices[flat], values=values.values[flat])
    return Multivector(offsets=offsets, vectors=values.vectors[flat])


def join(parts: Sequence[Values]) -> Values:
    """Values of at least one part, all of one kind, end to end."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate([p for p in parts if isinstance(p, np.ndarray)])
    if isinstance(first, Sparse):
        sparse = [p for p in parts if isinstance(p, Sparse)]
        return Sparse(
            offsets=_end_to_end([p.offsets for p in sparse]),
            indices=np.concatenate([p.indices for p in sparse]),
            values=np.concatenate([p.values for p in sparse]),
        )
    many = [p for p in parts if isinstance(p, Multivector)]
    return Multivector(
        offsets=_end_to_end([p.offsets for p in many]), vectors=np.concatenate([p.vectors for p in many])
    )


def empty(kind: OutputKind, dim: int) -> Values:
    """No values at all, in float32."""
    offsets = np.zeros(1, dtype=np.int64)
    if kind == "sparse":
        return Sparse(offsets=offsets, indices=np.zeros(0, np.uint32), values=np.zeros(0, np.float32))
    if kind == "multivector":
        return Multivector(offsets=offsets, vectors=np.zeros((0, dim), np.float32))
    return np.zeros((0, dim), dtype=np.float32)


def blank(kind: OutputKind, dim: int) -> Values:
    """One value of NaN: nothing was computed."""
    width, offsets = 1 if kind == "sparse" else dim, np.array([0, 1], dtype=np.int64)
    nans = np.full((1, width), np.nan, dtype=np.float32)
    if kind == "sparse":
        return Sparse(offsets=offsets, indices=np.zeros(1, np.uint32), values=nans[0])
    if kind == "multivector":
        return Multivector(offsets=offsets, vectors=nans)
    return nans


def not_finite(values: Values) -> np.ndarray:
    """bool (n,): values with NaN or Inf in them."""
    if isinstance(values, np.ndarray):
        return np.logical_not(np.isfinite(values).all(axis=1))
    return _any_of(values.offsets, ~np.isfinite(_numbers(values)))


def all_zero(values: Values) -> np.ndarray:
    """bool (n,): values without one number that is not zero."""
    if isinstance(values, np.ndarray):
        return np.logical_not(values.any(axis=1))
    return ~_any_of(values.offsets, _numbers(values) != 0)


def _numbers(values: Sparse | Multivector) -> np.ndarray:
    return values.values[:, None] if isinstance(values, Sparse) else values.vectors


def _any_of(offsets: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """bool (n,): whether any row of hit[offsets[i]:offsets[i + 1]] holds a true."""
    seen = np.concatenate(([0], np.cumsum(hit.any(axis=1))))
    found: np.ndarray = seen[offsets[1:]] > seen[offsets[:-1]]
    return found


def _gathered(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of the lists `rows`, and where each of their entries lies in the old flat array."""
    lengths = np.diff(offsets)[rows]
    new = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    flat = np.arange(new[-1], dtype=np.int64) + np.repeat(offsets[:-1][rows] - new[:-1], lengths)
    return new, flat


def _end_to_end(all_offsets: Sequence[np.ndarray]) -> np.ndarray:
    lengths = np.concatenate([np.diff(o) for o in all_offsets])
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
