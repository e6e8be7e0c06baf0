"""Rows laid out anew: parts read back and written as fuller windows of another generation, without an encoder.

Enters: the parts that a list of changes names, in order. Leaves: committed windows of up to `--window-rows` rows. What
leads to it is `compact`, which merges small parts, and a roll-back, which brings an older version's parts back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl import failpoints
from embedctl.codec import record_from_json
from embedctl.job.sync_drop import MERGE
from embedctl.ledger import dead as dead_letters
from embedctl.ledger.segments import Ledger
from embedctl.outputs import join
from embedctl.plan import Plan
from embedctl.records import Cursor, DeadRow, FileBooks, WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.sinks.parquet_parts import read_part
from embedctl.sources import changes
from embedctl.storage import LocalStorage


def merge(plan: Plan, storage: LocalStorage, ledger: Ledger, sink: Sink, check: Callable[[], None]) -> None:
    """Commit what is missing of the windows that the plan's list of changes wants laid out anew; often none.

    :raises BooksError: a part is gone.
    """
    asked = changes.load(storage, plan.generation).details.get(MERGE)
    if asked is None:
        return
    done = {r.key.window for r in ledger.contents.of_generation(plan.generation)}
    owners = _Owners(asked["live"])
    letters = [DeadRow(file=f, position=p, id=i, reason=why) for f, p, i, why in asked["dead"]]
    for number, group in enumerate(_groups(asked["sources"], plan.spec["window_rows"])):
        key = WindowKey(generation=plan.generation, slice=0, window=number)
        rows = sum(s["rows"] for s in group)
        books = owners.take(rows)
        mine = letters if number == 0 else []
        if number in done:
            continue
        check()
        output = _output(key, group, plan, storage, _with_dead(books, mine), mine)
        dead_letters.put(storage, key, output.dead, plan.files)
        failpoints.hit("before-merge")
        ledger.append(sink.write(output))


def _groups(sources: Sequence[dict[str, Any]], max_rows: int) -> Iterator[list[dict[str, Any]]]:
    """Parts in order, as many to a window as its rows allow; at least one window, which holds the dead letters."""
    held: list[dict[str, Any]] = []
    rows = given = 0
    for source in sources:
        if held and rows + source["rows"] > max_rows:
            yield held
            given += 1
            held, rows = [], 0
        held.append(source)
        rows += source["rows"]
    if held or not given:
        yield held


def _output(
    key: WindowKey,
    group: Sequence[dict[str, Any]],
    plan: Plan,
    storage: LocalStorage,
    books: tuple[FileBooks, ...],
    dead: Sequence[DeadRow],
) -> WindowOutput:
    parts = [read_part(Path(storage.root / s["folder"]), record_from_json(s["record"]), plan, ())[0] for s in group]
    units = sum(len(p.ids) for p in parts)
    record = WindowRecord(
        key=key,
        begin=Cursor(segment=0, position=0),
        end=Cursor(segment=0, position=0),
        last=False,
        books=books,
        units=units,
        tokens=sum(p.record.tokens for p in parts),
        padded_tokens=sum(p.record.padded_tokens for p in parts),
        truncated=sum(p.record.truncated for p in parts),
    )
    if not parts:
        empty = WindowRecord(key=key, begin=record.begin, end=record.end, last=False, books=(), units=0, tokens=0,
                             padded_tokens=0, truncated=0)  # fmt: skip
        nothing, _ = read_part(storage.root, empty, plan, dead)
        return replace(nothing, record=record)
    return WindowOutput(
        record=record,
        ids=[i for p in parts for i in p.ids],
        positions=np.concatenate([p.positions for p in parts if p.positions is not None]),
        outputs={o.name: join([p.outputs[o.name] for p in parts]) for o in plan.outputs},
        kept=pa.concat_tables([p.kept for p in parts]),
        token_count=np.concatenate([p.token_count for p in parts]),
        truncated=np.concatenate([p.truncated for p in parts]),
        chunk=_joined([p.chunk for p in parts]),
        char_start=_joined([p.char_start for p in parts]),
        char_end=_joined([p.char_end for p in parts]),
        dead=tuple(dead),
        hashes=_joined([p.hashes for p in parts]),
    )


def _joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [a for a in arrays if a is not None]
    return np.concatenate(known) if known and len(known) == len(arrays) else None


class _Owners:
    """Hands the rows of the corpus' files out to windows, so that the books of every file stay what they were."""

    def __init__(self, live: Sequence[Sequence[int]]) -> None:
        """live: [file, rows] to hand out, ascending."""
        self._left = [[file, rows] for file, rows in live]

    def take(self, rows: int) -> tuple[FileBooks, ...]:
        books = []
        while rows and self._left:
            file, held = self._left[0]
            count = min(rows, held)
            if count:
                books.append(FileBooks(file=file, read=count, written=count, skipped=0, duplicates=0, dead=0))
            self._left[0][1] -= count
            rows -= count
            if not self._left[0][1]:
                self._left.pop(0)
        return tuple(books)


def _with_dead(books: tuple[FileBooks, ...], dead: Sequence[DeadRow]) -> tuple[FileBooks, ...]:
    counted = {b.file: b for b in books}
    for row in dead:
        book = counted.get(row.file) or FileBooks(file=row.file, read=0, written=0, skipped=0, duplicates=0, dead=0)
        counted[row.file] = replace(book, read=book.read + 1, dead=book.dead + 1)
    return tuple(counted[f] for f in sorted(counted))
