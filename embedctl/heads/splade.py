"""SPLADE: scores of the whole vocabulary for every token, pooled over each sequence, without ever holding them all.

Enters: what the last layer before the vocabulary gives, (T, E), and the vocabulary's own weights. Leaves: `Sparse`.
Memory beside those: one tile of scores (`TILES`: 4 MiB in bfloat16 on a CPU; in float32 and for sums at most four times
that; a fused kernel writes none), and the pooled numbers of as many sequences as fit `POOLED_NUMBERS` (64 MiB), one at
least; never T x V. Formal et al., SPLADE v2 (2021): for max pooling log(1 + relu(x)) is taken after the maximum, which
it does not change; sums take it before, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from embedctl.heads.sparse import Pruning, joined, sparsify
from embedctl.outputs import Sparse

TILES = {"cpu": (2048, 1024)}
"""Tokens and vocabulary of a tile, by device: what stays in a core's cache."""
GPU_TILE = (16384, 4096)
POOLED_NUMBERS = 16 << 20

Run = tuple[int, int, int, int]
"""(sequence, its first token in the tile, how many sequences, tokens of each)."""

Maxima = Callable[[Tensor, Tensor, int], Tensor]
"""x (T, E) finite, int32 (T,) the sequence of each token, how many sequences -> float32 (N, V or more), -inf: none."""


def splade(
    x_TE: Tensor, lengths: Sequence[int], weight_VE: Tensor, bias_V: Tensor | None, *, pooling: str, log_twice: bool,
    pruning: Pruning, maxima: Maxima | None = None,
) -> Sparse:  # fmt: skip
    """`Sparse` of N vectors of V numbers. lengths: tokens of each sequence; x, weight and bias of one dtype and device.
    maxima: a faster way to the greatest products, where there is one.

    Sequences of equal length that stand together are pooled together; a sequence without tokens gives nothing."""
    rows = max(POOLED_NUMBERS // len(weight_VE), 1)
    parts, begin = [], 0
    for first in range(0, len(lengths), rows):
        block = list(lengths[first : first + rows])
        end = begin + sum(block)
        x = x_TE[begin:end]
        if maxima is not None and pooling == "max" and bool(torch.isfinite(x).all()):
            pooled = _pooled_by(maxima, x, block, bias_V, size=len(weight_VE), log_twice=log_twice)
        else:
            pooled = _pooled(x, block, weight_VE, bias_V, pooling=pooling, log_twice=log_twice)
        parts.append(sparsify(pooled, pruning))
        begin = end
    if not parts:
        return sparsify(torch.zeros((0, len(weight_VE))), pruning)
    return joined(parts)


def _pooled_by(
    maxima: Maxima, x_TE: Tensor, lengths: list[int], bias_V: Tensor | None, *, size: int, log_twice: bool
) -> Tensor:
    sequence_of_T = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths))
    pooled_NV = maxima(x_TE, sequence_of_T, len(lengths))[:, :size]
    if bias_V is not None:
        pooled_NV += bias_V.float()
    return _activated(pooled_NV, log_twice=log_twice)


def _pooled(
    x_TE: Tensor, lengths: list[int], weight_VE: Tensor, bias_V: Tensor | None, *, pooling: str, log_twice: bool
) -> Tensor:
    """float32 (N, V)."""
    size, device = len(weight_VE), x_TE.device
    tokens, width = TILES.get(device.type, GPU_TILE)
    least = float("-inf") if pooling == "max" else 0.0
    pooled_NV = torch.full((len(lengths), size), least, dtype=torch.float32, device=device)
    tiles = list(_tiles(lengths, tokens))
    for low in range(0, size, width):
        part = slice(low, low + width)
        weight_EV = weight_VE[part].t()
        bias = None if bias_V is None else bias_V[part].float()
        for begin, end, runs in tiles:
            scores = x_TE[begin:end] @ weight_EV
            if pooling == "sum":
                scores = _activated(scores.float() if bias is None else scores.float() + bias, log_twice=log_twice)
            _reduce(scores, runs, pooled_NV[:, part], pooling)
        if pooling == "max" and bias is not None:
            pooled_NV[:, part] += bias
    if pooling == "max":
        pooled_NV = _activated(pooled_NV, log_twice=log_twice)
    return pooled_NV


def _activated(x: Tensor, *, log_twice: bool) -> Tensor:
    x = torch.relu_(x).log1p_()
    return x.log1p_() if log_twice else x


def _reduce(scores_TV: Tensor, runs: Sequence[Run], pooled_NV: Tensor, pooling: str) -> None:
    """Take a tile's runs into the pooled numbers of their sequences."""
    for row, at, count, length in runs:
        shaped = scores_TV[at : at + count * length].view(count, length, -1)
        into = pooled_NV[row : row + count]
        if pooling == "max":
            torch.maximum(into, shaped.amax(dim=1).float(), out=into)
        else:
            into += shaped.sum(dim=1)


def _tiles(lengths: list[int], most: int) -> Iterator[tuple[int, int, list[Run]]]:
    """(first token, end, runs) of at most `most` tokens; a run is (sequence, token in the tile, sequences, tokens
    of each). A sequence that does not fit a tile goes through several."""
    begin, filled, runs = 0, 0, list[Run]()
    for row, length in enumerate(lengths):
        done = 0
        while done < length:
            taken = min(length - done, most - filled)
            if taken < length - done and filled and length <= most:
                taken = 0  # it fits the next tile whole
            if taken:
                _extend(runs, row, filled, taken)
                filled, done = filled + taken, done + taken
            if done < length:
                yield begin, begin + filled, runs
                begin, filled, runs = begin + filled, 0, []
    if filled:
        yield begin, begin + filled, runs


def _extend(runs: list[Run], row: int, at: int, length: int) -> None:
    """One more sequence: part of the last run where lengths are equal."""
    if runs:
        first, start, count, same = runs[-1]
        if same == length and first + count == row:
            runs[-1] = (first, start, count + 1, same)
            return
    runs.append((row, at, 1, length))
