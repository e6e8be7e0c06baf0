"""The k best rows of a destination for many queries at once, exactly, in one pass and bounded memory.

Enters: parts and queries. Leaves: a `Ranking` a query, best first; equal scores in reading order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from embedctl.query.parts import Stretch
from embedctl.query.similarity import AnyScorer

QUERIES_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """scores: float32 (m,), falling. keys: int64 (m,), the rows, or the documents, of these scores. m <= k."""

    scores: np.ndarray
    keys: np.ndarray


def nearest(
    stretches: Iterable[Stretch], scorer: AnyScorer, *, count: int, k: int, by_document: bool
) -> tuple[list[Ranking], int]:
    """Rankings of `count` queries, and how many vectors were looked at.

    by_document: a document counts once, with its best chunk, under its document key.
    """
    best, seen = _Best(count, k), 0
    for stretch in stretches:
        seen += len(stretch.keys)
        values = scorer.values(stretch.vectors)
        keys = stretch.documents if by_document else stretch.keys
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        for begin in range(0, count, QUERIES_AT_ONCE):
            scores = scorer(values, begin, min(begin + QUERIES_AT_ONCE, count))
            best.add(begin, np.maximum.reduceat(scores, starts, axis=1) if by_document else scores, keys[starts])
    return best.rankings, seen


class _Best:
    """The running k best of each query. A later row must beat `_floor`: of equal scores the first stays."""

    def __init__(self, count: int, k: int) -> None:
        empty = Ranking(scores=np.zeros(0, dtype=np.float32), keys=np.zeros(0, dtype=np.int64))
        self.rankings = [empty] * count
        self._floor = np.full(count, -np.inf, dtype=np.float32)
        self._k = k

    def add(self, begin: int, scores: np.ndarray, keys: np.ndarray) -> None:
        """scores (q, n) of queries begin, begin + 1, ...; keys (n,), ascending."""
        passing = scores > self._floor[begin : begin + len(scores), None]
        for i in np.flatnonzero(passing.any(axis=1)).tolist():
            columns = np.flatnonzero(passing[i])
            columns = columns[_first_best(scores[i, columns], self._k)]
            self._merge(begin + i, scores[i, columns], keys[columns])

    def _merge(self, query: int, scores: np.ndarray, keys: np.ndarray) -> None:
        old = self.rankings[query]
        scores, keys = np.concatenate([old.scores, scores]), np.concatenate([old.keys, keys])
        order = np.lexsort((keys, -scores))
        # A document cut by the end of a batch may come twice: its better score stays.
        _, first = np.unique(keys[order], return_index=True)
        order = order[np.sort(first)][: self._k]
        self.rankings[query] = Ranking(scores=scores[order], keys=keys[order])
        if len(order) == self._k:
            self._floor[query] = scores[order[-1]]


def _first_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k greatest, ascending; of equal ones at the edge the first."""
    n = len(scores)
    if n <= k:
        return np.arange(n)
    edge = np.partition(scores, n - k)[n - k]
    above = np.flatnonzero(scores > edge)
    equal = np.flatnonzero(scores == edge)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))
