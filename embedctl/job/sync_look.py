"""What a sync would do: the first pass over the corpus, its guards, and the generation that follows from it.

Enters: the last plan and the files as they are now. Leaves: a `Look`; once it is published, the next plan, whose slices
are cut from the list of changed rows. Refused: too many deletions, too few rows, ids twice where that is an error.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embedctl import registry
from embedctl.errors import GuardRefused
from embedctl.events import Listener, Progress
from embedctl.job import wiring
from embedctl.job.sync_scan import KEPT, REPLACED, UNREAD, UNSEEN, Books, Scan
from embedctl.job.sync_schema import schema_of
from embedctl.job.sync_state import known_dead, letters_of, state_of, unread_files
from embedctl.job.sync_watermark import Watermark
from embedctl.ledger.rows_state import RowsState
from embedctl.ledger.segments import Contents
from embedctl.plan import Plan
from embedctl.records import RowBlock, SourceFile
from embedctl.sinks.base import Reusable, Sink
from embedctl.sources import changes
from embedctl.sources.changes import ENCODE, REUSE, ChangeWriter
from embedctl.sources.files import snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage

EXAMPLES = 5
PROGRESS_EVERY_S = 0.5


@dataclass(slots=True)
class Discard:
    """The writer of a dry run: gives names and keeps nothing."""

    numbers: Iterator[int]
    chunks: list[int] = field(default_factory=list)

    def add(
        self, block: RowBlock, rows: np.ndarray, problems: Mapping[int, str], old: np.ndarray | None = None
    ) -> np.ndarray:
        del block, problems, old
        return np.fromiter(itertools.islice(self.numbers, len(rows)), dtype=np.uint64, count=len(rows))

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """plan: the next generation's, its slices not cut yet. counts: rows added, changed, payload, deleted, dead, and
    files read and unread. drops, carried: see `sync_drop`. deleted: numbers of vanished rows."""

    plan: Plan
    state: RowsState
    counts: Mapping[str, int]
    examples: Mapping[str, Sequence[str]]
    books: Mapping[int, Books]
    kinds: Mapping[int, str]
    losers: Mapping[int, str]
    drops: np.ndarray
    carried: np.ndarray
    watermark: list[Any] | None

    @property
    def live(self) -> int:
        """Rows that the destination would hold."""
        return sum(b.unchanged for b in self.books.values()) + sum(
            self.counts[k] for k in ("added", "changed", "payload")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Looker:
    """All that the first pass needs. lost: rows are gone, so that no file's are known to be all there."""

    spec: JobSpec
    last: Plan
    contents: Contents
    sink: Sink
    storage: LocalStorage
    listener: Listener
    halt: Halt
    began: float
    lost: bool
    dry_run: bool

    def look(self, files: Sequence[SourceFile]) -> Look:
        """:raises GuardRefused, PlanMismatch, SourceError: nothing was changed."""
        if not self.dry_run:
            changes.clear(self.storage, self.last.generation + 1)  # what a killed first pass left
        state = state_of(self.last, self.contents, self.sink, self.storage)
        if len(state) and not state.knows_contents:
            self.listener.note("the destination holds no content hashes: this once, every row counts as changed")
        letters = letters_of(self.storage, self.contents)
        unread = unread_files(self.last, files, self.contents, state)
        whole = self.lost or self.last.spec["limit"] is not None
        left = {} if whole else dict(unread.files)
        schema, all_ = schema_of(
            self.last, [f for f in files if f.index not in left.values()], files, self.spec.updated_column
        )
        left = {} if all_ else left
        plan = self._next_plan(files, schema)
        numbers = itertools.count()
        encode, reuse = self._writer(plan, ENCODE, numbers), self._writer(plan, REUSE, numbers)
        watermark = self._watermark(state, plan)
        scan = Scan(
            plan=plan,
            reader=WindowReader(plan, wiring.row_rules(plan), wiring.blocks_of(plan)),
            state=state,
            encode=encode,
            reuse=reuse if isinstance(self.sink, Reusable) and _can_reuse(plan) else None,
            letters=known_dead(letters, self.last, files),
            newer=watermark.newer if watermark is not None else None,
            limit=plan.spec["limit"],
        )
        scan.leave_unread(left, unread.skipped)
        self._read([f for f in files if f.index not in left.values()], scan)
        encode.close(), reuse.close()
        told = watermark.to_json() if watermark is not None else state.details.get("watermark")
        return self._summed(
            scan, plan, {**dict.fromkeys(encode.chunks, ENCODE), **dict.fromkeys(reuse.chunks, REUSE)}, told, len(left)
        )

    def _next_plan(self, files: Sequence[SourceFile], schema: Any) -> Plan:
        last, tuned = self.last, self.spec.of_kind("tuning")
        resolved = {k: v for k in ("batch_tokens", "threads", "device") if (v := tuned[k]) is not None}
        return replace(
            last.with_resolved(resolved),
            generation=last.generation + 1,
            spec={**last.spec, **tuned},
            snapshot=snapshot(files),
            schema=schema,
            inputs=_absolute(self.spec.inputs),
            files=tuple(files),
            slices=(),
            targets=None,
            changes=last.generation + 1,
        )

    def _writer(self, plan: Plan, kind: str, numbers: Iterator[int]) -> Any:
        if self.dry_run:
            return Discard(numbers)
        return ChangeWriter(
            storage=self.storage,
            generation=plan.generation,
            schema=plan.schema,
            kind=kind,
            max_bytes=plan.spec["slice_bytes"],
            numbers=numbers,
        )

    def _watermark(self, state: RowsState, plan: Plan) -> Watermark | None:
        column = self.spec.updated_column
        if column is None or plan.spec["sample"] is not None:
            return None
        return Watermark.since(column, state.details.get("watermark"), plan.schema.field(column).type)

    def _read(self, files: Sequence[SourceFile], scan: Scan) -> None:
        blocks = wiring.blocks_of(scan.plan)
        told = self.began
        for file in files:
            for segment in registry.get("formats", file.format)().segments(file, 1 << 62):
                for block in blocks(file, segment.begin, segment.end, segment.begin):
                    self.halt.check()
                    scan.take(block)
                    if time.monotonic() - told > PROGRESS_EVERY_S:
                        told = time.monotonic()
                        self.listener.progress(self._progress(scan.rows))
                    if scan.is_full:
                        return

    def _progress(self, rows: int) -> Progress:
        return Progress(
            rows=rows, rows_total=None, resumed_rows=0, bytes_read=0, bytes_total=None, tokens=0, dead=0,
            elapsed_s=time.monotonic() - self.began, busy_s={},
        )  # fmt: skip

    def _summed(
        self, scan: Scan, plan: Plan, kinds: dict[int, str], watermark: list[Any] | None, num_unread: int
    ) -> Look:
        counts, losers = dict(scan.found.counts), self._losers(scan, plan)
        counts["added"] -= len(losers)
        counts["dead"] += sum(1 for why in losers.values() if why)
        vanished = np.flatnonzero(scan.status == UNSEEN)
        counts["deleted"] = len(vanished)
        counts["files_read"], counts["files_unread"] = len(plan.files) - num_unread, num_unread
        gone = np.flatnonzero((scan.status == UNSEEN) | (scan.status == REPLACED))
        repeated = [(np.uint64(p) << np.uint64(32)) | np.uint64(r) for p, r in scan.state.repeated]
        drops = np.concatenate([scan.names_of(gone), np.array(repeated, dtype=np.uint64)])
        stands = (scan.status == KEPT) | (scan.status == UNREAD)
        return Look(
            plan=plan,
            state=scan.state,
            counts=counts,
            examples={**scan.found.examples, "deleted": self._ids(scan, vanished[:EXAMPLES])},
            books=scan.books,
            kinds=kinds,
            losers=losers,
            drops=np.sort(drops),
            carried=np.where(stands, scan.file_now, -1).astype(np.int32),
            watermark=watermark,
        )

    def _losers(self, scan: Scan, plan: Plan) -> dict[int, str]:
        """New rows whose id a new row before them has: "" to pass over, or why they are dead."""
        pairs, rule = scan.repeated(), plan.spec["on_duplicate"]
        if not pairs:
            return {}
        names = [name for name, _ in pairs]
        if self.dry_run:
            return dict.fromkeys(names, "duplicate id" if rule == "dead-letter" else "")
        places = changes.files_of(self.storage, plan.generation, [n for pair in pairs for n in pair])
        where = [f"{plan.files[file].uri}:{position}" for file, position in places]
        if rule == "fail":
            raise GuardRefused(
                f"an id stands twice, at {where[1]} and at {where[0]}", hint="keep the first with --on-duplicate first"
            )
        if rule == "dead-letter":
            return {n: f"duplicate id, first at {where[2 * i + 1]}" for i, n in enumerate(names)}
        for file, _ in places[::2]:
            scan.books[file].duplicates += 1
        return dict.fromkeys(names, "")

    def _ids(self, scan: Scan, numbers: np.ndarray) -> list[str]:
        """Ids of old rows, for people."""
        ids = []
        for name in scan.names_of(numbers).tolist():
            place, row = name >> 32, name & 0xFFFFFFFF
            record = self.contents.windows[sorted(self.contents.windows)[place]]
            ids.append(str(self.sink.rows(record)[0][row]))
        return ids


def _can_reuse(plan: Plan) -> bool:
    """Scores are spread over columns of their own, and not read back."""
    return all(output.kind != "score" for output in plan.outputs)


def guard(look: Look, spec: JobSpec) -> None:
    """Before anything is published. :raises GuardRefused: too many rows would go, or too few would stay."""
    deleted, before = look.counts["deleted"], len(look.state)
    text = spec.max_delete
    limit = float(text[:-1]) / 100 * before if text.endswith("%") else int(text)
    if deleted > limit:
        raise GuardRefused(
            f"{deleted:,} of {before:,} rows are not in the corpus any more, above --max-delete {text}",
            hint=f"is the corpus whole? see which with --dry-run; if they should go: --max-delete {deleted}",
        )
    if spec.min_rows is not None and look.live < spec.min_rows:
        raise GuardRefused(
            f"the corpus holds {look.live:,} rows to embed, fewer than --min-rows {spec.min_rows}",
            hint="is the corpus whole? see what would change with --dry-run",
        )


def _absolute(inputs: Sequence[str]) -> tuple[str, ...]:
    import os

    return tuple(map(os.path.abspath, inputs))
