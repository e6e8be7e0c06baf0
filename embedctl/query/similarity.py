"""Scores of stored vectors against queries, higher always nearer. numpy only.

Enters: queries float32 (Q, C) and vectors as stored (n, C'). Leaves: float32 (Q, n). Products run in float64 and are
rounded to float32 at the end, so that equal vectors score the same wherever in a batch they stand, and ties are ties.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from embedctl.errors import UsageError
from embedctl.outputs import Values

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
BINARY = ("binary", "ubinary")


class AnyScorer(Protocol):
    """One output's scores."""

    @property
    def name(self) -> str:
        """Of the similarity, for people."""
        ...

    def values(self, stored: Any) -> Any:
        """What `__call__` takes, made once of n stored values."""
        ...

    def __call__(self, values: Any, begin: int, end: int) -> np.ndarray:
        """float32 (end - begin, n): queries begin to end against the values."""
        ...


class Scorer:
    """The model's own similarity over one vector type.

    cosine, dot: as they are. euclidean, manhattan: minus the distance. Binary vectors: the share of equal bits,
    the queries' own signs against the stored ones, whatever the similarity.
    """

    def __init__(
        self, queries: np.ndarray, *, vector_type: str, similarity: str, dim: int, ranges: np.ndarray | None
    ) -> None:
        """:raises UsageError: a similarity that is not known, or integer vectors without their ranges."""
        if similarity not in SIMILARITIES and vector_type not in BINARY:
            raise UsageError(f"the model's similarity {similarity!r} is not one of {', '.join(SIMILARITIES)}")
        if vector_type in ("int8", "uint8") and ranges is None:
            raise UsageError(f"the destination has no ranges for its {vector_type} vectors; it cannot be searched")
        self._type, self._similarity = vector_type, "equal bits" if vector_type in BINARY else similarity
        self._dim, self._ranges = dim, ranges
        wide = queries.astype(np.float64)
        if vector_type in BINARY:
            wide = np.where(wide > 0, 1.0, -1.0)
        self._queries = _unit(wide) if similarity == "cosine" and vector_type not in BINARY else wide

    @property
    def name(self) -> str:
        return self._similarity

    def values(self, stored: Values) -> np.ndarray:
        """float64 (n, C): what the stored numbers stand for: bits 1 and -1, an integer the middle of its step."""
        assert isinstance(stored, np.ndarray)
        if self._type in BINARY:
            shift = np.uint8(0 if self._type == "ubinary" else 0x80)
            packed: np.ndarray = np.bitwise_xor(np.ascontiguousarray(stored).view(np.uint8), shift)
            return np.unpackbits(packed, axis=1, count=self._dim) * 2.0 - 1.0
        if self._type in ("int8", "uint8"):
            assert self._ranges is not None
            low, high = self._ranges.astype(np.float64)
            levels = stored + (128.0 if self._type == "int8" else 0.0)
            # Level 255 is the upper end alone; the levels below it were rounded down.
            middle: np.ndarray = low + np.minimum(levels + 0.5, 255.0) * ((high - low) / 255)
            return middle
        return stored.astype(np.float64)

    def __call__(self, values: np.ndarray, begin: int, end: int) -> np.ndarray:
        """float32 (end - begin, n): queries begin to end against `values` (n, C), as `values` gives them."""
        queries = self._queries[begin:end]
        if self._similarity in ("euclidean", "manhattan"):
            order = 2 if self._similarity == "euclidean" else 1
            return np.stack([-np.linalg.norm(values - q, ord=order, axis=1) for q in queries]).astype(np.float32)
        if self._similarity == "cosine":
            values = _unit(values)
        products = queries @ values.T
        if self._similarity == "equal bits":
            products = (products + self._dim) / (2 * self._dim)
        scores: np.ndarray = products.astype(np.float32)
        return scores


def _unit(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; a zero row stays zero."""
    norms = np.sqrt(np.einsum("nc,nc->n", x, x))[:, None]
    scaled: np.ndarray = x / np.where(norms == 0, 1, norms)
    return scaled
