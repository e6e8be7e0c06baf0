"""All windows committed -> the generation is done: duplicates out, books checked against the sink, readers switched.

Every step may be killed and done again. Refuses to finish when the books do not balance (`BooksError`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from embedctl.codec import Json, dead_from_json
from embedctl.errors import BooksError, GuardRefused
from embedctl.events import Rows
from embedctl.job import manifest, sync_drop
from embedctl.job.duplicates import Loser, find
from embedctl.ledger import dead
from embedctl.ledger.segments import Contents, Ledger
from embedctl.plan import Plan
from embedctl.records import DeadRow, FileBooks, WindowKey, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.storage import LocalStorage

BASE = "base"
FINALISED = "finalised"
REOPENED = "reopened"


def is_complete(plan: Plan, contents: Contents) -> bool:
    """Whether every slice of the plan's generation is committed to its last window."""
    return not incomplete_slices(plan, contents)


def incomplete_slices(plan: Plan, contents: Contents) -> list[int]:
    """Slices of the plan with a window still to do, ascending."""
    if plan.targets is not None:
        done = {(k.slice, k.window) for k in contents.windows if k.generation == plan.generation}
        return sorted({s for s, w in plan.targets if (s, w) not in done})
    last = {r.key.slice: r.key.window for r in contents.of_generation(plan.generation) if r.last}
    counts: dict[int, int] = defaultdict(int)
    for key in contents.windows:
        counts[key.slice] += key.generation == plan.generation
    return [s.index for s in plan.slices if s.index not in last or counts[s.index] != last[s.index] + 1]


def is_finalised(plan: Plan, contents: Contents) -> bool:
    """Whether the generation was finished, and not opened again since because parts were lost."""
    return rounds(plan, contents, FINALISED) > rounds(plan, contents, REOPENED)


def has_lost(plan: Plan, sink: Sink, contents: Contents) -> bool:
    """Whether the destination has lost windows of the finished plan.

    :raises BooksError: lost after a retry, whose plan does not reach the first generation's windows.
    """
    sink.prepare(plan)
    lost = sink.reconcile(live_records(contents)).lost
    if lost and plan.generation > 1:
        raise BooksError(
            f"{len(lost)} parts are gone ({', '.join(str(r.part) for r in lost[:3])})",
            hint="link them back from .embedctl/current/, or start a new job with another --to",
        )
    return bool(lost)


def rounds(plan: Plan, contents: Contents, kind: str) -> int:
    """How often the generation was finished, or opened again."""
    return sum(e["kind"] == kind and e["generation"] == plan.generation for e in contents.events)


def reopen(plan: Plan, ledger: Ledger) -> None:
    """Parts of a finished generation are gone: it is to be completed and finished again."""
    number = rounds(plan, ledger.contents, REOPENED)
    ledger.append({"kind": REOPENED, "generation": plan.generation, "round": number})


def live_records(contents: Contents) -> list[WindowRecord]:
    """Records of all generations, in order: their units together are what the destination holds."""
    return [contents.windows[k] for k in sorted(contents.windows)]


def base_of(contents: Contents) -> Json | None:
    """The newest event by which a generation took over the books of all before it; None: the first still has them."""
    found = [e for e in contents.events if e["kind"] == BASE]
    return max(found, key=lambda e: int(e["generation"]), default=None)


def first_generation(contents: Contents) -> int:
    """The generation with which the books of the corpus as it is now begin."""
    base = base_of(contents)
    return 1 if base is None else int(base["generation"])


def rows_of(record: WindowRecord, first: int = 1) -> Rows:
    """What a window adds to the books that begin with generation `first`: an earlier one nothing, a later one moves
    rows from dead to what became of them."""
    if record.key.generation < first:
        return Rows()
    return sum((_rows(b, again=record.key.generation > first) for b in record.books), Rows())


def _rows(book: FileBooks, *, again: bool) -> Rows:
    return Rows(
        read=0 if again else book.read,
        written=book.written,
        skipped=book.skipped,
        duplicates=book.duplicates,
        dead=book.dead - (book.read if again else 0),
    )


def totals(contents: Contents) -> Rows:
    """The books over all files."""
    first = first_generation(contents)
    standing = sum((rows for _, rows in _taken_over(contents)), Rows())
    return sum((rows_of(r, first) for r in contents.windows.values()), standing)


def _taken_over(contents: Contents) -> Iterator[tuple[int, Rows]]:
    """File and books of the rows that the base found as they were."""
    for file, unchanged, skipped, duplicates in (base_of(contents) or {"books": []})["books"]:
        read = unchanged + skipped + duplicates
        yield file, Rows(read=read, unchanged=unchanged, skipped=skipped, duplicates=duplicates)


def books_by_file(plan: Plan, contents: Contents) -> dict[str, Rows]:
    """The books over all generations, by the file's URI."""
    per_file: dict[int, Rows] = defaultdict(Rows)
    first = first_generation(contents)
    for file, rows in _taken_over(contents):
        per_file[file] += rows
    for record in contents.windows.values():
        if record.key.generation >= first:
            for book in record.books:
                per_file[book.file] += _rows(book, again=record.key.generation > first)
    return {plan.files[f].uri: rows for f, rows in sorted(per_file.items())}


def current_dead(contents: Contents) -> list[WindowRecord]:
    """For each window place, the record of the newest generation that tried it: its letters are the ones that stand."""
    newest: dict[tuple[int, int], WindowRecord] = {}
    first = first_generation(contents)
    for key in sorted(k for k in contents.windows if k.generation >= first):
        newest[key.slice, key.window] = contents.windows[key]
    return [r for r in newest.values() if any(b.dead for b in r.books)]


def finalise(plan: Plan, storage: LocalStorage, ledger: Ledger, sink: Sink) -> Rows:
    """Finish the generation. The caller holds the lease on finalising.

    :raises BooksError: lost or doubled rows; the destination is left as it is.
    :raises GuardRefused: duplicates where the user asked to fail.
    """
    if plan.is_sync:
        sync_drop.drop_replaced(plan, storage, ledger, sink)
        _check_held(plan, storage, ledger.contents)
    else:
        settle_duplicates(plan, storage, ledger, sink)
    check_books(plan, ledger.contents, sink)
    dead.merge(storage, [(r.key, r.revision) for r in current_dead(ledger.contents)])
    sink.finish(plan, live_records(ledger.contents))
    if plan.is_sync:
        sync_drop.remember(plan, storage, ledger, sink)
    number = rounds(plan, ledger.contents, FINALISED)
    ledger.append({"kind": FINALISED, "generation": plan.generation, "round": number})
    ledger.compact()
    manifest.keep(storage, ledger, sink)
    return totals(ledger.contents)


def settle_duplicates(plan: Plan, storage: LocalStorage, ledger: Ledger, sink: Sink) -> None:
    """Take later rows of an id out of their windows (revision 1), so that the first position wins."""
    rule = plan.spec["on_duplicate"]
    if plan.id_column is None or rule == "keep":
        return
    records = {r.key: r for r in live_records(ledger.contents)}
    originals = {k: r for k, r in records.items() if not r.revision}
    counts = [sum(b.written for b in r.books) for r in records.values()]
    losers: dict[WindowKey, list[Loser]] = defaultdict(list)
    for loser in find(list(records), counts, lambda k: sink.rows(records[k])[0], storage.scratch):
        losers[loser.key].append(loser)
    if losers and rule == "fail":
        one = next(iter(losers.values()))[0]
        id_ = sink.rows(records[one.key])[0][one.row]
        raise GuardRefused(
            f"id {id_!r} stands in more than one row ({sum(map(len, losers.values()))} rows repeat an earlier id)",
            hint="keep the first of each with --on-duplicate first, in a new --to",
        )
    for key in sorted(losers):
        if key in originals:
            _drop(originals[key], losers[key], plan, storage, ledger, sink, as_dead=rule == "dead-letter")


def _drop(
    record: WindowRecord,
    losers: Sequence[Loser],
    plan: Plan,
    storage: LocalStorage,
    ledger: Ledger,
    sink: Sink,
    *,
    as_dead: bool,
) -> None:
    rows = np.array(sorted(loser.row for loser in losers), dtype=np.int64)
    file_of = np.repeat([b.file for b in record.books], [b.written for b in record.books])
    lost = {f: int((file_of[rows] == f).sum()) for f in set(file_of[rows].tolist())}
    changed = replace(
        record,
        revision=ledger.contents.next_revision(record.key),
        books=tuple(_moved(b, lost.get(b.file, 0), as_dead) for b in record.books),
    )
    uris = {f.uri: f.index for f in plan.files}
    letters = [dead_from_json(letter, uris[letter["file"]]) for _, letter in dead.letters(storage, [(record.key, 0)])]
    if as_dead:
        ids, positions = sink.rows(record)
        letters += [
            DeadRow(file=int(file_of[r]), position=int(positions[r]), id=ids[r], reason=f"duplicate id {ids[r]!r}")
            for r in rows.tolist()
        ]
    letters.sort(key=lambda d: (d.file, d.position))
    dead.put(storage, record.key, letters, plan.files, revision=changed.revision)
    sync_drop.keep_hashes(record, changed, rows, storage, sink)
    ledger.append(sink.drop_rows(record, changed, rows.tolist()))


def _moved(book: FileBooks, rows: int, as_dead: bool) -> FileBooks:
    return replace(
        book,
        written=book.written - rows,
        duplicates=book.duplicates + (0 if as_dead else rows),
        dead=book.dead + (rows if as_dead else 0),
    )


def check_books(plan: Plan, contents: Contents, sink: Sink) -> None:
    """:raises BooksError: rows lost or doubled in the ledger, or other units in the sink than the books say."""
    for uri, rows in books_by_file(plan, contents).items():
        if not rows.balanced():
            raise BooksError(f"{uri}: the books do not balance: {rows.to_json()}")
    _check_read(plan, contents)
    records = live_records(contents)
    expected, found = sum(r.units for r in records), sink.count(records)
    if expected != found:
        raise BooksError(
            f"the books say {expected} vectors, the destination holds {found}", hint="embedctl verify names the parts"
        )


def _check_held(plan: Plan, storage: LocalStorage, contents: Contents) -> None:
    """After a sync the windows hold the rows that its books say: none of an older window's went unseen."""
    if sync_drop.only_moves(plan, storage):
        return
    rows, held = totals(contents), sum(b.written for r in contents.windows.values() for b in r.books)
    if held != rows.written + rows.unchanged:
        raise BooksError(
            f"{storage.uri}: the books say {rows.written + rows.unchanged} rows, the windows of the ledger hold {held}",
            hint=f"embedctl state rebuild {storage.uri}, then the same command again",
        )


def _check_read(plan: Plan, contents: Contents) -> None:
    """Where the plan knows how many rows there are, as many must have been read."""
    if plan.spec["limit"] is not None or plan.spec["sample"] is not None or plan.changes is not None:
        return
    planned: Mapping[str, int] = planned_rows(plan)
    books = books_by_file(plan, contents)
    for uri, count in planned.items():
        read = books.get(uri, Rows()).read
        if read != count:
            raise BooksError(f"{uri}: {read} rows were read, the file holds {count}")


def planned_rows(plan: Plan) -> dict[str, int]:
    """Rows of each file whose format tells, by URI."""
    counts: dict[str, int] = {}
    for slice_ in plan.slices:
        for segment in slice_.segments:
            file = plan.files[segment.file]
            if file.format in ("parquet", "arrow") and segment.end is not None:
                counts[file.uri] = counts.get(file.uri, 0) + segment.end - segment.begin
    return counts
