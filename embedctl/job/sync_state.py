"""What a sync knows before it reads a file: the rows there are, and which files need no reading.

Enters: the last plan, the ledger, the sink, and the files as they are now. Leaves: the state, loaded or made again from
the live windows, and the files that did not change and hold neither dead rows nor duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedctl.job import finalise as ending
from embedctl.job.sync_drop import entries_of, file_of
from embedctl.ledger import dead, rows_state
from embedctl.ledger.rows_state import NO_FILE, RowsState
from embedctl.ledger.segments import Contents
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sinks.base import Sink
from embedctl.sources.files import is_untouched
from embedctl.storage import LocalStorage


def state_of(last: Plan, contents: Contents, sink: Sink, storage: LocalStorage) -> RowsState:
    """The state of the live windows. Made anew it knows the rows' files only where no sync came before."""
    records = ending.live_records(contents)
    windows = rows_state.windows_of(records)
    known = rows_state.load(storage, windows)
    if known is not None:
        return known
    first = ending.base_of(contents) is None

    def blocks() -> Iterator[np.ndarray]:
        for place, record in enumerate(records):
            yield entries_of(record, place, storage, sink, file_of(record) if first else None)

    return rows_state.build(
        storage,
        blocks(),
        sum(r.units for r in records),
        windows=windows,
        uris=[f.uri for f in last.files],
        details={"watermark": None},
        generation=last.generation,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """files: number in the state -> number now. skipped: rows that `--where` passes over, by number now."""

    files: Mapping[int, int]
    skipped: Mapping[int, int]


def unread_files(last: Plan, files: Sequence[SourceFile], contents: Contents, state: RowsState) -> Unread:
    """Files of the last snapshot that are the same, whose rows are all in the state: no duplicates, none dead."""
    books = ending.books_by_file(last, contents)
    before = {f.uri: f for f in last.files}
    number = {uri: n for n, uri in enumerate(state.uris)}
    counts = _counts(state)
    found: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for file in files:
        then, rows = before.get(file.uri), books.get(file.uri)
        if then is None or rows is None or file.uri not in number:
            continue
        same = then.format == file.format and is_untouched(then, file)
        held = counts.get(number[file.uri], 0)
        if same and not rows.dead and not rows.duplicates and held == rows.read - rows.skipped:
            found[number[file.uri]] = file.index
            skipped[file.index] = rows.skipped
    return Unread(files=found, skipped=skipped)


def _counts(state: RowsState) -> dict[int, int]:
    """Rows of each file, by its number in the state."""
    counts: dict[int, int] = {}
    for bucket in state.buckets:
        for file, count in enumerate(np.bincount(bucket["file"] - NO_FILE).tolist()):
            counts[file + NO_FILE] = counts.get(file + NO_FILE, 0) + count
    return counts


def letters_of(storage: LocalStorage, contents: Contents) -> list[dict[str, Any]]:
    """The dead letters that stand."""
    return [letter for _, letter in dead.letters(storage, [(r.key, r.revision) for r in ending.current_dead(contents)])]


def known_dead(
    letters: Sequence[Mapping[str, Any]], last: Plan, files: Sequence[SourceFile]
) -> dict[tuple[int, int], str]:
    """(file now, position) of rows in files that did not change, dead for what they are -> why. A duplicate is dead for
    another row, which may be gone."""
    before = {f.uri: f for f in last.files}
    same = {f.uri: f.index for f in files if is_untouched(before.get(f.uri), f)}
    return {(same[m["file"]], m["position"]): m["reason"] for m in letters if _is_own(m) and m["file"] in same}


def _is_own(letter: Mapping[str, Any]) -> bool:
    return not letter["reason"].startswith("duplicate id")
