"""Scores of sparse vectors and of multivectors against queries, exactly, higher always nearer. numpy only.

Enters: queries and stored values of one output. Leaves: float32 (Q, n). Products run in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedctl.outputs import Multivector, Sparse, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matched:
    """Entries of stored vectors whose index some query has. row, column: int64; values: float64. count: of vectors."""

    row: np.ndarray
    column: np.ndarray
    values: np.ndarray
    count: int


class SparseScorer:
    """Dot product; a vector without an index of the query's is none of its neighbours (minus infinity).

    `idf`: a weight of each query's indices, for outputs that a store would weigh so.
    """

    name = "dot"

    def __init__(self, queries: Sparse, idf: np.ndarray | None = None) -> None:
        """queries: Q. idf: float64, by place in `indices`."""
        self.indices = np.unique(queries.indices)
        self._weights = np.zeros((len(queries), len(self.indices)))
        row = np.repeat(np.arange(len(queries)), np.diff(queries.offsets))
        self._weights[row, np.searchsorted(self.indices, queries.indices)] = queries.values
        if idf is not None:
            self._weights *= idf

    def values(self, stored: Values) -> _Matched:
        assert isinstance(stored, Sparse)
        place = np.searchsorted(self.indices, stored.indices)
        place[place == len(self.indices)] = 0
        hit = np.flatnonzero(self.indices[place] == stored.indices) if len(self.indices) else np.zeros(0, np.int64)
        row = np.repeat(np.arange(len(stored), dtype=np.int64), np.diff(stored.offsets))
        return _Matched(
            row=row[hit], column=place[hit], values=stored.values[hit].astype(np.float64), count=len(stored)
        )

    def __call__(self, values: _Matched, begin: int, end: int) -> np.ndarray:
        return np.stack([self._one(values, weights) for weights in self._weights[begin:end]]).astype(np.float32)

    def _one(self, values: _Matched, weights: np.ndarray) -> np.ndarray:
        mine = weights[values.column] != 0
        row, products = values.row[mine], values.values[mine] * weights[values.column[mine]]
        scores = np.bincount(row, weights=products, minlength=values.count).astype(np.float64)
        scores[np.bincount(row, minlength=values.count) == 0] = -np.inf
        return scores


def idf_of(found: np.ndarray, count: int) -> np.ndarray:
    """Weights of indices that `found` of `count` vectors have, as Qdrant's `idf` modifier weighs them."""
    weights: np.ndarray = np.log((count - found + 0.5) / (found + 0.5) + 1.0)
    return weights


class MaxSimScorer:
    """Late interaction: the best of a document's vectors for each of a query's, summed (Khattab and Zaharia, 2020)."""

    name = "maxsim"

    def __init__(self, queries: Multivector, similarity: str) -> None:
        self._cosine = similarity == "cosine"
        self._offsets = queries.offsets
        self._queries = self._wide(queries.vectors)

    def values(self, stored: Values) -> Multivector:
        assert isinstance(stored, Multivector)
        return Multivector(offsets=stored.offsets, vectors=self._wide(stored.vectors))

    def __call__(self, values: Multivector, begin: int, end: int) -> np.ndarray:
        out = np.empty((end - begin, len(values)), dtype=np.float32)
        for i in range(begin, end):
            query = self._queries[self._offsets[i] : self._offsets[i + 1]]
            best = np.maximum.reduceat(query @ values.vectors.T, values.offsets[:-1], axis=1)
            out[i - begin] = best.sum(axis=0)
        return out

    def _wide(self, vectors: np.ndarray) -> np.ndarray:
        wide = vectors.astype(np.float64)
        if not self._cosine:
            return wide
        norms = np.linalg.norm(wide, axis=1, keepdims=True)
        scaled: np.ndarray = wide / np.where(norms == 0, 1, norms)
        return scaled
