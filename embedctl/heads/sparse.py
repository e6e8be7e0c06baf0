"""Sparse vectors from full ones, and from weights of tokens: what is kept, in order of index.

Enters: float32 scores of a vocabulary, or a weight a token. Leaves: `Sparse`, indices ascending, values float32. NaN is
kept, so that the caller finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embedctl.outputs import Sparse, join


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """top_k: keep so many of the greatest numbers of a vector, None: all. threshold: keep what is greater than this."""

    top_k: int | None = None
    threshold: float = 0.0


NO_PRUNING = Pruning()


def sparsify(x_NV: Tensor, pruning: Pruning) -> Sparse:
    """`Sparse` of N vectors from float32 (N, V) on any device. Of equal numbers at top_k's edge any may be kept."""
    kept = ~(x_NV <= pruning.threshold)
    if pruning.top_k is not None and pruning.top_k < x_NV.shape[1]:
        greatest = torch.topk(x_NV, pruning.top_k, dim=1, sorted=False).indices
        kept &= torch.zeros_like(kept).scatter_(1, greatest, value=True)
    counts = kept.sum(dim=1, dtype=torch.int64)
    places = kept.nonzero()
    values: np.ndarray = x_NV[places[:, 0], places[:, 1]].to("cpu", torch.float32).numpy()
    return Sparse(
        offsets=np.concatenate(([0], np.cumsum(counts.cpu().numpy()))).astype(np.int64),
        indices=places[:, 1].cpu().numpy().astype(np.uint32),
        values=values,
    )


def greatest_of_each(ids: np.ndarray, weights: np.ndarray, offsets: np.ndarray, pruning: Pruning) -> Sparse:
    """Of every sequence's tokens the greatest weight of each id. ids (T,), weights float32 (T,), offsets (N + 1,)."""
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    kept = ~(weights <= pruning.threshold)
    row, ids, weights = row[kept], ids[kept], weights[kept]
    order = np.lexsort((-weights, ids, row))
    row, ids, weights = row[order], ids[order], weights[order]
    first = np.ones(len(row), dtype=bool)
    first[1:] = (row[1:] != row[:-1]) | (ids[1:] != ids[:-1])
    row, ids, weights = row[first], ids[first], weights[first]
    if pruning.top_k is not None:
        row, ids, weights = _cut(row, ids, weights, pruning.top_k)
    counts = np.bincount(row, minlength=len(offsets) - 1)
    return Sparse(
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        indices=ids.astype(np.uint32),
        values=weights.astype(np.float32),
    )


def _cut(
    row: np.ndarray, ids: np.ndarray, weights: np.ndarray, top_k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `top_k` greatest of each row, in order of id."""
    order = np.lexsort((ids, -weights, row))
    starts = np.searchsorted(row[order], row[order], side="left")
    kept = np.sort(order[np.arange(len(order)) - starts < top_k])
    return row[kept], ids[kept], weights[kept]


def joined(parts: Sequence[Sparse]) -> Sparse:
    """Parts end to end; at least one."""
    whole = join(parts)
    assert isinstance(whole, Sparse)
    return whole
