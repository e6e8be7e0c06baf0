"""Several worker processes on one machine, one a device where there are several: each runs its own pipeline.

The parent holds the lease and hears of every commit; workers write their own ledger segments. Same plan, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedctl import plan as plans
from embedctl.codec import record_from_json, record_to_json
from embedctl.events import Silent
from embedctl.job.destination import open_destination
from embedctl.job.encoding import Encoding, too_many
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import Batch, DeadRow, Slice, WindowKey, WindowRecord
from embedctl.scale.workers import Report, share
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter

if TYPE_CHECKING:
    from embedctl.job.execution import Execution


def count(spec: JobSpec, plan: Plan) -> int:
    """Worker processes: as asked, else one for each CUDA device when the plan is for `cuda`, else one."""
    if spec.workers is not None:
        return spec.workers
    return _cuda_devices() if plan.resolved["device"] == "cuda" and spec.device in (None, "cuda", "auto") else 1


def run(execution: Execution, tasks: Sequence[int], workers: int) -> None:
    """Commit the slices `tasks`. :raises EmbedctlError: the first failure of any worker."""
    limit, _ = execution.spec.dead_limit()

    def heard(_number: int, report: Mapping[str, Any]) -> int | None:
        if report["kind"] == "batch":
            execution.tally.encoded(report["tokens"], report["sequences"])
            return None
        if report["kind"] == "finished":
            return int(report["slice"])
        record = record_from_json(report["record"])
        for stage, seconds in report["busy_s"].items():
            execution.meter.busy_s[stage] += seconds
        execution.committed(record, tuple(report["dead"]))
        if limit is not None and execution.tally.rows.dead > limit:  # each worker counts only its own
            raise too_many(execution.tally.rows.dead, f"{limit}", execution.storage.uri)
        return None

    work = _Work(
        spec=execution.spec,
        generation=execution.plan.generation,
        nonce=execution.lease.nonce,
        owner=execution.storage.owner,
        workers=workers,
        lost=execution.lost,
        died=execution.tally.rows.dead,
    )
    share(tasks, workers, work, halt=execution.halt, on_report=heard, note=execution.listener.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a worker process is told; picklable. `owner`: the parent's, under whose lease the worker's scratch is safe.
    `lost`: windows that the ledger still names and the destination no longer holds. `died`: rows dead before."""

    spec: JobSpec
    generation: int
    nonce: str
    owner: str
    workers: int
    lost: frozenset[WindowKey]
    died: int

    def __call__(self, number: int, tasks: Iterator[int], report: Report, halt: Halt) -> None:
        destination = open_destination(self.spec)
        storage = destination.storage
        storage.owner = f"{self.owner}.{number}"
        plan = plans.load(storage, self.generation)
        assert plan is not None
        plan = self._for_worker(plan, number)
        destination.sink.prepare(plan)
        telling, known = _Telling(report=report, died=self.died), Ledger(storage)

        def dealt() -> Iterator[tuple[Slice, Mapping[int, WindowRecord]]]:
            for index in tasks:
                done = self._done(known, index)
                if not telling.begin(index, done):
                    yield plan.slices[index], done

        encoding = Encoding(
            spec=self.spec,
            plan=plan,
            storage=storage,
            sink=destination.sink,
            ledger=Ledger(storage),
            listener=Silent(),
            halt=halt,
            meter=telling.meter,
            check_lease=lambda: locks.check(storage, self.nonce),
            on_batch=telling.batch,
            on_commit=telling.commit,
            dead_before=lambda: telling.died,
        )
        encoding.run(dealt())
        storage.drop_own_scratch()

    def _done(self, known: Ledger, index: int) -> dict[int, WindowRecord]:
        """What is committed of a dealt slice by now, perhaps by a worker that died."""
        known.refresh()
        place = (self.generation, index)
        here = {k: r for k, r in known.contents.windows.items() if (k.generation, k.slice) == place}
        return {k.window: r for k, r in here.items() if k not in self.lost}

    def _for_worker(self, plan: Plan, number: int) -> Plan:
        """The plan with this worker's device, and its share of the threads."""
        changes: dict[str, Any] = {"threads": max(1, plan.resolved["threads"] // self.workers)}
        devices = _cuda_devices() if plan.resolved["device"] == "cuda" else 0
        if devices:
            changes["device"] = f"cuda:{number % devices}"
        return plan.with_resolved(changes)


@dataclass(slots=True, kw_only=True)
class _Telling:
    """What a worker reports to the parent. died: rows dead so far. A slice is told finished with its last window."""

    report: Report
    died: int
    meter: Meter = field(default_factory=Meter)
    _busy_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(Meter.STAGES, 0.0))
    _done: dict[int, dict[int, WindowRecord]] = field(default_factory=dict)

    def begin(self, index: int, done: Mapping[int, WindowRecord]) -> bool:
        """A slice and what is committed of it; whether that is all."""
        self._done[index] = dict(done)
        return self._told_whole(index)

    def batch(self, batch: Batch) -> None:
        self.report({"kind": "batch", "tokens": batch.num_tokens, "sequences": len(batch.units)})

    def commit(self, record: WindowRecord, dead: tuple[DeadRow, ...]) -> None:
        self.died += len(dead)
        busy = {stage: seconds - self._busy_s[stage] for stage, seconds in self.meter.busy_s.items()}
        self._busy_s.update(self.meter.busy_s)
        self.report({"kind": "commit", "record": record_to_json(record), "dead": list(dead), "busy_s": busy})
        self._done[record.key.slice][record.key.window] = record
        self._told_whole(record.key.slice)

    def _told_whole(self, index: int) -> bool:
        whole = _is_whole(self._done[index])
        if whole:
            self.report({"kind": "finished", "slice": index})
        return whole


def _is_whole(done: Mapping[int, WindowRecord]) -> bool:
    """Whether the committed windows of a slice, by number, are all there are."""
    return any(record.last and len(done) == number + 1 for number, record in done.items())


def _cuda_devices() -> int:
    from embedctl.encoders.open import cuda_devices

    return cuda_devices()
