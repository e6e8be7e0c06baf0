"""The end of a sync: rows that were replaced or have vanished leave their windows, and the state says what is left.

Enters: a generation whose new rows are all in. Leaves: old windows in a later revision without those rows, and the
state of all live rows. Every step may be killed and done again.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from embedctl import failpoints
from embedctl import plan as plans
from embedctl.errors import BooksError
from embedctl.ledger import dead, rows_state
from embedctl.ledger import hashes as kept_hashes
from embedctl.ledger.segments import RETIRED, Ledger
from embedctl.plan import Plan
from embedctl.records import FileBooks, WindowKey, WindowRecord
from embedctl.sinks import versions
from embedctl.sinks.base import Hashed, Sink
from embedctl.sources import changes
from embedctl.stages.hashes import id_hashes
from embedctl.storage import LocalStorage, Storage

DROPS, CARRIED, MOVED = "drops.npy", "carried.npy", "moved.npy"
MERGE = "merge"
"""What the list of a generation that only lays rows out anew says instead of changed rows."""
CHUNK_ROWS = 1 << 20
_LOW = (1 << 32) - 1


def drop_replaced(plan: Plan, storage: LocalStorage, ledger: Ledger, sink: Sink) -> None:
    """Take the old rows out, window by window. :raises BooksError: a window of theirs is gone."""
    details = changes.load(storage, plan.generation).details
    if MERGE in details:
        ledger.append({"kind": RETIRED, "keys": details[MERGE]["retired"]})
        return
    todo = _drops(plan, storage, ledger, sink, details["windows"])
    for drop, changed in _carried_out(todo, sink):
        failpoints.hit("after-drop")
        key = drop.record.key
        emptied = not changed.units and changed.part is None
        retired = {"kind": RETIRED, "keys": [[key.generation, key.slice, key.window]]}
        ledger.append(retired if emptied else changed)
        if not isinstance(sink, Hashed):
            kept_hashes.delete(storage, key, drop.record.revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drop:
    """rows, by number among the live ones of `record`'s window, leave it; `changed`: its record then."""

    record: WindowRecord
    changed: WindowRecord
    rows: np.ndarray


def _drops(
    plan: Plan, storage: LocalStorage, ledger: Ledger, sink: Sink, windows: Sequence[Sequence[int]]
) -> Iterator[_Drop]:
    """What is still to be taken out, window by window."""
    names = read_array(storage, plan.generation, DROPS)
    places = names >> np.uint64(32)
    for place in np.unique(places).tolist():
        generation, slice_, window, revision = windows[place]
        key = WindowKey(generation=generation, slice=slice_, window=window)
        record = ledger.contents.windows.get(key)
        if record is None and ledger.contents.is_retired(key):
            continue
        if record is None:
            raise BooksError(
                f"{storage.uri}: window g{generation}-{slice_}-{window} is gone, and rows were to be taken out of it",
                hint=f"embedctl sync {' '.join(plan.inputs)} --to {storage.uri}",
            )
        if record.revision > revision:
            continue
        rows = (names[places == place] & np.uint64(_LOW)).astype(np.int64)
        changed = replace(
            record, revision=ledger.contents.next_revision(record.key), books=_books_without(record, rows)
        )
        keep_hashes(record, changed, rows, storage, sink)
        yield _Drop(record=record, changed=changed, rows=rows)


def _carried_out(todo: Iterator[_Drop], sink: Sink) -> Iterator[tuple[_Drop, WindowRecord]]:
    """Each with the record that came of it, in order; as many windows at a time as the sink can."""
    at_once: int = getattr(sink, "drops_at_once", 1)
    if at_once == 1:
        for drop in todo:
            failpoints.hit("before-drop")
            yield drop, sink.drop_rows(drop.record, drop.changed, drop.rows.tolist())
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="drop") as pool:
        pending: deque[tuple[_Drop, Future[WindowRecord]]] = deque()
        for drop in todo:
            failpoints.hit("before-drop")
            pending.append((drop, pool.submit(sink.drop_rows, drop.record, drop.changed, drop.rows.tolist())))
            if len(pending) >= at_once:
                first, done = pending.popleft()
                yield first, done.result()
        for drop, done in pending:
            yield drop, done.result()


def only_moves(plan: Plan, storage: LocalStorage) -> bool:
    """Whether this generation lays rows out anew and changes none."""
    return MERGE in changes.load(storage, plan.generation).details


def keep_hashes(record: WindowRecord, changed: WindowRecord, rows: np.ndarray, storage: Storage, sink: Sink) -> None:
    """The content hashes of what is left of a window, where its sink does not keep them."""
    if not isinstance(sink, Hashed):
        known = kept_hashes.read(storage, record.key, record.revision)
        if known is not None:
            kept_hashes.put(storage, record.key, np.delete(known, rows, axis=0), changed.revision)


def remember(plan: Plan, storage: LocalStorage, ledger: Ledger, sink: Sink) -> None:
    """Write the state of all live rows. Where the one before is gone, the next sync makes it from the windows."""
    details = changes.load(storage, plan.generation).details
    old = rows_state.opened(storage, details["state"]) if details["state"] else None
    if old is None:
        return
    records = [ledger.contents.windows[k] for k in sorted(ledger.contents.windows)]
    state = rows_state.build(
        storage,
        _blocks(plan, storage, old, records, sink),
        sum(r.units for r in records),
        windows=rows_state.windows_of(records),
        uris=[f.uri for f in plan.files],
        details={"watermark": details["watermark"]},
        generation=plan.generation,
    )
    rows_state.drop_others(storage, state.name)


def clear(plan: Plan, storage: LocalStorage, first: int) -> None:
    """The list of changes has done its work, and so have letters before generation `first`, and plans of no version."""
    changes.clear(storage, plan.generation)
    for entry in storage.list(dead.FOLDER):
        if (number := _generation_in(entry.name)) is not None and number < first:
            storage.delete(entry.name)
    kept = [versions.generation_of(name) for name in versions.names(storage)]
    oldest = min([plan.generation - 1, *kept])
    for number in range(2, oldest):
        plans.delete(storage, number)


def _generation_in(name: str) -> int | None:
    number = name.rpartition("/")[2].partition("-")[0].removeprefix("g")
    return int(number) if number.isdecimal() else None


def _blocks(
    plan: Plan, storage: LocalStorage, old: rows_state.RowsState, records: Sequence[WindowRecord], sink: Sink
) -> Iterator[np.ndarray]:
    drops = read_array(storage, plan.generation, DROPS)
    carried = read_array(storage, plan.generation, CARRIED)
    moved = (
        read_array(storage, plan.generation, MOVED) if MERGE in changes.load(storage, plan.generation).details else None
    )
    place_of = {(r.key.generation, r.key.slice, r.key.window): n for n, r in enumerate(records)}
    new_place = np.array([place_of.get((g, s, w), 0) for g, s, w, _ in old.windows] or [0], dtype=np.uint32)
    for begin in range(0, len(old), CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, len(old))
        entries, files = old.entries(begin, end), carried[begin:end]
        entries, files = entries[files >= 0], files[files >= 0]
        first = entries["place"].astype(np.uint64) << np.uint64(32)
        gone = np.searchsorted(drops, first + entries["row"]) - np.searchsorted(drops, first)
        entries["row"] -= gone.astype(np.uint32)
        entries["place"], entries["file"] = new_place[entries["place"]], files
        yield entries
    for place, record in enumerate(records):
        if record.key.generation == plan.generation:
            files = file_of(record)
            if moved is not None:
                files, moved = moved[: len(files)], moved[len(files) :]
            yield entries_of(record, place, storage, sink, files)


def entries_of(record: WindowRecord, place: int, storage: Storage, sink: Sink, files: np.ndarray | None) -> np.ndarray:
    """A window's rows as the state holds them; hashes are 0 where the window was written without, files NO_FILE."""
    ids = sink.rows(record)[0]
    hashes = sink.row_hashes(record) if isinstance(sink, Hashed) else None
    if hashes is None:
        hashes = kept_hashes.read(storage, record.key, record.revision)
    if hashes is None or len(hashes) != len(ids):
        hashes = np.zeros((len(ids), 2), dtype=np.uint64)
    if files is None or len(files) != len(ids):
        files = np.full(len(ids), rows_state.NO_FILE, dtype=np.int32)
    return rows_state.entries_of(id_hashes(ids), hashes, place, files)


def file_of(record: WindowRecord) -> np.ndarray:
    """int32 (live rows,): the file of each, since a window's rows stand in the order of its files."""
    return np.repeat([b.file for b in record.books], [b.written for b in record.books]).astype(np.int32)


def put_array(storage: LocalStorage, generation: int, name: str, values: np.ndarray) -> None:
    """Beside the list of changes, durable."""
    content = io.BytesIO()
    np.save(content, values)
    storage.put_if_absent(f"{changes.folder_of(generation)}/{name}", content.getvalue())


def read_array(storage: LocalStorage, generation: int, name: str) -> np.ndarray:
    """:raises BooksError: it is gone."""
    content = storage.read(f"{changes.folder_of(generation)}/{name}")
    if content is None:
        raise BooksError(f"{storage.uri}/{changes.folder_of(generation)}/{name}: gone")
    values: np.ndarray = np.load(io.BytesIO(content))
    return values


def _books_without(record: WindowRecord, rows: np.ndarray) -> tuple[FileBooks, ...]:
    """The window's books without rows that other generations account for."""
    files = file_of(record)
    lost = Counter(files[rows[rows < len(files)]].tolist())
    return tuple(replace(b, read=b.read - lost[b.file], written=b.written - lost[b.file]) for b in record.books)
