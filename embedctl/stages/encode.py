"""Batches -> outputs: runs the encoders, survives their bad days, judges what they give.

Enters: a `Prepared` window. Leaves: an `Encoded` one. Out of memory halves the batch and lowers the budget of later
windows; a value with NaN or Inf is tried again alone in float32; what still fails, is zero, or cannot be read, kills
its row only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from embedctl import outputs as out
from embedctl.encoders.base import Encoder
from embedctl.errors import OutOfDeviceMemory, UnreadableInput
from embedctl.outputs import OutputKind, Outputs, Values
from embedctl.records import Batch, WindowKey
from embedctl.stages.prepare import Feed, Prepared

Split = Callable[[Batch], tuple[Batch, Batch]]
Piece = tuple[np.ndarray, Outputs]
"""Sequences of the window, and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """outputs: by name, a value for each distinct text, those of dead ones undefined. budgets: one an encoder, for
    windows after `last`."""

    prepared: Prepared
    outputs: Outputs
    reasons: dict[int, str]
    padded_tokens: int
    budgets: tuple[int, ...]
    last: WindowKey

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.outputs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An encoder and what the stage needs beside it. `pool` has a thread for each of its lanes.

    names: the output's name for each kind that is wanted. split halves a batch; padded tells the tokens that a batch
    really costs.
    """

    encoder: Encoder
    names: Mapping[OutputKind, str]
    split: Split
    padded: Callable[[Batch], int]
    pool: ThreadPoolExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A window whose batches are with the encoders' lanes; `results` gives, for each encoder, each batch's pieces and
    the budget that fitted, in order. `bad` fills up meanwhile: the next window can be started before this one is
    finished.
    """

    prepared: Prepared
    bad: dict[int, str]
    results: tuple[Iterator[tuple[list[Piece], int]], ...]


def start(prepared: Prepared, engines: Sequence[Engine]) -> Started:
    """Hand the window's batches to the lanes. With one lane nothing runs before `finish`."""
    bad: dict[int, str] = {}
    results = tuple(_begin(feed, engine, bad) for feed, engine in zip(prepared.feeds, engines, strict=True))
    return Started(prepared=prepared, bad=bad, results=results)


def _begin(feed: Feed, engine: Engine, bad: dict[int, str]) -> Iterator[tuple[list[Piece], int]]:
    def work(batch: Batch) -> tuple[list[Piece], int]:
        return _encode_batch(batch, engine, bad, feed.batch_tokens)

    return map(work, feed.batches) if engine.encoder.lanes == 1 else engine.pool.map(work, feed.batches)


def finish(started: Started, engines: Sequence[Engine], tick: Callable[[Batch], None], last: WindowKey) -> Encoded:
    """Wait for the window. `last`: the last window started by now.

    :raises EncoderError: an encoder itself is broken. :raises Interrupted: from `tick`, called after each batch.
    """
    prepared, bad = started.prepared, started.bad
    outputs: dict[str, Values] = {}
    budgets = []
    for feed, results, engine in zip(prepared.feeds, started.results, engines, strict=True):
        budget, pieces = feed.batch_tokens, []
        for batch, (found, fitted) in zip(feed.batches, results, strict=True):
            pieces += found
            budget = min(budget, fitted)
            tick(batch)
        budgets.append(budget)
        outputs |= _Gathered(feed, engine.encoder, pieces, bad).judged(engine.names)
    return Encoded(
        prepared=prepared,
        outputs=outputs,
        reasons=_reasons(prepared, bad),
        padded_tokens=sum(map(engines[0].padded, prepared.feeds[0].batches)),
        budgets=tuple(budgets),
        last=last,
    )


def _reasons(prepared: Prepared, bad: Mapping[int, str]) -> dict[int, str]:
    reasons = dict(prepared.reasons)
    if bad:
        for unit, sequence in enumerate(prepared.units.sequence.tolist()):
            if sequence in bad:
                reasons.setdefault(int(prepared.units.document[unit]), bad[sequence])
    return reasons


def _encode_batch(batch: Batch, engine: Engine, bad: dict[int, str], budget: int) -> tuple[list[Piece], int]:
    """The batch's values, and the budget that fitted."""
    try:
        return [(batch.units, engine.encoder.encode(batch))], budget
    except OutOfDeviceMemory:
        if len(batch.units) == 1:
            bad[int(batch.units[0])] = f"does not fit in device memory ({batch.num_tokens} tokens)"
            return [], budget
    except UnreadableInput as exc:
        bad.update({int(batch.units[i]): reason for i, reason in exc.reasons.items()})
        rest = without(batch, exc.reasons)
        return ([], budget) if rest is None else _encode_batch(rest, engine, bad, budget)
    smaller = max(1, min(budget, batch.num_tokens) // 2)
    halves = [_encode_batch(half, engine, bad, smaller) for half in engine.split(batch)]
    return [piece for pieces, _ in halves for piece in pieces], min(fitted for _, fitted in halves)


def without(batch: Batch, bad: Collection[int]) -> Batch | None:
    """The batch without these of its sequences, None where nothing is left."""
    kept = [i for i in range(len(batch.units)) if i not in bad]
    if not kept:
        return None
    lengths = np.diff(batch.cu_seqlens)
    stays = np.isin(np.repeat(np.arange(len(lengths)), lengths), kept)
    types = batch.token_type_ids_T
    return Batch(
        input_ids_T=batch.input_ids_T[stays],
        cu_seqlens=np.concatenate(([0], np.cumsum(lengths[kept]))).astype(np.int32),
        units=batch.units[kept],
        token_type_ids_T=None if types is None else types[stays],
        contents=None if batch.contents is None else [batch.contents[i] for i in kept],
    )


class _Gathered:
    """One encoder's pieces of a window, brought into the order of its distinct texts."""

    def __init__(self, feed: Feed, encoder: Encoder, pieces: Sequence[Piece], bad: dict[int, str]) -> None:
        self._feed, self._encoder, self._bad = feed, encoder, bad
        self._parts: dict[OutputKind, list[Values]] = {k: [p[k] for _, p in pieces] for k in encoder.dims}
        count = sum(len(units) for units, _ in pieces)
        self._place = np.full(len(feed.tokenized.truncated), count, dtype=np.int64)  # past all of them: never computed
        for begin, units in zip(_starts(pieces), (units for units, _ in pieces), strict=True):
            self._place[units] = np.arange(begin, begin + len(units))
        self._count = count

    def judged(self, names: Mapping[OutputKind, str]) -> dict[str, Values]:
        """The wanted values by name; NaN, Inf and zero found, the first two after a second chance alone in float32."""
        values: Mapping[OutputKind, Values] = self._joined()
        wrong = np.zeros(self._count + 1, dtype=bool)
        for kind in names:
            wrong |= out.not_finite(values[kind]) | (out.all_zero(values[kind]) if kind != "score" else False)
        if wrong[: self._count].any():
            values = self._second_chances(values, wrong, names)
        return {name: out.take(values[kind], self._place) for kind, name in names.items()}

    def _joined(self) -> dict[OutputKind, Values]:
        """Every kind's values end to end, and a blank one at the end."""
        return {k: out.join([*parts, out.blank(k, self._encoder.dims[k])]) for k, parts in self._parts.items()}

    def _second_chances(
        self, values: Mapping[OutputKind, Values], wrong: np.ndarray, names: Mapping[OutputKind, str]
    ) -> Mapping[OutputKind, Values]:
        again: list[Outputs] = []
        for batch in self._feed.batches:
            for i in np.flatnonzero(wrong[self._place[batch.units]]).tolist():
                sequence = int(batch.units[i])
                if sequence in self._bad:
                    continue
                one: Outputs = {k: out.take(v, self._place[[sequence]]) for k, v in values.items()}
                if any(out.not_finite(one[k])[0] for k in names):
                    one = _again(self._encoder, batch, i)
                    self._place[sequence] = self._count + 1 + len(again)
                    again.append(one)
                if any(out.not_finite(one[k])[0] for k in names):
                    self._bad[sequence] = "the vector has NaN or Inf"
                elif any(out.all_zero(one[k])[0] for k in names if k != "score"):
                    self._bad[sequence] = "the vector is zero"
        return {k: out.join([v, *(one[k] for one in again)]) for k, v in values.items()}


def _starts(pieces: Sequence[Piece]) -> list[int]:
    starts: list[int] = np.cumsum([0, *(len(units) for units, _ in pieces)])[:-1].tolist()
    return starts


def _again(encoder: Encoder, batch: Batch, i: int) -> Outputs:
    begin, end = int(batch.cu_seqlens[i]), int(batch.cu_seqlens[i + 1])
    types = batch.token_type_ids_T
    alone = Batch(
        input_ids_T=batch.input_ids_T[begin:end],
        cu_seqlens=np.array([0, end - begin], dtype=np.int32),
        units=batch.units[i : i + 1],
        token_type_ids_T=None if types is None else types[begin:end],
        contents=None if batch.contents is None else batch.contents[i : i + 1],
    )
    try:
        return encoder.encode_float32(alone)
    except OutOfDeviceMemory:
        return {kind: out.blank(kind, dim) for kind, dim in encoder.dims.items()}
