"""Source -> windows: reads a slice, decides each row, closes a window at its limits.

Enters: a slice and what of it is committed. Leaves: the windows still to do, in order, each a pure function of the
slice and the plan, whatever was done before. Refuses nothing: a bad row is a dead row; a bad file raises `SourceError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from embedctl.errors import GuardRefused
from embedctl.plan import Plan
from embedctl.records import Cursor, DeadRow, FileBooks, RowBlock, Slice, SourceFile, Window, WindowKey, WindowRecord
from embedctl.stages.hashes import row_hashes

Blocks = Callable[[SourceFile, int, int | None, int], Iterator[RowBlock]]
"""(file, begin, end, start) -> the rows of [begin, end) at or after start."""

_SKIPPED_PER_ROW = 16
"""A window also closes when `--where` has passed over this many times its rows, so that progress is committed."""


def utf8_bytes(text: str) -> int:
    """Of a text as it is stored."""
    return len(text.encode("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """How a row is judged. where and sample give a bool mask; render gives the texts of a file's rows, problem why one
    of them is dead, size its bytes.

    hashed: content hashes are wanted of rows with ids."""

    where: Callable[[pa.RecordBatch], np.ndarray] | None
    sample: Callable[[str, np.ndarray], np.ndarray] | None
    render: Callable[[pa.RecordBatch, SourceFile], Sequence[str | None]]
    problem: Callable[[str | None], str | None]
    on_duplicate: str
    hashed: bool = True
    size: Callable[[str], int] = utf8_bytes


@dataclass(slots=True)
class _Tally:
    read: int = 0
    written: int = 0
    skipped: int = 0
    duplicates: int = 0
    dead: int = 0


@dataclass(slots=True)
class _Open:
    """The window being filled."""

    begin: Cursor
    files: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    kept: list[pa.Table] = field(default_factory=list)
    dead: list[DeadRow] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    books: dict[int, _Tally] = field(default_factory=dict)
    candidates: int = 0
    scanned: int = 0
    text_bytes: int = 0


@dataclass(slots=True)
class Judged:
    """A block with what the rules say of its rows. `taken`: rows that went into the open window, kept cells not yet."""

    order: list[int]
    passes: np.ndarray
    texts: Sequence[str | None]
    ids: list[str | None] | None
    kept: pa.Table
    uri: str
    taken: list[int] = field(default_factory=list)


class WindowReader:
    """Cuts slices into windows. Holds no state between slices; one instance serves one thread."""

    def __init__(self, plan: Plan, rules: RowRules, blocks: Blocks, replay: Callable[[int], str] | None = None) -> None:
        """`replay` tells standard input's rolling hash up to a byte offset."""
        self._plan, self._rules, self._blocks, self._replay = plan, rules, blocks, replay
        self._offset_after = 0
        self._max_rows: int = plan.spec["window_rows"]
        self._first_rows: int = plan.resolved.get("first_window_rows", self._max_rows)
        self._max_bytes: int = plan.spec["window_bytes"]

    def windows(self, slice_: Slice, done: Mapping[int, WindowRecord]) -> Iterator[Window]:
        """The slice's windows that are not in `done` (by number), in order."""
        cursor, number, rows_before = Cursor(segment=0, position=_begin(slice_)), 0, 0
        while True:
            while number in done:
                record = done[number]
                if record.last:
                    return
                cursor, number = record.end, number + 1
                rows_before += sum(b.read - b.skipped for b in record.books)
            for window in self._fill(slice_, cursor, number, rows_before):
                yield window
                number, cursor = number + 1, window.end
                rows_before += sum(b.read - b.skipped for b in window.books)
                if window.last:
                    return
                if number in done:
                    break

    def window_of(
        self, record: WindowRecord, blocks: Iterable[RowBlock], missing: Sequence[DeadRow], number: WindowKey
    ) -> Window:
        """All rows of `blocks` as one window in the place of `record`; `missing` are rows that are no longer there."""
        now = _Open(begin=record.begin)
        for block in blocks:
            judged = self.judge(block)
            for i in judged.order:
                self._add(now, judged, block, i)
            self._settle(now, judged)
        for row in missing:
            tally = now.books.setdefault(row.file, _Tally())
            tally.read += 1
            tally.dead += 1
            now.dead.append(row)
        return self._close(number, now, record.end, last=record.last)

    def _fill(self, slice_: Slice, cursor: Cursor, number: int, rows_before: int) -> Iterator[Window]:
        """Windows from `cursor` to the slice's end. One row of look-ahead tells which window is the last."""
        key = WindowKey(generation=self._plan.generation, slice=slice_.index, window=number)
        now, rows = _Open(begin=cursor), rows_before
        limit = slice_.limit_rows
        for segment, block in self._stream(slice_, cursor):
            judged = self.judge(block)
            for i in judged.order:
                if limit is not None and rows >= limit:
                    break
                if self._is_full(now, key):
                    # The next row's own place: where its block begins depends on where the reading began.
                    end = Cursor(segment=segment, position=int(block.positions[i]))
                    self._settle(now, judged)
                    yield self._close(key, now, end, last=False)
                    key = WindowKey(generation=key.generation, slice=key.slice, window=key.window + 1)
                    now = _Open(begin=end)
                rows += self._add(now, judged, block, i)
            self._settle(now, judged)
            if limit is not None and rows >= limit:
                break
        yield self._close(key, now, Cursor(segment=len(slice_.segments), position=0), last=True)

    def _stream(self, slice_: Slice, cursor: Cursor) -> Iterator[tuple[int, RowBlock]]:
        for number in range(cursor.segment, len(slice_.segments)):
            segment = slice_.segments[number]
            start = cursor.position if number == cursor.segment else segment.begin
            for block in self._blocks(self._plan.files[segment.file], segment.begin, segment.end, start):
                self._offset_after = block.next_position
                yield number, block

    def _is_full(self, now: _Open, key: WindowKey) -> bool:
        max_rows = self._max_rows
        if key.slice == 0:  # the job's first windows grow, so that the encoder has work soon
            max_rows = min(max_rows, self._first_rows << min(key.window, 32))
        return (
            now.candidates >= max_rows
            or now.text_bytes >= self._max_bytes
            or now.scanned >= max_rows * _SKIPPED_PER_ROW
        )

    def judge(self, block: RowBlock) -> Judged:
        """What the rules say of each row of a block; `order` are the rows that `--sample` leaves."""
        n = len(block.positions)
        batch, file = block.columns, self._plan.files[block.file]
        uri = file.uri
        chosen = self._rules.sample(uri, block.positions) if self._rules.sample else np.ones(n, dtype=bool)
        passes = self._rules.where(batch) if self._rules.where else np.ones(n, dtype=bool)
        texts = self._rules.render(batch, file)
        ids = _ids(batch, self._plan.id_column)
        kept = pa.Table.from_batches([batch.select(list(self._plan.keep))])
        return Judged(order=np.flatnonzero(chosen).tolist(), passes=passes, texts=texts, ids=ids, kept=kept, uri=uri)

    def problem(self, judged: Judged, block: RowBlock, i: int) -> str | None:
        """Why row i is dead whatever else the corpus holds; None: it is not."""
        id_ = judged.ids[i] if judged.ids is not None else judged.uri
        return block.errors.get(i) or self._rules.problem(judged.texts[i]) or _id_problem(id_)

    def _add(self, now: _Open, judged: Judged, block: RowBlock, i: int) -> int:
        """Put row i into the window; returns 1 when it counts against limits, 0 when `--where` skipped it."""
        tally = now.books.setdefault(block.file, _Tally())
        tally.read += 1
        now.scanned += 1
        position = int(block.positions[i])
        error = block.errors.get(i)
        if error is None and not judged.passes[i]:
            tally.skipped += 1
            return 0
        now.candidates += 1
        text = judged.texts[i]
        id_ = judged.ids[i] if judged.ids is not None else f"{judged.uri}:{position}"
        reason = self.problem(judged, block, i)
        if reason is None and id_ in now.seen:
            reason = self._duplicate(str(id_), now.seen[str(id_)])
            if reason is None:
                tally.duplicates += 1
                return 1
        if reason is not None:
            raw = block.raw[i].decode("utf-8", "backslashreplace") if block.raw is not None else None
            now.dead.append(DeadRow(file=block.file, position=position, id=id_, reason=reason, raw=raw))
            tally.dead += 1
            return 1
        assert text is not None
        assert id_ is not None
        tally.written += 1
        if judged.ids is not None and self._rules.on_duplicate != "keep":
            now.seen[id_] = (block.file, position)
        now.files.append(block.file)
        now.positions.append(position)
        now.ids.append(id_)
        now.texts.append(text)
        now.text_bytes += self._rules.size(text)
        judged.taken.append(i)
        if block.raw is not None:
            now.raw.append(block.raw[i])
        return 1

    def _duplicate(self, id_: str, first: tuple[int, int]) -> str | None:
        """None: count it; else the reason it is dead. :raises GuardRefused: the user asked to fail."""
        where = f"{self._plan.files[first[0]].uri}:{first[1]}"
        if self._rules.on_duplicate == "fail":
            raise GuardRefused(
                f"id {id_!r} stands twice, first at {where}", hint="keep the first with --on-duplicate first"
            )
        return f"duplicate id {id_!r}, first at {where}" if self._rules.on_duplicate == "dead-letter" else None

    def _settle(self, now: _Open, judged: Judged) -> None:
        """Move the kept cells of the rows taken since the last call from the block to the window."""
        if judged.taken:
            now.kept.append(judged.kept.take(pa.array(judged.taken, pa.int64())))
            judged.taken = []

    def _close(self, key: WindowKey, now: _Open, end: Cursor, *, last: bool) -> Window:
        kept = pa.concat_tables(now.kept) if now.kept else _kept_schema(self._plan).empty_table()
        return Window(
            key=key,
            begin=now.begin,
            end=end,
            last=last,
            files=np.array(now.files, dtype=np.int32),
            positions=np.array(now.positions, dtype=np.int64),
            ids=now.ids,
            texts=now.texts,
            kept=kept,
            dead=tuple(now.dead),
            books=tuple(
                FileBooks(
                    file=f, read=t.read, written=t.written, skipped=t.skipped, duplicates=t.duplicates, dead=t.dead
                )
                for f, t in sorted(now.books.items())
            ),
            raw=now.raw or None,
            hashes=row_hashes(now.texts, kept) if self._plan.id_column and self._rules.hashed else None,
            replay=self._replay(self._offset_after if last else end.position) if self._replay else None,
        )


def _begin(slice_: Slice) -> int:
    return slice_.segments[0].begin if slice_.segments else 0


def _ids(batch: pa.RecordBatch, id_column: str | None) -> list[str | None] | None:
    """Ids as strings; None when rows are named by file and position."""
    if id_column is None:
        return None
    return batch.column(batch.schema.get_field_index(id_column)).cast(pa.string()).to_pylist()


def _kept_schema(plan: Plan) -> pa.Schema:
    return pa.schema([plan.schema.field(name) for name in plan.keep])


def _id_problem(id_: str | None) -> str | None:
    if id_ is None:
        return "id is null"
    return None if id_ else "id is empty"
