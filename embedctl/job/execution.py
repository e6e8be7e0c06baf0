"""An execution: some slices of a plan, run under a lease, then the generation finished when it was the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from embedctl.encoders.base import Encoder
from embedctl.errors import GuardRefused, PlanMismatch
from embedctl.events import Listener, Progress, Rows, Summary
from embedctl.job import finalise as ending
from embedctl.job import planning, wiring
from embedctl.job.replay import Replay
from embedctl.job.summary import summary_of
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.models.load import ModelFolder
from embedctl.pipeline import WindowsOf, Worker, run
from embedctl.plan import Plan
from embedctl.records import Batch, DeadRow, Segment, Slice, WindowKey, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.sources.files import check_unchanged
from embedctl.spec import JobSpec
from embedctl.stages.commit import Committer
from embedctl.stages.encode import Engine
from embedctl.stages.flow import Halt, Meter
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage
from embedctl.tokens.pack import padding_of, split_batch

COMPACT_AT = 64
PROGRESS_EVERY_S = 0.2


@dataclass(slots=True)
class Execution:
    """A run over some slices of a plan, under a lease."""

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
    resumed: Rows = field(default_factory=Rows)
    rows: Rows = field(default_factory=Rows)
    tokens: int = 0
    _in_hand: int = 0
    _told_at: float = 0.0
    _rows_total: int | None = None
    _bytes_read: int = 0
    _bytes_total: int | None = None
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        if all(f.format in ("jsonl", "text") and not f.compression and f.size_bytes for f in self.plan.files):
            self._bytes_total = sum(f.size_bytes for f in self.plan.files)
        self._rows_total = self._count_rows()
        self.sink.prepare(self.plan)
        self.ledger = Ledger(self.storage)
        self.storage.drop_scratch(locks.live_owners(self.storage))

    def run(self, mine: Sequence[Slice], folder: ModelFolder | None) -> Summary:
        self._adopt({s.index for s in mine})
        done = self._done()
        self.resumed = self.rows = ending.totals(self.ledger.contents)
        self._bytes_read = sum(map(self._bytes_of, self.ledger.contents.windows.values()))
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
        self._note_engine(encoder)
        self.halt.check()
        tokenizer = wiring.open_tokenizer(folder, self.plan.resolved, self.plan.spec)
        replay = Replay(done.get(0, {}).values()) if self.plan.is_stream and self.plan.targets is None else None
        pool = ThreadPoolExecutor(encoder.lanes, thread_name_prefix="encode")
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
            engine=Engine(
                encoder=encoder,
                split=split_batch,
                padded=padding_of if encoder.padded else lambda batch: batch.num_tokens,
                pool=pool,
            ),
            committer=Committer(
                plan=self.plan,
                storage=self.storage,
                sink=self.sink,
                ledger=self.ledger,
                rules=wiring.vector_rules(self.plan, self._ranges),
                check_dead=self._check_dead,
                check_source=self._check_source,
                check_lease=self.lease.check,
            ),
            budget=self._budget,
            halt=self.halt,
            meter=self.meter,
            on_batch=self._tick,
            on_commit=self._committed,
        )
        try:
            run(worker, [(s, done.get(s.index, {})) for s in todo])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            encoder.close()

    def _note_engine(self, encoder: Encoder) -> None:
        """Remember what computes; on a resume say so when it is something else, since bytes may then differ."""
        told = encoder.describe()
        engine = {k: told.get(k) for k in ("engine", "dtype", "device", "attention")}
        known = [e["engine"] for e in self.ledger.contents.events if e["kind"] == "engine"]
        if not known:
            self.ledger.append({"kind": "engine", "engine": engine})
        elif engine not in known:
            self.listener.note(
                f"begun with {_told(known[0])}, going on with {_told(engine)}: vectors agree closely, not to the byte"
            )
        for note in told.get("notes", []):
            self.listener.note(str(note))

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
        self.rows += ending.rows_of(record)
        self._bytes_read += self._bytes_of(record)
        self._in_hand = max(0, self._in_hand - sum(b.read for b in record.books))
        self.listener.progress(self._progress())

    def _check_dead(self, dead: Sequence[DeadRow]) -> None:
        """Before a window is committed, so that the same command is refused again until the rows or the limit change."""
        if dead and self.spec.on_error == "fail":
            raise GuardRefused(
                f"{self.plan.files[dead[0].file].uri}:{dead[0].position}: {dead[0].reason}",
                hint="go past bad rows with --on-error dead-letter",
            )
        limit, _ = self.spec.dead_limit()
        if limit is not None and self.rows.dead + len(dead) > limit:
            raise self._too_many(self.rows.dead + len(dead), f"{limit}")

    def _too_many(self, count: int, limit: str) -> GuardRefused:
        return GuardRefused(
            f"{count} rows are dead, more than --max-dead {limit}",
            hint=f"see those before with: embedctl status {self.storage.uri} --dead; or allow more with --max-dead",
        )

    def _tick(self, batch: Batch) -> None:
        """After every batch: progress between commits, a few times a second."""
        self.tokens += batch.num_tokens
        self._in_hand += len(batch.units)
        if time.monotonic() - self._told_at > PROGRESS_EVERY_S:
            self._told_at = time.monotonic()
            self.listener.progress(self._progress())

    def _count_rows(self) -> int | None:
        """Rows that will be read, where the formats and `--limit` tell."""
        counted = sum(ending.planned_rows(self.plan).values()) or None
        limit = self.plan.spec["limit"]
        if self.plan.spec["sample"] is not None or (limit is None and counted is None):
            return None
        return min(n for n in (counted, limit) if n is not None)

    def _bytes_of(self, record: WindowRecord) -> int:
        """Bytes of line files between the window's ends; meaningless, and unused, for other formats."""
        segments = self.plan.slices[record.key.slice].segments
        begin, end = record.begin, record.end
        if begin.segment == end.segment:
            return end.position - begin.position
        whole = sum(self._length(s) for s in segments[begin.segment : end.segment])
        return whole - (begin.position - segments[begin.segment].begin) + (
            end.position - segments[end.segment].begin if end.segment < len(segments) else 0
        )

    def _length(self, segment: Segment) -> int:
        return (self.plan.files[segment.file].size_bytes if segment.end is None else segment.end) - segment.begin

    def _progress(self) -> Progress:
        return Progress(
            rows=self.rows.read + self._in_hand,
            rows_total=self._rows_total,
            resumed_rows=self.resumed.read,
            bytes_read=self._bytes_read,
            bytes_total=self._bytes_total,
            tokens=self.tokens,
            dead=self.rows.dead,
            elapsed_s=time.monotonic() - self.began,
            busy_s=dict(self.meter.busy_s),
        )

    def _finish(self) -> Summary:
        ledger = Ledger(self.storage)
        if not ending.is_complete(self.plan, ledger.contents):
            return self._summary(ledger, "shard done")
        _, share = self.spec.dead_limit()
        self.rows = ending.totals(ledger.contents)
        if share is not None and self.rows.dead > share * self.rows.read:
            raise self._too_many(self.rows.dead, str(self.spec.max_dead))
        with locks.lease(self.storage, names=["finalise"], wait=True, listener=self.listener):
            ledger = Ledger(self.storage)
            if ending.is_finalised(self.plan, ledger.contents):
                return self._summary(ledger, "already done")
            before = ending.totals(ledger.contents).dead
            self.rows = ending.finalise(self.plan, self.storage, ledger, self.sink)
            self.new_dead += self.rows.dead - before
        return self._summary(ledger, "done")

    def _summary(self, ledger: Ledger, status: str) -> Summary:
        counted = 0 if self.spec.max_dead is not None else self.new_dead
        return summary_of(
            self.plan,
            self.storage,
            ledger,
            self.meter,
            self.began,
            new_dead=counted,
            run_tokens=self.tokens,
            status=status,
        )


def _whole_slices(reader: WindowReader) -> WindowsOf:
    return reader.windows


def _told(engine: Mapping[str, str | None]) -> str:
    return ", ".join(str(v) for v in engine.values() if v)
