"""One worker: slices in, committed windows out. The only module that sees every stage.

    read -> windows -> prepare (chunk, tokenize, pack) -> encode -> commit (sink, then ledger)

Four threads, three bounded channels, one direction. No stage waits for the whole corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """All that a run of slices needs. budget: tokens a batch for a window, as the ledger's amendments have it.
    channel_bytes: what may wait between two stages."""

    windows: WindowsOf
    text: TextRules
    engine: encoding.Engine
    committer: Committer
    budget: Callable[[WindowKey], int]
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
                ready = prepare(window, worker.text, worker.budget(window.key))
            prepared.put(ready, ready.units.tokenized.ids_T.nbytes + window.text_bytes)
        prepared.close()

    def tick(batch: Batch) -> None:
        halt.check()
        worker.on_batch(batch)

    def finish(started: encoding.Started, last: WindowKey) -> int:
        """Pass the window on; the budget that later windows should use."""
        with meter.busy("encode"):
            done = encoding.finish(started, worker.engine, tick, last)
        encoded.put(done, done.vectors.nbytes)
        return done.budget

    def commit() -> None:
        for window in encoded:
            with meter.busy("write"):
                record, dead = worker.committer.commit(window)
            worker.on_commit(record, dead)

    with stage("read", halt, read), stage("tokenize", halt, tokenize), stage("write", halt, commit, 3.0):
        budget: int | None = None
        running: encoding.Started | None = None  # lanes go on with the next window before this one is finished
        for ready in prepared:
            if budget is not None and budget < ready.batch_tokens:
                ready = repack(ready, worker.text, budget)
            started = encoding.start(ready, worker.engine)
            if running is not None:
                budget = _smaller(budget, finish(running, ready.window.key))
            running = started
            if not prepared.has_item():
                budget = _smaller(budget, finish(running, ready.window.key))
                running = None
        if running is not None:
            finish(running, running.prepared.window.key)
        encoded.close()


def _smaller(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
