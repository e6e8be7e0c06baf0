"""One worker: slices in, committed windows out. The only module that sees every stage.

    read -> windows -> prepare (chunk, tokenize, pack) -> encode -> commit (sink, then ledger)

Four threads, three bounded channels, one direction. No stage waits for the whole corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from embedctl.records import Batch, DeadRow, Slice, Window, WindowKey, WindowRecord
from embedctl.stages import encode as encoding
from embedctl.stages.commit import Committer
from embedctl.stages.flow import Channel, Halt, Meter, stage
from embedctl.stages.prepare import Prepared, TextRules, prepare, repack

WindowsOf = Callable[[Slice, Mapping[int, WindowRecord]], Iterator[Window]]
"""A slice and what of it is committed, by number -> the windows still to do, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """All that a run of slices needs. engines: one a model. budgets: tokens a batch for a window and each of them, as
    the ledger's amendments have it. channel_bytes: what may wait between two stages."""

    windows: WindowsOf
    text: TextRules
    engines: Sequence[encoding.Engine]
    committer: Committer
    budgets: Callable[[WindowKey], Sequence[int]]
    halt: Halt
    meter: Meter
    channel_bytes: int
    on_commit: Callable[[WindowRecord, tuple[DeadRow, ...]], None]
    on_batch: Callable[[Batch], None]


def run(worker: Worker, slices: Iterable[tuple[Slice, Mapping[int, WindowRecord]]]) -> None:
    """Commit every window of the slices that is not yet done (given by number).

    :raises EmbedctlError: the first failure of any stage; what was committed stays committed.
    """
    halt, meter = worker.halt, worker.meter
    windows: Channel[Window] = Channel(halt, worker.channel_bytes)
    prepared: Channel[Prepared] = Channel(halt, worker.channel_bytes)
    encoded: Channel[encoding.Encoded] = Channel(halt, worker.channel_bytes)

    def read() -> None:
        for slice_, done in slices:
            for window in meter.timed("read", worker.windows(slice_, done)):
                windows.put(window, window.text_bytes)
        windows.close()

    def tokenize() -> None:
        for window in windows:
            with meter.busy("tokenize"):
                ready = prepare(window, worker.text, worker.budgets(window.key))
            prepared.put(ready, ready.nbytes)
        prepared.close()

    def commit() -> None:
        for window in encoded:
            with meter.busy("write"):
                record, dead = worker.committer.commit(window)
            worker.on_commit(record, dead)

    with stage("read", halt, read), stage("tokenize", halt, tokenize), stage("write", halt, commit, 3.0):
        _encode(worker, prepared, encoded)
        encoded.close()


def _encode(worker: Worker, prepared: Channel[Prepared], encoded: Channel[encoding.Encoded]) -> None:
    """Windows through the encoders. Lanes go on with the next window before the one before it is finished."""

    def tick(batch: Batch) -> None:
        worker.halt.check()
        worker.on_batch(batch)

    def finish(started: encoding.Started, last: WindowKey) -> Sequence[int]:
        """Pass the window on; the budgets that later windows should use."""
        with worker.meter.busy("encode"):
            done = encoding.finish(started, worker.engines, tick, last)
        encoded.put(done, done.nbytes)
        return done.budgets

    budgets: Sequence[int] | None = None
    running: encoding.Started | None = None
    for ready in prepared:
        planned = [feed.batch_tokens for feed in ready.feeds]
        if budgets is not None and (fitting := _smaller(budgets, planned)) != planned:
            ready = repack(ready, worker.text, fitting)
        started = encoding.start(ready, worker.engines)
        if running is not None:
            budgets = _smaller(budgets, finish(running, ready.window.key))
        running = started
        if not prepared.has_item():
            budgets = _smaller(budgets, finish(running, ready.window.key))
            running = None
    if running is not None:
        finish(running, running.prepared.window.key)


def _smaller(one: Sequence[int] | None, other: Sequence[int]) -> list[int]:
    """The smaller budget for each encoder."""
    return list(other) if one is None else list(map(min, one, other))
