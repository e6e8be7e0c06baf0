"""An execution: some slices of a plan, run under a lease, then the generation finished when it was the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from embedctl.errors import LimitReached
from embedctl.events import Listener, Summary
from embedctl.job import crew
from embedctl.job import finalise as ending
from embedctl.job.encoding import Encoding, too_many
from embedctl.job.summary import summary_of
from embedctl.job.tally import Tally
from embedctl.ledger import dead, locks
from embedctl.ledger.segments import Ledger
from embedctl.models.folder import ModelFolder
from embedctl.pipeline import WindowsOf
from embedctl.plan import Plan
from embedctl.records import Batch, DeadRow, Slice, WindowKey, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage

COMPACT_AT = 64


@dataclass(slots=True)
class Execution:
    """A run over some slices of a plan, under a lease. `lost`: committed windows whose parts were found to be gone."""

    spec: JobSpec
    plan: Plan
    storage: LocalStorage
    sink: Sink
    listener: Listener
    halt: Halt
    lease: locks.Lease
    began: float
    meter: Meter = field(default_factory=Meter)
    windows_of: Callable[[WindowReader], WindowsOf] | None = None
    new_dead: int = 0
    lost: frozenset[WindowKey] = frozenset()
    ledger: Ledger = field(init=False)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.sink.prepare(self.plan)
        self.ledger = Ledger(self.storage)
        self.tally = Tally(self.plan, self.listener, self.meter, self.began)
        self.storage.drop_scratch(lambda: locks.live_owners(self.storage))

    def run(self, mine: Sequence[Slice], folders: Sequence[ModelFolder] | None) -> Summary:
        """:raises EmbedctlError: what must stop the run; what was committed stays."""
        self._adopt({s.index for s in mine})
        self.tally.begin(self.ledger.contents)
        missing = set(ending.incomplete_slices(self.plan, self.ledger.contents))
        todo = [s for s in mine if s.index in missing]
        if todo:
            self._encode(todo, folders)
        return self._finish()

    def _adopt(self, mine: set[int]) -> None:
        """Bring the ledger to what the sink really holds."""
        reconciled = self.sink.reconcile(ending.live_records(self.ledger.contents))
        adopted = [r for r in reconciled.adopted if r.key.slice in mine]
        if adopted:
            self.ledger.append(*adopted)
            self.listener.note(f"found {len(adopted)} windows written but not yet in the ledger; adopted them")
        # Points of earlier generations that this one has overwritten are not lost.
        lost = [r for r in reconciled.lost if not self.plan.is_sync or r.key.generation == self.plan.generation]
        if lost:
            names = ", ".join(str(r.part) for r in lost[:3])
            self.listener.note(f"{len(lost)} committed parts are gone ({names}); their rows are done again")
            if ending.is_finalised(self.plan, self.ledger.contents):
                ending.reopen(self.plan, self.ledger)
            self.ledger.forget(lost)
            self.lost = frozenset(r.key for r in lost)
        if len(self.ledger.contents.windows) > COMPACT_AT:
            self.ledger.compact()

    def _encode(self, todo: Sequence[Slice], folders: Sequence[ModelFolder] | None) -> None:
        workers = 1 if self.plan.is_stream or self.windows_of else min(crew.count(self.spec, self.plan), len(todo))
        if workers > 1:
            crew.run(self, [s.index for s in todo], workers)
            self.ledger = Ledger(self.storage)
            self.new_dead = max(self.new_dead, ending.totals(self.ledger.contents).dead - self.tally.resumed.dead)
            return
        done = done_windows(self.plan, self.ledger)
        encoding = Encoding(
            spec=self.spec,
            plan=self.plan,
            storage=self.storage,
            sink=self.sink,
            ledger=self.ledger,
            listener=self.listener,
            halt=self.halt,
            meter=self.meter,
            check_lease=self.lease.check,
            on_batch=self._encoded,
            on_commit=self.committed,
            dead_before=lambda: self.tally.rows.dead,
            windows_of=self.windows_of,
        )
        encoding.run([(s, done.get(s.index, {})) for s in todo], folders)

    def _encoded(self, batch: Batch) -> None:
        self.tally.encoded(batch.num_tokens, len(batch.units))

    def committed(self, record: WindowRecord, dead: tuple[DeadRow, ...]) -> None:
        """Count a committed window; its dead rows are news."""
        self.new_dead += len(dead)
        self.tally.committed(record)
        limit_s = self.spec.time_limit_s
        if limit_s is not None and time.monotonic() - self.began > limit_s:
            raise LimitReached(
                f"{self.storage.uri}: --time-limit {self.spec.time_limit} is over, {self.tally.rows.read:,} rows in",
                hint="the same command goes on from here",
            )

    def _finish(self) -> Summary:
        ledger = Ledger(self.storage)
        if not ending.is_complete(self.plan, ledger.contents):
            return self._summary(ledger, "shard done")
        limit, share = self.spec.dead_limit()
        rows = ending.totals(ledger.contents)
        allowed = limit if share is None else share * rows.read
        if allowed is not None and rows.dead > allowed:  # a worker or a shard counts only its own
            raise too_many(rows.dead, str(self.spec.max_dead), self.storage.uri)
        with locks.lease(self.storage, names=["finalise"], wait=True, listener=self.listener):
            ledger = Ledger(self.storage)
            if ending.is_finalised(self.plan, ledger.contents):
                return self._summary(ledger, "done" if self.tally.tokens else "already done")
            before = ending.totals(ledger.contents).dead - self.new_dead if self._was_told(ledger) else 0
            self.new_dead = ending.finalise(self.plan, self.storage, ledger, self.sink).dead - before
        return self._summary(ledger, "done")

    def _was_told(self, ledger: Ledger) -> bool:
        """Whether an earlier run ended well, and so told of its letters; their file remembers it without a ledger.

        Letters of a run that was killed are news, whichever run wrote them.
        """
        ended = self.plan.generation > 1 or ending.rounds(self.plan, ledger.contents, ending.FINALISED)
        return bool(ended) or self.storage.read(dead.MERGED) is not None

    def _summary(self, ledger: Ledger, status: str) -> Summary:
        counted = 0 if self.spec.max_dead is not None else self.new_dead
        return summary_of(
            self.plan,
            self.storage,
            ledger,
            self.meter,
            self.began,
            new_dead=counted,
            run_tokens=self.tally.tokens,
            status=status,
        )


def done_windows(plan: Plan, ledger: Ledger) -> Mapping[int, Mapping[int, WindowRecord]]:
    """Committed windows of the plan's generation: slice -> number -> record."""
    done: dict[int, dict[int, WindowRecord]] = {}
    for record in ledger.contents.of_generation(plan.generation):
        done.setdefault(record.key.slice, {})[record.key.window] = record
    return done
