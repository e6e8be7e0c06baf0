"""Batches -> vectors: runs the encoder, survives its bad days, judges what it gives.

Enters: a `Prepared` window. Leaves: an `Encoded` one. Out of memory halves the batch and lowers the budget of later
windows; a vector with NaN or Inf is tried again alone in float32; what still fails, or is zero, kills its row only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from embedctl.encoders.base import Encoder
from embedctl.errors import OutOfDeviceMemory
from embedctl.records import Batch, WindowKey
from embedctl.stages.prepare import Prepared

Split = Callable[[Batch], tuple[Batch, Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """vectors: float32 (distinct texts, C), rows of dead ones undefined. budget: for windows after `last`."""

    prepared: Prepared
    vectors: np.ndarray
    reasons: dict[int, str]
    padded_tokens: int
    budget: int
    last: WindowKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The encoder and what the stage needs beside it. `pool` has a thread for each of its lanes.

    split halves a batch; padded tells the tokens that a batch really costs.
    """

    encoder: Encoder
    split: Split
    padded: Callable[[Batch], int]
    pool: ThreadPoolExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A window whose batches are with the encoder's lanes; `results` gives each batch's fitting budget, in order.

    vectors and bad fill up meanwhile: the next window can be started before this one is finished.
    """

    prepared: Prepared
    vectors: np.ndarray
    bad: dict[int, str]
    results: Iterator[int]


def start(prepared: Prepared, engine: Engine) -> Started:
    """Hand the window's batches to the lanes. With one lane nothing runs before `finish`."""
    count = len(prepared.units.tokenized.truncated)
    vectors = np.zeros((count, engine.encoder.dim), dtype=np.float32)
    bad: dict[int, str] = {}

    def work(batch: Batch) -> int:
        return _encode_batch(batch, engine, vectors, bad, prepared.batch_tokens)

    results = map(work, prepared.batches) if engine.encoder.lanes == 1 else engine.pool.map(work, prepared.batches)
    return Started(prepared=prepared, vectors=vectors, bad=bad, results=results)


def finish(started: Started, engine: Engine, tick: Callable[[Batch], None], last: WindowKey) -> Encoded:
    """Wait for the window. `last`: the last window started by now.

    :raises EncoderError: the encoder itself is broken. :raises Interrupted: from `tick`, called after each batch.
    """
    prepared, bad = started.prepared, started.bad
    budget = prepared.batch_tokens
    for batch, fitted in zip(prepared.batches, started.results, strict=True):
        budget = min(budget, fitted)
        tick(batch)
    _judge(prepared, engine.encoder, started.vectors, bad)
    reasons = dict(prepared.reasons)
    if bad:
        for unit, sequence in enumerate(prepared.units.sequence.tolist()):
            if sequence in bad:
                reasons.setdefault(int(prepared.units.document[unit]), bad[sequence])
    return Encoded(
        prepared=prepared,
        vectors=started.vectors,
        reasons=reasons,
        padded_tokens=sum(map(engine.padded, prepared.batches)),
        budget=budget,
        last=last,
    )


def _encode_batch(batch: Batch, engine: Engine, vectors: np.ndarray, bad: dict[int, str], budget: int) -> int:
    """Fill the batch's rows of `vectors`; returns the budget that fitted."""
    try:
        vectors[batch.units] = engine.encoder.encode(batch)
        return budget
    except OutOfDeviceMemory:
        if len(batch.units) == 1:
            bad[int(batch.units[0])] = f"does not fit in device memory ({batch.num_tokens} tokens)"
            return budget
    smaller = max(1, min(budget, batch.num_tokens) // 2)
    return min(_encode_batch(half, engine, vectors, bad, smaller) for half in engine.split(batch))


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
