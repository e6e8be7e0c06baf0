"""Several worker processes on one machine, one a device where there are several: each runs its own pipeline.

The parent holds the lease and hears of every commit; workers write their own ledger segments. Same plan, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedctl import plan as plans
from embedctl.codec import record_from_json, record_to_json
from embedctl.events import Silent
from embedctl.job.destination import open_destination
from embedctl.job.encoding import Encoding, too_many
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import DeadRow, Slice, WindowKey, WindowRecord
from embedctl.scale.workers import Report, share
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter
from embedctl.storage import LocalStorage

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
        ledger, meter, told = Ledger(storage), Meter(), dict.fromkeys(Meter.STAGES, 0.0)
        died = self.died
        done: dict[int, dict[int, WindowRecord]] = {}

        def dealt() -> Iterator[tuple[Slice, Mapping[int, WindowRecord]]]:
            for index in tasks:
                done[index] = self._done(storage, index)
                if _is_whole(done[index]):
                    report({"kind": "finished", "slice": index})
                else:
                    yield plan.slices[index], dict(done[index])

        def committed(record: WindowRecord, dead: tuple[DeadRow, ...]) -> None:
            nonlocal died
            died += len(dead)
            busy = {s: meter.busy_s[s] - told[s] for s in told}
            told.update(meter.busy_s)
            report({"kind": "commit", "record": record_to_json(record), "dead": list(dead), "busy_s": busy})
            slice_ = done[record.key.slice]
            slice_[record.key.window] = record
            if _is_whole(slice_):
                report({"kind": "finished", "slice": record.key.slice})

        encoding = Encoding(
            spec=self.spec,
            plan=plan,
            storage=storage,
            sink=destination.sink,
            ledger=ledger,
            listener=Silent(),
            halt=halt,
            meter=meter,
            check_lease=lambda: locks.check(storage, self.nonce),
            on_batch=lambda b: report({"kind": "batch", "tokens": b.num_tokens, "sequences": len(b.units)}),
            on_commit=committed,
            dead_before=lambda: died,
        )
        encoding.run(dealt())
        storage.drop_own_scratch()

    def _done(self, storage: LocalStorage, index: int) -> dict[int, WindowRecord]:
        """What is committed of a dealt slice by now, perhaps by a worker that died."""
        records = Ledger(storage).contents.of_generation(self.generation)
        return {r.key.window: r for r in records if r.key.slice == index and r.key not in self.lost}

    def _for_worker(self, plan: Plan, number: int) -> Plan:
        """The plan with this worker's device, and its share of the threads."""
        changes: dict[str, Any] = {"threads": max(1, plan.resolved["threads"] // self.workers)}
        devices = _cuda_devices() if plan.resolved["device"] == "cuda" else 0
        if devices:
            changes["device"] = f"cuda:{number % devices}"
        return plan.with_resolved(changes)


def _is_whole(done: Mapping[int, WindowRecord]) -> bool:
    """Whether the committed windows of a slice, by number, are all there are."""
    return any(record.last and len(done) == number + 1 for number, record in done.items())


def _cuda_devices() -> int:
    from embedctl.encoders.open import cuda_devices

    return cuda_devices()
