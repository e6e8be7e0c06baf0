"""Batches -> vectors: runs the encoder, survives its bad days, judges what it gives.

Enters: a `Prepared` window. Leaves: an `Encoded` one. Out of memory halves the batch and lowers the budget of later
windows; a vector with NaN or Inf is tried again alone in float32; what still fails, or is zero, kills its row only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embedctl.encoders.base import Encoder
from embedctl.errors import OutOfDeviceMemory
from embedctl.records import Batch
from embedctl.stages.prepare import Prepared

Split = Callable[[Batch], tuple[Batch, Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """vectors: float32 (distinct texts, C), rows of dead ones undefined. budget: what later windows should use."""

    prepared: Prepared
    vectors: np.ndarray
    reasons: dict[int, str]
    padded_tokens: int
    budget: int


def encode(
    prepared: Prepared, encoder: Encoder, split: Split, padded: Callable[[Batch], int], tick: Callable[[Batch], None]
) -> Encoded:
    """:raises EncoderError: the encoder itself is broken. :raises Interrupted: from `tick`, called after each batch."""
    count = len(prepared.units.tokenized.truncated)
    vectors = np.zeros((count, encoder.dim), dtype=np.float32)
    bad: dict[int, str] = {}
    budget, padded_tokens = prepared.batch_tokens, 0
    for batch in prepared.batches:
        padded_tokens += padded(batch)
        budget = min(budget, _encode_batch(batch, encoder, split, vectors, bad, budget))
        tick(batch)
    _judge(prepared, encoder, vectors, bad)
    reasons = dict(prepared.reasons)
    if bad:
        for unit, sequence in enumerate(prepared.units.sequence.tolist()):
            if sequence in bad:
                reasons.setdefault(int(prepared.units.document[unit]), bad[sequence])
    return Encoded(prepared=prepared, vectors=vectors, reasons=reasons, padded_tokens=padded_tokens, budget=budget)


def _encode_batch(
    batch: Batch, encoder: Encoder, split: Split, vectors: np.ndarray, bad: dict[int, str], budget: int
) -> int:
    """Fill the batch's rows of `vectors`; returns the budget that fitted."""
    try:
        vectors[batch.units] = encoder.encode(batch)
        return budget
    except OutOfDeviceMemory as exc:
        if len(batch.units) == 1:
            bad[int(batch.units[0])] = f"does not fit in device memory ({batch.num_tokens} tokens)"
            return budget
        del exc
    halves = split(batch)
    smaller = max(1, min(budget, batch.num_tokens) // 2)
    return min(_encode_batch(half, encoder, split, vectors, bad, smaller) for half in halves)


def _judge(prepared: Prepared, encoder: Encoder, vectors: np.ndarray, bad: dict[int, str]) -> None:
    """Find NaN, Inf and zero vectors; give the first two a second chance alone in float32."""
    for batch in prepared.batches:
        rows = vectors[batch.units]
        suspect = ~np.isfinite(rows).all(axis=1) | ~rows.any(axis=1)
        for i in np.flatnonzero(suspect).tolist():
            sequence = int(batch.units[i])
            if sequence in bad:
                continue
            if not np.isfinite(vectors[sequence]).all():
                vectors[sequence] = _again(encoder, batch, i)
            if not np.isfinite(vectors[sequence]).all():
                bad[sequence] = "the vector has NaN or Inf"
            elif not vectors[sequence].any():
                bad[sequence] = "the vector is zero"


def _again(encoder: Encoder, batch: Batch, i: int) -> np.ndarray:
    begin, end = int(batch.cu_seqlens[i]), int(batch.cu_seqlens[i + 1])
    types = batch.token_type_ids_T
    alone = Batch(
        input_ids_T=batch.input_ids_T[begin:end],
        cu_seqlens=np.array([0, end - begin], dtype=np.int32),
        units=batch.units[i : i + 1],
        token_type_ids_T=None if types is None else types[begin:end],
    )
    try:
        vector: np.ndarray = encoder.encode_float32(alone)[0]
    except OutOfDeviceMemory:
        return np.full(encoder.dim, np.nan, dtype=np.float32)
    return vector
