"""`retry`: the dead rows once more, as a new generation that moves them from dead to written.

Rows are found again by position where their file is unchanged, by id where it was mended, by row number where it has
neither changed order nor ids; standard input's from the raw text the letters keep. A row that is not found stays dead.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl import plan as plans
from embedctl import registry
from embedctl.codec import dead_from_json
from embedctl.errors import BooksError, PlanMismatch, SourceChanged
from embedctl.events import Listener, Summary
from embedctl.job import adopt
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination, open_existing
from embedctl.job.execution import Execution
from embedctl.job.signals import obeyed
from embedctl.job.summary import summary_of
from embedctl.ledger import dead, locks
from embedctl.ledger.segments import Ledger
from embedctl.pipeline import WindowsOf
from embedctl.plan import Plan
from embedctl.records import DeadRow, RowBlock, Segment, Slice, SourceFile, Window, WindowKey, WindowRecord
from embedctl.sources.files import STDIN, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage

ROW_NUMBERED = frozenset({"parquet", "arrow"})


def retry(destination: str, overrides: Mapping[str, Any], listener: Listener) -> Summary:
    """Embed the dead letters of a finished job again. Nothing dead: nothing is done.

    :raises PlanMismatch: the job is not finished. :raises SourceChanged: a file with dead rows is gone.
    """
    began, halt = time.monotonic(), Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)), contextlib.ExitStack() as stack:
        last, found = _opened(destination, overrides.get("state"))
        storage, sink = found.storage, found.sink
        stack.callback(storage.drop_own_scratch)
        stack.callback(sink.close)
        spec = JobSpec(**{**last.asked(), **overrides, "inputs": last.inputs, "to": destination})
        lease.append(
            stack.enter_context(
                locks.lease(
                    storage,
                    names=["plan"],
                    slices=[s.index for s in last.slices],
                    wait=spec.if_locked == "wait",
                    listener=listener,
                )
            )
        )
        again = _again(last, spec, found, Ledger(storage))
        if again is None:
            return summary_of(last, storage, Ledger(storage), Meter(), began, new_dead=0, status="nothing dead")
        execution = Execution(
            spec=spec,
            plan=again.plan,
            storage=storage,
            sink=sink,
            listener=listener,
            halt=halt,
            lease=lease[0],
            began=began,
            windows_of=again.windows_of,
        )
        dead_slices = {r.key.slice for r in again.standing}
        return replace(execution.run([s for s in again.plan.slices if s.index in dead_slices], None), exit_code=0)


def _opened(destination: str, state: str | None) -> tuple[Plan, Destination]:
    last, found = open_existing(JobSpec(to=destination, state=state))
    if last.is_loaded:
        raise PlanMismatch(
            f"{found.uri}: its vectors were loaded, not embedded",
            hint="mend the tables, then load them again with another --to, or with --swap-alias",
        )
    return last, found


def _again(last: Plan, spec: JobSpec, found: Destination, ledger: Ledger) -> _Again | None:
    """What is to be tried again, its plan published; None when nothing is dead.

    :raises PlanMismatch, BooksError: the job is not finished, or has lost parts.
    """
    embed = f"embedctl embed {' '.join(last.inputs)} --to {found.uri}"
    finished = ending.is_finalised(last, ledger.contents)
    if not finished and last.is_sync:
        sync = f"embedctl sync {' '.join(last.inputs)} --to {found.uri}"
        raise PlanMismatch(f"{found.uri}: a sync was begun and not finished; a retry comes after it", hint=sync)
    if not finished and last.targets is None:
        raise PlanMismatch(f"{found.uri}: the job is not finished; a retry comes after it", hint=embed)
    if finished:
        adopt.refuse_damaged(found.storage, last, ledger.contents)
    standing = ending.current_dead(_before(ledger, last, finished))
    plan = last
    if finished:
        if not standing:
            return None
        if ending.has_lost(last, found.sink, ledger.contents):
            raise BooksError(f"{found.uri}: parts are gone; they come before the dead letters", hint=embed)
        plan = _next_plan(last, spec, standing)
        found.sink.before_change(last, ending.live_records(ledger.contents))
        plans.publish(found.storage, plan)
    before = plans.load(found.storage, plan.generation - 1)
    assert before is not None
    letters = _letters(found.storage, plan, standing)
    return _Again(plan=plan, before=before, standing=standing, letters=letters, storage=found.storage)


def _before(ledger: Ledger, plan: Plan, finished: bool) -> Any:
    """The ledger as it was before an unfinished retry began, so that its resume goes over the same rows."""
    if finished:
        return ledger.contents
    contents = type(ledger.contents)()
    contents.events = ledger.contents.events
    contents.windows = {k: r for k, r in ledger.contents.windows.items() if k.generation < plan.generation}
    return contents


def _next_plan(last: Plan, spec: JobSpec, standing: Sequence[WindowRecord]) -> Plan:
    """The next generation over the windows with dead rows; files are taken as they are now."""
    needed = {b.file for r in standing for b in r.books if b.dead}
    files = tuple(_as_now(f) if f.index in needed else f for f in last.files)
    tuned = spec.of_kind("tuning")
    changes = {k: v for k in ("batch_tokens", "threads", "device") if (v := tuned[k]) is not None}
    return replace(
        last.with_resolved(changes),
        generation=last.generation + 1,
        spec={**last.spec, **tuned},
        files=files,
        snapshot=snapshot(files),
        targets=tuple((r.key.slice, r.key.window) for r in standing),
    )


def _as_now(file: SourceFile) -> SourceFile:
    if file.path == STDIN:
        return file
    try:
        found = os.stat(file.path)
    except OSError as exc:
        raise SourceChanged(
            f"{file.uri}: has dead rows, and cannot be read any more: {exc.strerror}", hint=f"bring back {file.path}"
        ) from exc
    return replace(file, size_bytes=found.st_size, version=str(found.st_mtime_ns))


Letters = dict[tuple[int, int], list[DeadRow]]


def _letters(storage: LocalStorage, plan: Plan, standing: Sequence[WindowRecord]) -> Letters:
    by_uri = {f.uri: f.index for f in plan.files}
    out: Letters = defaultdict(list)
    for key, letter in dead.letters(storage, [(r.key, r.revision) for r in standing]):
        out[key.slice, key.window].append(dead_from_json(letter, by_uri[letter["file"]]))
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """The windows of a retry: for each place with dead rows, those rows as they are now. `before`: the last plan."""

    plan: Plan
    before: Plan
    standing: Sequence[WindowRecord]
    letters: Letters
    storage: LocalStorage

    def windows_of(self, reader: WindowReader) -> WindowsOf:
        """What the pipeline asks for."""

        def windows(slice_: Slice, done: Mapping[int, WindowRecord]) -> Iterator[Window]:
            for record in self.standing:
                if record.key.slice == slice_.index and record.key.window not in done:
                    yield self._window(reader, record)

        return windows

    def _window(self, reader: WindowReader, record: WindowRecord) -> Window:
        blocks, missing = [], []
        rows: dict[int, list[DeadRow]] = defaultdict(list)
        for row in self.letters[record.key.slice, record.key.window]:
            rows[row.file].append(row)
        for index, wanted in sorted(rows.items()):
            found, lost = self._find(self.plan.files[index], wanted)
            blocks += found
            missing += lost
        key = WindowKey(generation=self.plan.generation, slice=record.key.slice, window=record.key.window)
        return reader.window_of(record, blocks, missing, key)

    def _find(self, file: SourceFile, wanted: Sequence[DeadRow]) -> tuple[list[RowBlock], list[DeadRow]]:
        if file.path == STDIN:
            return self._from_raw(file, wanted)
        then = self.before.files[file.index]
        unchanged = (file.size_bytes, file.version) == (then.size_bytes, then.version)
        if unchanged or (file.format in ROW_NUMBERED and self.plan.id_column is None):
            places = {row.position: row for row in wanted}
        else:
            places = self._places_by_id(file, wanted)
        blocks = list(_rows_at(self._read(file), file, sorted(places)))
        seen = {int(p) for b in blocks for p in b.positions}
        here = {places[p] for p in seen}
        return blocks, [replace(row, reason=f"{row.reason}; not found again") for row in wanted if row not in here]

    def _places_by_id(self, file: SourceFile, wanted: Sequence[DeadRow]) -> dict[int, DeadRow]:
        by_id = {row.id: row for row in wanted if row.id is not None}
        if self.plan.id_column is None:
            return {}
        places: dict[int, DeadRow] = {}
        numbered = file.format in ROW_NUMBERED
        places |= {row.position: row for row in wanted if row.id is None and numbered}
        for segment in _format(file).segments(file, 1 << 62):
            for block in self._read(file)(segment, None):
                ids = block.columns.column(self.plan.schema.get_field_index(self.plan.id_column)).cast(pa.string())
                for position, id_ in zip(block.positions.tolist(), ids.to_pylist(), strict=True):
                    if id_ in by_id:
                        places.setdefault(position, by_id.pop(id_))
        return places

    def _read(self, file: SourceFile) -> Callable[[Segment, int | None], Iterator[RowBlock]]:
        format_ = _format(file)
        return lambda segment, start: format_.read(file, segment, self.plan.schema, start)

    def _from_raw(self, file: SourceFile, wanted: Sequence[DeadRow]) -> tuple[list[RowBlock], list[DeadRow]]:
        if file.format not in ("jsonl", "text"):
            return [], list(wanted)
        path = Path(self.storage.scratch("retry.raw"))
        path.write_text("".join(f"{row.raw}\n" for row in wanted), encoding="utf-8", errors="backslashreplace")
        raw = replace(file, path=str(path), size_bytes=path.stat().st_size)
        blocks, taken = [], 0
        for block in _format(raw).read(raw, Segment(file=file.index), self.plan.schema, None):
            rows = wanted[taken : taken + len(block.positions)]
            taken += len(block.positions)
            positions = np.array([row.position for row in rows], dtype=np.int64)
            blocks.append(replace(block, positions=positions, raw=[(row.raw or "").encode() for row in rows]))
        return blocks, list(wanted[taken:])


def _format(file: SourceFile) -> Any:
    return registry.get("formats", file.format)()


def _rows_at(
    read: Callable[[Segment, int | None], Iterator[RowBlock]], file: SourceFile, positions: Sequence[int]
) -> Iterator[RowBlock]:
    """The rows at these positions, where there are any, as blocks of only them."""
    if not positions:
        return
    wanted = np.array(positions, dtype=np.int64)
    last = positions[-1] + 1
    segments = _format(file).segments(file, 1 << 62)
    for segment in segments:
        end = last if segment.end is None else min(segment.end, last)
        if segment.begin >= end or file.size_bytes == 0:
            continue
        narrowed = segment if file.compression or file.format in ("csv", "tsv") else replace(segment, end=end)
        for block in read(narrowed, max(segment.begin, positions[0])):
            if int(block.positions[0]) >= last:
                break
            rows = np.flatnonzero(np.isin(block.positions, wanted))
            if len(rows):
                yield _taken(block, rows)


def _taken(block: RowBlock, rows: np.ndarray) -> RowBlock:
    return replace(
        block,
        positions=block.positions[rows],
        columns=block.columns.take(pa.array(rows)),
        errors={new: block.errors[old] for new, old in enumerate(rows.tolist()) if old in block.errors},
        raw=None if block.raw is None else [block.raw[i] for i in rows.tolist()],
    )
