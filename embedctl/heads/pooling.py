"""Token vectors to one vector a sequence, over a packed batch.

Enters: hidden (T, E), any float dtype, and where sequences begin and end. Leaves: float32 (N, E) a mode, several modes
side by side; sums are taken in float32, one segment reduction for the whole batch, so neighbours never matter.
Modes are those of sentence-transformers, prompt tokens left out the way it leaves them out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pool(hidden_TE: Tensor, cu_seqlens: Tensor, modes: Sequence[str], *, num_skipped: int = 0) -> Tensor:
    """float32 (N, len(modes) * E), on the device of `hidden_TE`.

    cu_seqlens: int64 (N + 1,) on the same device. num_skipped: leading tokens of each sequence that do not count (a
    prompt left out). A sequence of nothing but those gives zeros for the means, as an empty one does.
    """
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    return torch.cat([_one(hidden_TE, cu_seqlens, lengths, mode, num_skipped) for mode in modes], dim=1)


def _one(hidden_TE: Tensor, cu_seqlens: Tensor, lengths: Tensor, mode: str, num_skipped: int) -> Tensor:
    if mode == "cls":
        first = cu_seqlens[:-1] + torch.where(lengths > num_skipped, num_skipped, 0)
        return _rows(hidden_TE, first, lengths)
    if mode == "lasttoken":
        return _rows(hidden_TE, cu_seqlens[1:] - 1, lengths)
    x_TE, counts, positions = _counted(hidden_TE.float(), cu_seqlens, lengths, num_skipped)
    if mode == "max":
        pooled = torch.segment_reduce(x_TE, "max", lengths=counts, axis=0)
        return pooled.masked_fill((counts == 0).unsqueeze(1), 0.0)
    if mode == "weightedmean":
        weights = (positions + 1).float().unsqueeze(1)
        total = torch.segment_reduce(weights, "sum", lengths=counts, axis=0)
        return torch.segment_reduce(x_TE * weights, "sum", lengths=counts, axis=0) / total.clamp(min=1e-9)
    total = counts.clamp(min=1).float().unsqueeze(1)
    if mode == "mean_sqrt_len_tokens":
        total = total.sqrt()
    return torch.segment_reduce(x_TE, "sum", lengths=counts, axis=0) / total


def _rows(hidden_TE: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    """One token a sequence; zeros where a sequence has none."""
    picked = hidden_TE[rows.clamp(0, max(hidden_TE.shape[0] - 1, 0))].float()
    return picked.masked_fill((lengths == 0).unsqueeze(1), 0.0)


def _counted(x_TE: Tensor, cu_seqlens: Tensor, lengths: Tensor, num_skipped: int) -> tuple[Tensor, Tensor, Tensor]:
    """(the tokens that count, how many a sequence, the place of each in its sequence)."""
    starts = torch.repeat_interleave(cu_seqlens[:-1], lengths, output_size=x_TE.shape[0])
    positions = torch.arange(x_TE.shape[0], device=x_TE.device) - starts
    if not num_skipped:
        return x_TE, lengths, positions
    counted = positions >= num_skipped
    return x_TE[counted], (lengths - num_skipped).clamp(min=0), positions[counted]
