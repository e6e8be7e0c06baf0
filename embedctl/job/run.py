"""`embed`: the one way a job runs, first time, resumed, or already done.

plan (made or found) -> lease on slices -> adopt what the sink holds -> pipeline -> finalise -> summary.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embedctl import plan as plans
from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK, GuardRefused, PlanMismatch, SourceChanged
from embedctl.events import Listener, Progress, Rows, Summary
from embedctl.job import finalise as ending
from embedctl.job import planning, wiring
from embedctl.job.destination import open_destination
from embedctl.job.replay import Replay
from embedctl.job.signals import obeyed
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.models.load import ModelFolder
from embedctl.pipeline import WindowsOf, Worker, run
from embedctl.plan import Plan
from embedctl.records import DeadRow, Slice, SourceFile, WindowKey, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.sinks.parquet import ParquetSink
from embedctl.sources.files import STDIN, check_unchanged, discover, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.commit import Committer
from embedctl.stages.flow import Halt, Meter
from embedctl.stages.windows import WindowReader
from embedctl.storage import STATE, LocalStorage
from embedctl.tokens.pack import padding_of, split_batch

COMPACT_AT = 64


def embed(spec: JobSpec, listener: Listener) -> Summary:
    """Run the job to its end, or to the first error that must stop it.

    :raises EmbedctlError: see errors.py; what was committed stays, and the same command goes on from there.
    """
    began = time.monotonic()
    halt = Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: [held.release() for held in lease]):
        files = discover(spec.inputs, spec.format)
        storage = open_destination(spec)
        with contextlib.ExitStack() as stack:
            plan, folder = _find_or_make(spec, files, storage, listener, halt, stack)
            ledger = Ledger(storage)
            if ending.is_finalised(plan, ledger.contents):
                return summary_of(plan, storage, ledger, Meter(), began, new_dead=0, status="already done")
            mine = [s for s in plan.slices if s.index % spec.num_shards == spec.shard_index]
            lease.append(
                stack.enter_context(
                    locks.lease(
                        storage, slices=[s.index for s in mine], wait=spec.if_locked == "wait", listener=listener
                    )
                )
            )
            job = Job(spec=spec, plan=plan, storage=storage, listener=listener, halt=halt, lease=lease[0], began=began)
            stack.callback(job.sink.close)
            return job.run(mine, folder)


def _find_or_make(
    spec: JobSpec, files: Sequence[SourceFile], storage: LocalStorage, listener: Listener, halt: Halt, stack: contextlib.ExitStack
) -> tuple[Plan, ModelFolder | None]:
    """The destination's plan, checked against the spec, or a new one, published while nobody else can."""
    plan = plans.load(storage)
    if plan is None:
        made = planning.draft(spec, files)
        plan = made.plan
        stack.enter_context(
            locks.lease(storage, names=["plan"], wait=spec.if_locked == "wait", listener=listener)
        )
        halt.check()
        found = plans.load(storage)
        if found is None:
            if spec.vector_type in ("int8", "uint8") and not _is_stream(plan):
                plan = replace(plan, int8_ranges=planning.int8_ranges(plan, made.folder))
            storage.drop_scratch(locks.live_owners(storage))
            plans.publish(storage, plan)
            return plan, made.folder
        plan = found
    first = plans.load(storage, 1) or plan
    plans.check(first, spec, storage.uri)
    if not ending.is_finalised(plan, Ledger(storage).contents) and plan.generation > 1:
        raise PlanMismatch(
            f"{storage.uri}: a retry was begun and not finished", hint=f"finish it with: embedctl retry {storage.uri}"
        )
    _check_snapshot(plan, files, storage)
    return plan.moved_to(files), None


def _check_snapshot(plan: Plan, files: Sequence[SourceFile], storage: LocalStorage) -> None:
    if snapshot(files) == plan.snapshot:
        return
    planned, found = {f.uri: f for f in plan.files}, {f.uri: f for f in files}
    changes = [
        f"{len(names)} {what} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in (
            ("new", found.keys() - planned.keys()),
            ("gone", planned.keys() - found.keys()),
            (
                "changed",
                {
                    u
                    for u in found.keys() & planned.keys()
                    if (found[u].size_bytes, found[u].version) != (planned[u].size_bytes, planned[u].version)
                },
            ),
        )
        if names
    ]
    raise SourceChanged(
        f"{storage.uri} was planned over other files: {'; '.join(changes)}",
        hint="put the files back as they were, or start a new job with another --to",
    )


def _is_stream(plan: Plan) -> bool:
    return any(f.path == STDIN for f in plan.files)


@dataclass(slots=True)
class Job:
    """A run over some slices of a plan, under a lease."""

    spec: JobSpec
    plan: Plan
    storage: LocalStorage
    listener: Listener
    halt: Halt
    lease: locks.Lease
    began: float
    meter: Meter = field(default_factory=Meter)
    windows_of: Callable[[WindowReader], WindowsOf] | None = None
    new_dead: int = 0
    resumed_rows: int = 0
    sink: Sink = field(init=False)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.sink = ParquetSink(self.storage)
        self.sink.prepare(self.plan)
        self.ledger = Ledger(self.storage)
        self.storage.drop_scratch(locks.live_owners(self.storage))

    def run(self, mine: Sequence[Slice], folder: ModelFolder | None) -> Summary:
        self._adopt({s.index for s in mine})
        done = self._done()
        self.resumed_rows = sum(b.read for r in self.ledger.contents.windows.values() for b in r.books)
        todo = [s for s in mine if s.index in set(ending.incomplete_slices(self.plan, self.ledger.contents))]
        if todo:
            self._encode(todo, done, folder)
        return self._finish()

    def _adopt(self, mine: set[int]) -> None:
        reconciled = self.sink.reconcile(ending.live_records(self.ledger.contents))
        adopted = [r for r in reconciled.adopted if r.key.slice in mine]
        if adopted:
            self.ledger.append(*adopted)
            self.listener.note(f"found {len(adopted)} windows written but not yet in the ledger; adopted them")
        if reconciled.lost:
            names = ", ".join(str(r.part) for r in reconciled.lost[:3])
            self.listener.note(f"{len(reconciled.lost)} committed parts are gone ({names}); their rows are done again")
            for record in reconciled.lost:
                del self.ledger.contents.windows[record.key]
        if len(self.ledger.contents.windows) > COMPACT_AT:
            self.ledger.compact()

    def _done(self) -> dict[int, dict[int, WindowRecord]]:
        done: dict[int, dict[int, WindowRecord]] = {}
        for record in self.ledger.contents.of_generation(self.plan.generation):
            done.setdefault(record.key.slice, {})[record.key.window] = record
        return done

    def _encode(
        self, todo: Sequence[Slice], done: Mapping[int, Mapping[int, WindowRecord]], folder: ModelFolder | None
    ) -> None:
        folder = folder or planning.open_model(self.spec)
        self._check_model(folder)
        encoder = wiring.open_planned_encoder(folder, self.plan.spec, self.plan.resolved)
        self.halt.check()
        tokenizer = wiring.open_tokenizer(folder, self.plan.resolved, self.plan.spec)
        replay = Replay(done.get(0, {}).values()) if _is_stream(self.plan) and self.plan.targets is None else None
        blocks = wiring.blocks_of(self.plan)
        reader = WindowReader(
            self.plan,
            wiring.row_rules(self.plan),
            replay.watch(blocks) if replay else blocks,
            replay.digest if replay else None,
        )
        worker = Worker(
            windows=(self.windows_of or _whole_slices)(reader),
            text=wiring.text_rules(self.plan, tokenizer, encoder.padded),
            encoder=encoder,
            split=split_batch,
            padded=padding_of if encoder.padded else lambda batch: batch.num_tokens,
            committer=Committer(
                plan=self.plan,
                storage=self.storage,
                sink=self.sink,
                ledger=self.ledger,
                rules=wiring.vector_rules(self.plan, self._ranges),
                check_source=self._check_source,
                check_lease=self.lease.check,
            ),
            budget=self._budget,
            halt=self.halt,
            meter=self.meter,
            on_commit=self._committed,
        )
        try:
            run(worker, [(s, done.get(s.index, {})) for s in todo])
        finally:
            encoder.close()

    def _check_model(self, folder: ModelFolder) -> None:
        if folder.fingerprint() != self.plan.model["fingerprint"]:
            raise PlanMismatch(
                f"{self.spec.model}: its weights or tokenizer are not the ones {self.storage.uri} was begun with",
                hint="bring the old model back, or start a new job with another --to",
            )

    def _check_source(self, files: Sequence[int]) -> None:
        for index in files:
            check_unchanged(self.plan.files[index])

    def _ranges(self, vectors: np.ndarray) -> np.ndarray:
        """int8 ranges: the plan's; for standard input the first window's, remembered in the ledger."""
        if self.plan.int8_ranges is not None:
            return np.array(self.plan.int8_ranges, dtype=np.float32)
        for event in self.ledger.contents.events:
            if event["kind"] == "int8_ranges":
                return np.array(event["ranges"], dtype=np.float32)
        from embedctl.heads.precision import calibrate

        ranges: np.ndarray = calibrate(vectors)
        self.ledger.append({"kind": "int8_ranges", "ranges": ranges.tolist()})
        return ranges

    def _budget(self, key: WindowKey) -> int:
        """Tokens a batch for this window: the plan's, or what an earlier out-of-memory left."""
        place = [key.generation, key.slice, key.window]
        lowered = [e["batch_tokens"] for e in self.ledger.contents.events if e["kind"] == "budget" and e["after"] < place]
        return min([self.plan.resolved["batch_tokens"], *lowered])

    def _committed(self, record: WindowRecord, dead: tuple[DeadRow, ...]) -> None:
        self.new_dead += len(dead)
        if dead and self.spec.on_error == "fail":
            first = dead[0]
            raise GuardRefused(
                f"{self.plan.files[first.file].uri}:{first.position}: {first.reason}",
                hint="go past bad rows with --on-error dead-letter",
            )
        limit, _ = self.spec.dead_limit()
        if limit is not None and self._dead_total() > limit:
            raise self._too_many(f"{limit}")
        self.listener.progress(self._progress())

    def _dead_total(self) -> int:
        return ending.totals(self.ledger.contents).dead

    def _too_many(self, limit: str) -> GuardRefused:
        return GuardRefused(
            f"{self._dead_total()} rows are dead, more than --max-dead {limit}",
            hint=f"see them with: embedctl status {self.storage.uri} --dead",
        )

    def _progress(self) -> Progress:
        rows = ending.totals(self.ledger.contents)
        records = self.ledger.contents.windows.values()
        return Progress(
            rows=rows.read,
            rows_total=sum(ending.planned_rows(self.plan).values()) or None,
            resumed_rows=self.resumed_rows,
            bytes_read=0,
            bytes_total=None,
            tokens=sum(r.tokens for r in records),
            dead=rows.dead,
            elapsed_s=time.monotonic() - self.began,
            busy_s=dict(self.meter.busy_s),
        )

    def _finish(self) -> Summary:
        fresh = Ledger(self.storage)
        if not ending.is_complete(self.plan, fresh.contents):
            return summary_of(
                self.plan, self.storage, fresh, self.meter, self.began, new_dead=self.new_dead, status="shard done"
            )
        with locks.lease(self.storage, names=["finalise"], wait=True, listener=self.listener):
            if ending.is_finalised(self.plan, Ledger(self.storage).contents):
                return summary_of(self.plan, self.storage, Ledger(self.storage), self.meter, self.began, new_dead=self.new_dead)
            before = ending.totals(fresh.contents).dead
            rows = ending.finalise(self.plan, self.storage, fresh, self.sink)
            self.new_dead += rows.dead - before
        _, share = self.spec.dead_limit()
        if share is not None and rows.dead > share * rows.read:
            raise self._too_many(str(self.spec.max_dead))
        explicit = self.spec.max_dead is not None
        return summary_of(
            self.plan, self.storage, fresh, self.meter, self.began, new_dead=0 if explicit else self.new_dead
        )


def summary_of(
    plan: Plan, storage: LocalStorage, ledger: Ledger, meter: Meter, began: float, *, new_dead: int, status: str = "done"
) -> Summary:
    records = ending.live_records(ledger.contents)
    rows = ending.totals(ledger.contents)
    tokens, padded = sum(r.tokens for r in records), sum(r.padded_tokens for r in records)
    details: dict[str, Any] = {"model": plan.model["name"], "dim": plan.model["dim"], "generation": plan.generation}
    if rows.dead:
        details["dead_letters"] = f"{storage.uri}/{STATE}/dead_letters.jsonl"
    return Summary(
        status=status,
        exit_code=EXIT_NEW_DEAD if new_dead else EXIT_OK,
        destination=storage.uri,
        recipe=plan.recipe,
        rows=rows,
        units=sum(r.units for r in records),
        tokens=tokens,
        truncated=sum(r.truncated for r in records),
        padding=max(0.0, padded / tokens - 1) if tokens else 0.0,
        seconds={"total": time.monotonic() - began, **meter.busy_s},
        details=details,
    )


def _whole_slices(reader: WindowReader) -> WindowsOf:
    return reader.windows
