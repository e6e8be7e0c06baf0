"""The first pass of a sync: every changed file is read once, each row looked up by its id, and what differs put aside.

Enters: blocks of the files to read, in order, and the state of the rows there are. Leaves: the rows to do, in chunks on
disk; for each old row whether it stands; the books. Nothing a reader can see is touched. First position wins, also over
files that are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from embedctl.errors import GuardRefused
from embedctl.ledger.rows_state import RowsState
from embedctl.plan import Plan
from embedctl.records import RowBlock
from embedctl.sources.changes import ChangeWriter
from embedctl.stages.hashes import id_hashes, row_hashes
from embedctl.stages.windows import Judged, WindowReader

UNSEEN, UNREAD, KEPT, REPLACED = 0, 1, 2, 3
"""What became of an old row: nothing yet; in a file that is not read; the same; replaced by a new one."""
EXAMPLES = 5


@dataclass(slots=True)
class Books:
    """One file's rows that need nothing done. Rows put aside are counted by the windows they end in."""

    unchanged: int = 0
    skipped: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class Found:
    """How many rows are new, changed, only have other columns, or are dead, and a few ids of each."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("added", "changed", "payload", "dead"), 0))
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, ids: list[str]) -> None:
        self.counts[kind] += len(ids)
        known = self.examples.setdefault(kind, [])
        known += ids[: EXAMPLES - len(known)]


@dataclass(slots=True)
class Scan:
    """letters: (file, position) of rows known to be dead in files that did not change. reuse: None where outputs
    cannot be read back. newer: rows whose `--updated-column` says they may have changed."""

    plan: Plan
    reader: WindowReader
    state: RowsState
    encode: ChangeWriter
    reuse: ChangeWriter | None
    letters: Mapping[tuple[int, int], str]
    newer: Callable[[RowBlock], np.ndarray] | None
    limit: int | None
    books: dict[int, Books] = field(default_factory=dict)
    found: Found = field(default_factory=Found)
    rows: int = 0
    _status: np.ndarray = field(init=False)
    _file_now: np.ndarray = field(init=False)
    _new_ids: list[np.ndarray] = field(default_factory=list)
    _new_names: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        # One more than there are rows: what is not found is number -1.
        self._status = np.zeros(len(self.state) + 1, dtype=np.int8)
        self._file_now = np.full(len(self.state) + 1, -1, dtype=np.int32)

    @property
    def status(self) -> np.ndarray:
        """int8, of each old row."""
        return self._status[:-1]

    @property
    def file_now(self) -> np.ndarray:
        """int32, the file in which each old row stands now; -1 where it does not."""
        return self._file_now[:-1]

    @property
    def is_full(self) -> bool:
        """Whether `--limit` is reached."""
        return self.limit is not None and self.rows >= self.limit

    def leave_unread(self, files: Mapping[int, int], skipped: Mapping[int, int]) -> None:
        """Take the rows of these files (number in the state -> now) as they are. skipped: by number now."""
        first = 0
        numbers = np.array(sorted(files), dtype=np.int32)
        now = np.array([files[n] for n in sorted(files)], dtype=np.int32)
        for bucket in self.state.buckets if files else ():
            column = bucket["file"]
            place = np.minimum(np.searchsorted(numbers, column), len(numbers) - 1)
            here = np.flatnonzero(numbers[place] == column)
            self._status[first + here] = UNREAD
            self._file_now[first + here] = now[place[here]]
            first += len(column)
        counts = np.bincount(self.file_now[self.status == UNREAD], minlength=max(now, default=0) + 1)
        for file in now.tolist():
            self.books[file] = Books(unchanged=int(counts[file]), skipped=skipped.get(file, 0))

    def take(self, block: RowBlock) -> None:
        """Look at a block's rows, in the corpus' order. :raises GuardRefused: an id twice where that is an error."""
        books = self.books.setdefault(block.file, Books())
        if self.newer is not None:
            block = self._pass_over_old(block, books)
        judged = self.reader.judge(block)
        rows, problems = self._sorted_out(block, judged, books)
        ids = [str((judged.ids or ())[i]) for i in rows.tolist()]
        hashed = id_hashes(ids)
        at = self.state.find(hashed)
        first = self._claims(at, block.file)
        old = (at >= 0) & first
        again = (at >= 0) & ~first
        self._twice(block, rows[again], ids, again, books, problems)
        same_text, same_kept = self._compare(judged, rows, at, old)
        unchanged, payload = old & same_text & same_kept, old & same_text & ~same_kept
        changed = old & ~same_text
        self._status[at[unchanged]] = KEPT
        self._status[at[old & ~unchanged]] = REPLACED
        self._file_now[at[old]] = block.file
        books.unchanged += int(unchanged.sum())
        new = at < 0
        for kind, mask in (("added", new), ("changed", changed), ("payload", payload)):
            if mask.any():
                self.found.add(kind, [ids[i] for i in np.flatnonzero(mask).tolist()])
        if self.reuse is None:
            changed, payload = changed | payload, np.zeros_like(payload)
        self._put_aside(block, rows, new | changed, problems, hashed, new)
        if payload.any() and self.reuse is not None:
            self.reuse.add(block, rows[payload], {}, self.names_of(at[payload]))

    def names_of(self, numbers: np.ndarray) -> np.ndarray:
        """uint64: place << 32 | row of old rows."""
        place = self.state.take("place", numbers).astype(np.uint64)
        names: np.ndarray = (place << np.uint64(32)) | self.state.take("row", numbers)
        return names

    def repeated(self) -> list[tuple[int, int]]:
        """(name of a new row whose id a new row before it has, name of that one)."""
        if not self._new_ids:
            return []
        ids, names = np.concatenate(self._new_ids), np.concatenate(self._new_names)
        order = np.lexsort((names, ids[:, 1], ids[:, 0]))
        ids, names = ids[order], names[order]
        same = np.concatenate([[False], (ids[1:] == ids[:-1]).all(axis=1)])
        leader = np.maximum.accumulate(np.where(same, 0, np.arange(len(ids))))
        return [(int(names[i]), int(names[leader[i]])) for i in np.flatnonzero(same).tolist()]

    def _sorted_out(self, block: RowBlock, judged: Judged, books: Books) -> tuple[np.ndarray, dict[int, str]]:
        """Rows that live, int64, and why others are dead; those that `--where` passes over are counted."""
        rows: list[int] = []
        problems: dict[int, str] = {}
        known, passes = self.letters, judged.passes.tolist()
        problem, errors = self.reader.problem, block.errors
        for i in judged.order:
            if self.limit is not None and self.is_full:
                break
            if not passes[i] and i not in errors:
                books.skipped += 1
                continue
            self.rows += 1
            why = problem(judged, block, i)
            if known:
                why = why or known.get((block.file, int(block.positions[i])))
            if why is None:
                rows.append(i)
            else:
                problems[i] = why
        if problems:
            ids = judged.ids or ()
            self.found.add("dead", [str(ids[i]) for i in problems])
        return np.array(rows, dtype=np.int64), problems

    def _claims(self, at: np.ndarray, file: int) -> np.ndarray:
        """bool: whether a row is the first of its id. One that comes before an unread file's takes its place."""
        first = np.zeros(len(at), dtype=bool)
        _, leaders = np.unique(at, return_index=True)
        first[leaders] = True
        known = at >= 0
        status, holder = self._status[at], self._file_now[at]
        before = (status == UNREAD) & (holder > file)
        for loser in holder[first & known & before].tolist():
            self.books[loser].unchanged -= 1
            self.books[loser].duplicates += 1
        claimed: np.ndarray = first & (~known | (status == UNSEEN) | before)
        return claimed

    def _twice(
        self,
        block: RowBlock,
        rows: np.ndarray,
        ids: list[str],
        again: np.ndarray,
        books: Books,
        problems: dict[int, str],
    ) -> None:
        rule = self.plan.spec["on_duplicate"]
        if not len(rows):
            return
        if rule == "first":
            books.duplicates += len(rows)
            return
        named = [ids[i] for i in np.flatnonzero(again).tolist()]
        if rule == "fail":
            where = f"{self.plan.files[block.file].uri}:{int(block.positions[rows[0]])}"
            raise GuardRefused(
                f"id {named[0]!r} stands twice, the second time at {where}",
                hint="keep the first with --on-duplicate first",
            )
        problems |= {row: f"duplicate id {id!r}" for row, id in zip(rows.tolist(), named, strict=True)}
        self.found.add("dead", named)

    def _compare(
        self, judged: Judged, rows: np.ndarray, at: np.ndarray, old: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """bool: whether text, and kept columns, are those of the old row."""
        same_text, same_kept = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
        if old.any():
            texts = (str(judged.texts[i]) for i in rows[old].tolist())  # one by one: pictures may be large
            hashed = row_hashes(texts, judged.kept.take(pa.array(rows[old])))
            same_text[old] = hashed[:, 0] == self.state.take("text", at[old])
            same_kept[old] = hashed[:, 1] == self.state.take("kept", at[old])
        return same_text, same_kept

    def _put_aside(
        self,
        block: RowBlock,
        rows: np.ndarray,
        todo: np.ndarray,
        problems: Mapping[int, str],
        hashed: np.ndarray,
        new: np.ndarray,
    ) -> None:
        """Rows to embed and dead ones, in order; new ids are remembered by name."""
        chosen = np.union1d(rows[todo], np.fromiter(problems, dtype=np.int64, count=len(problems)))
        if not len(chosen):
            return
        names = self.encode.add(block, chosen, problems)
        if new.any():
            self._new_ids.append(hashed[new])
            self._new_names.append(names[np.searchsorted(chosen, rows[new])])

    def _pass_over_old(self, block: RowBlock, books: Books) -> RowBlock:
        """Keep the rows that may have changed; the others are there and stand, if their id is known and unclaimed."""
        assert self.newer is not None
        column = block.columns.column(self.plan.schema.get_field_index(str(self.plan.id_column)))
        ids = column.cast(pa.string())
        at = self.state.find(id_hashes([i or "" for i in ids.to_pylist()]))
        once = np.zeros(len(at), dtype=bool)
        values, leaders, counts = np.unique(at, return_index=True, return_counts=True)
        once[leaders[(values >= 0) & (counts == 1)]] = True
        mine = once & ~self.newer(block) & ids.is_valid().to_numpy(zero_copy_only=False)
        mine[list(block.errors)] = False
        mine &= self._status[at] == UNSEEN
        self._status[at[mine]] = KEPT
        self._file_now[at[mine]] = block.file
        books.unchanged += int(mine.sum())
        self.rows += int(mine.sum())
        rest = np.flatnonzero(~mine)
        return RowBlock(
            file=block.file,
            positions=block.positions[rest],
            columns=block.columns.take(pa.array(rest, pa.int64())),
            next_position=block.next_position,
            errors={new: block.errors[old] for new, old in enumerate(rest.tolist()) if old in block.errors},
        )
