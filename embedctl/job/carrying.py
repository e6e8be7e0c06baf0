"""A folder that embedctl wrote, carried over into another destination window by window.

Enters: the folder. Leaves: its plans, its live windows as they are, and an execution that commits them elsewhere under
the same keys. A row whose vector is damaged dies. Refused: a job that is not finished, parts that are gone, a folder
that changed since the first window was carried.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embedctl import plan as plans
from embedctl.codec import Json, dead_from_json
from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK, BooksError, PlanMismatch, SourceChanged
from embedctl.events import Summary
from embedctl.job import finalise as ending
from embedctl.job.loading import Loading
from embedctl.ledger import dead
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import DeadRow, FileBooks, WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.columns import Reasons
from embedctl.sinks.parquet import ParquetSink
from embedctl.sinks.parquet_parts import read_part
from embedctl.storage import STATE, LocalStorage

CARRIED = "carried"
"""Kind of the event that names what a destination was carried from."""
_OWN = frozenset({"finalised", "reopened", "lost", "budget", CARRIED})
"""Kinds of events that a destination has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """plans: one a generation, ascending. records: live windows, in order. events: what else the job knows. dead: rows
    that are dead now."""

    storage: LocalStorage
    plans: tuple[Plan, ...]
    records: tuple[WindowRecord, ...]
    events: tuple[Json, ...]
    letters: Mapping[WindowKey, Sequence[Json]]
    dead: int

    @property
    def newest(self) -> Plan:
        return self.plans[-1]

    def digest(self) -> str:
        """Names this state of the folder."""
        told = hashlib.blake2b(digest_size=12)
        for r in self.records:
            told.update(f"{r.key.stem} {r.revision} {r.units} {r.part}\n".encode())
        return told.hexdigest()

    def window(self, record: WindowRecord, plan: Plan) -> WindowOutput:
        """The window as it stands in the folder, as the first revision of its key."""
        by_uri = {f.uri: f.index for f in plan.files}
        letters = [dead_from_json(x, by_uri[x["file"]]) for x in self.letters.get(record.key, ())]
        output, bad = read_part(self.storage.root, record, plan, letters)
        if len(output.ids) != record.units:
            raise BooksError(
                f"{self.storage.root / str(record.part)}: {len(output.ids)} vectors, the ledger says {record.units}",
                hint=f"embedctl verify {self.storage.root}",
            )
        return replace(_living(output, bad), record=_settled(output, bad))


def open_folder(root: Path) -> Folder | None:
    """None: nothing of a job's there. :raises PlanMismatch, BooksError: not finished, or parts are gone."""
    if not (root / STATE).is_dir():
        return None
    storage = LocalStorage(root)
    newest = plans.load(storage)
    if newest is None:
        return None
    contents = Ledger(storage).contents
    if not ending.is_finalised(newest, contents):
        raise PlanMismatch(
            f"{root}: the job there is not finished", hint="finish it first, with the command that began it"
        )
    records = ending.live_records(contents)
    sink = ParquetSink(storage)
    sink.prepare(newest)
    lost = sink.reconcile(records).lost
    if lost:
        raise BooksError(
            f"{root}: {len(lost)} parts are gone ({', '.join(str(r.part) for r in lost[:3])})",
            hint="run the command that made it again: it does their rows again",
        )
    letters: dict[WindowKey, list[Json]] = defaultdict(list)
    for key, letter in dead.letters(storage, [(r.key, r.revision) for r in records]):
        letters[key].append(letter)
    every = (plans.load(storage, g) for g in range(1, newest.generation + 1))
    return Folder(
        storage=storage,
        plans=tuple(p for p in every if p is not None),
        records=tuple(records),
        events=tuple(e for e in contents.events if e["kind"] not in _OWN),
        letters=letters,
        dead=ending.totals(contents).dead,
    )


@dataclass(slots=True)
class Carrying(Loading):
    """`folder` must be given; `plan` is its newest."""

    folder: Folder | None = None

    def carry(self) -> Summary:
        """:raises EmbedctlError: what must stop the run; what was committed stays."""
        folder = self.source
        self._remember()
        self._adopt({r.key.slice for r in folder.records})
        self.tally.begin(self.ledger.contents)
        for plan in folder.plans:
            # A later generation's plan is published when all before it is in: whatever reads it may rely on that.
            plans.publish(self.storage, plan)
            todo = [r for r in folder.records if r.key.generation == plan.generation and not self._has(r)]
            self.commit_all(plan, (folder.window(r, plan) for r in todo), check_source=False)
        again = open_folder(folder.storage.root)
        if again is None or again.digest() != folder.digest():
            raise changed(folder)
        summary = self._finish()
        news = summary.rows.dead > folder.dead and self.spec.max_dead is None
        return replace(summary, exit_code=EXIT_NEW_DEAD if news else EXIT_OK)  # letters of the folder are no news

    @property
    def source(self) -> Folder:
        assert self.folder is not None
        return self.folder

    def _has(self, record: WindowRecord) -> bool:
        return record.key in self.ledger.contents.windows

    def _remember(self) -> None:
        """What the job knows beside its windows, and what it is carried from."""
        here = {"kind": CARRIED, "digest": self.source.digest(), "generation": self.plan.generation}
        new = [e for e in (*self.source.events, here) if e not in self.ledger.contents.events]
        if new:
            self.ledger.append(*new)


def check_same(folder: Folder, ledger: Ledger) -> None:
    """:raises SourceChanged: another state of the folder was carried before."""
    known = [e["digest"] for e in ledger.contents.events if e["kind"] == CARRIED]
    if known and known != [folder.digest()]:
        raise changed(folder)


def changed(folder: Folder) -> SourceChanged:
    return SourceChanged(
        f"{folder.storage.root}: changed since it was first loaded here",
        hint="load it into a new collection with another --to, or with --swap-alias",
    )


def _living(output: WindowOutput, bad: Reasons) -> WindowOutput:
    if not bad:
        return output
    rows = output.row_of_units
    dying = np.unique(rows[list(bad)])
    return replace(output.only(np.flatnonzero(~np.isin(rows, dying))), dead=_dead(output, bad))


def _dead(output: WindowOutput, bad: Reasons) -> tuple[DeadRow, ...]:
    rows, starts = output.row_of_units, _starts(output)
    files = _files(output.record)
    died: dict[int, DeadRow] = {}
    for unit, reason in sorted(bad.items()):
        row = int(rows[unit])
        id_ = output.ids[starts[row]]
        position = int(id_.rpartition(":")[2]) if output.positions is None else int(output.positions[row])
        died.setdefault(row, DeadRow(file=int(files[row]), position=position, id=id_, reason=reason))
    return tuple(sorted((*output.dead, *died.values()), key=lambda d: (d.file, d.position)))


def _settled(output: WindowOutput, bad: Reasons) -> WindowRecord:
    record = replace(output.record, revision=0, part=None)
    if not bad:
        return record
    rows = output.row_of_units
    dying = np.unique(rows[list(bad)])
    files = _files(record)[dying]
    books = tuple(_moved(b, int((files == b.file).sum())) for b in record.books)
    return replace(record, books=books, units=int((~np.isin(rows, dying)).sum()))


def _moved(book: FileBooks, rows: int) -> FileBooks:
    return replace(book, written=book.written - rows, dead=book.dead + rows)


def _files(record: WindowRecord) -> np.ndarray:
    """int64 (rows,): the file of each live row."""
    return np.repeat([b.file for b in record.books], [b.written for b in record.books])


def _starts(output: WindowOutput) -> list[int]:
    starts: list[int] = np.flatnonzero(np.diff(output.row_of_units, prepend=-1)).tolist()
    return starts
