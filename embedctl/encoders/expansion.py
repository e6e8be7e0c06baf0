"""Query expansion of late interaction: short queries are filled up with tokens that give vectors of their own.

Enters: a packed batch of queries. Leaves: the same with the fill behind each, and which tokens the others do not see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedctl.models.modules import Expansion
from embedctl.records import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedBatch(Batch):
    """unseen_T: bool (T,), tokens that no token attends to, themselves included; None: all are seen."""

    unseen_T: np.ndarray | None = None


def expanded(batch: Batch, settings: Expansion, token: int) -> ExpandedBatch:
    """Every sequence of less than `settings.length` tokens, filled up to it. Sequences stay in order of length."""
    lengths = np.diff(batch.cu_seqlens).astype(np.int64)
    wanted = np.maximum(lengths, settings.length)
    cu_seqlens = np.concatenate(([0], np.cumsum(wanted))).astype(np.int32)
    places = np.arange(cu_seqlens[-1], dtype=np.int64) - np.repeat(cu_seqlens[:-1].astype(np.int64), wanted)
    own = places < np.repeat(lengths, wanted)
    ids = np.full(len(own), token, dtype=np.int32)
    ids[own] = batch.input_ids_T
    types = None
    if batch.token_type_ids_T is not None:
        types = np.zeros(len(own), dtype=np.int32)
        types[own] = batch.token_type_ids_T
    return ExpandedBatch(
        input_ids_T=ids, cu_seqlens=cu_seqlens, units=batch.units, token_type_ids_T=types,
        unseen_T=None if settings.attend or own.all() else ~own,
    )  # fmt: skip


def unseen_of(batch: Batch) -> np.ndarray | None:
    """bool (T,), see `ExpandedBatch`; None for any other batch."""
    return batch.unseen_T if isinstance(batch, ExpandedBatch) else None
