"""Rows whose text is what it was, and whose other columns are not: written again with the outputs they have.

Enters: a plan's chunks of such rows. Leaves: committed windows, without an encoder; a kill loses the window in hand.
Windows of which an output is gone are left to the encoder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from embedctl.errors import BooksError
from embedctl.job import wiring
from embedctl.ledger import hashes
from embedctl.ledger.segments import Ledger
from embedctl.outputs import Values, join, take
from embedctl.plan import Plan
from embedctl.records import DeadRow, Slice, Window, WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.base import Hashed, Reusable, Sink, Stored
from embedctl.sources import changes
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage

_LOW = (1 << 32) - 1


def reuse(
    plan: Plan,
    storage: LocalStorage,
    ledger: Ledger,
    sink: Sink,
    check: Callable[[], None],
    committed: Callable[[WindowRecord, tuple[DeadRow, ...]], None],
) -> None:
    """Commit every window of such rows that is not yet in the ledger; `check` is called before each."""
    kinds = changes.load(storage, plan.generation).kinds
    mine = [s for s in plan.slices if kinds[s.index] == changes.REUSE]
    if not mine:
        return
    assert isinstance(sink, Reusable)
    blocks = changes.blocks_of(storage, plan.generation, plan.slices, plan.schema)
    reader = WindowReader(plan, wiring.row_rules(plan), blocks)
    done: dict[int, dict[int, WindowRecord]] = defaultdict(dict)
    for record in ledger.contents.of_generation(plan.generation):
        done[record.key.slice][record.key.window] = record
    for slice_ in mine:
        if not _is_whole(done[slice_.index]):
            _commit(slice_, reader, done[slice_.index], plan, storage, ledger, sink, check, committed)


def _is_whole(done: Mapping[int, WindowRecord]) -> bool:
    return any(r.last and len(done) == n + 1 for n, r in done.items())


def _commit(
    slice_: Slice,
    reader: WindowReader,
    done: Mapping[int, WindowRecord],
    plan: Plan,
    storage: LocalStorage,
    ledger: Ledger,
    sink: Sink,
    check: Callable[[], None],
    committed: Callable[[WindowRecord, tuple[DeadRow, ...]], None],
) -> None:
    old = changes.replaced_by(storage, plan.generation, slice_.index)
    windows = changes.load(storage, plan.generation).details["windows"]
    for window in reader.windows(slice_, done):
        check()
        names = [old[f, p] for f, p in zip(window.files.tolist(), window.positions.tolist(), strict=True)]
        try:
            output = _output(window, names, plan, ledger, sink, windows)
        except BooksError:  # somebody took outputs out of the destination: what is not committed here is embedded
            continue
        if not isinstance(sink, Hashed) and output.hashes is not None:
            hashes.put(storage, output.record.key, output.hashes)
        record = sink.write(output)
        ledger.append(record)
        committed(record, ())


def _output(
    window: Window, names: Sequence[int], plan: Plan, ledger: Ledger, sink: Sink, windows: Sequence[Sequence[int]]
) -> WindowOutput:
    """The window's rows, each with all units of the old row that its name tells."""
    assert isinstance(sink, Reusable)
    parts, order, document = _gathered(names, ledger, sink, windows)
    tokens = _column([p.token_count for p in parts], order, len(document), np.int64)
    truncated = _column([p.truncated for p in parts], order, len(document), np.bool_)
    return WindowOutput(
        record=WindowRecord(
            key=window.key,
            begin=window.begin,
            end=window.end,
            last=window.last,
            books=window.books,
            units=len(document),
            tokens=int(tokens.sum()),
            padded_tokens=int(tokens.sum()),
            truncated=int(truncated.sum()),
        ),
        ids=[window.ids[d] for d in document.tolist()],
        positions=window.positions,
        outputs={o.name: _joined([p.outputs[o.name] for p in parts], order) for o in plan.outputs},
        kept=window.kept.take(pa.array(document)),
        token_count=tokens,
        truncated=truncated,
        chunk=_column([p.chunk for p in parts], order, len(document), np.int32) if plan.chunked else None,
        char_start=_column([p.char_start for p in parts], order, len(document), np.int32) if plan.chunked else None,
        char_end=_column([p.char_end for p in parts], order, len(document), np.int32) if plan.chunked else None,
        dead=(),
        hashes=window.hashes,
    )


def _gathered(
    names: Sequence[int], ledger: Ledger, sink: Reusable, windows: Sequence[Sequence[int]]
) -> tuple[list[Stored], np.ndarray, np.ndarray]:
    """Units of the named rows, part by part; the order that puts them end to end by row; the row of each."""
    by_place: dict[int, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        by_place[name >> 32].append(number)
    parts: list[Stored] = []
    documents: list[np.ndarray] = []
    for place, numbers in sorted(by_place.items()):
        generation, slice_, number, _ = windows[place]
        record = ledger.contents.windows[WindowKey(generation=generation, slice=slice_, window=number)]
        rows = np.array([names[n] & _LOW for n in numbers], dtype=np.int64)
        order = np.argsort(rows)
        stored = sink.stored(record, rows[order])
        parts.append(stored)
        documents.append(np.array(numbers, dtype=np.int64)[order][np.searchsorted(rows[order], stored.row)])
    document = np.concatenate(documents)
    order = np.argsort(document, kind="stable")
    return parts, order, document[order]


def _joined(values: Sequence[Values], order: np.ndarray) -> Values:
    return take(join(values), order)


def _column(values: Sequence[np.ndarray | None], order: np.ndarray, count: int, dtype: type[np.generic]) -> np.ndarray:
    """The values in order, or zeros where the destination does not keep them."""
    known = [v for v in values if v is not None]
    if len(known) < len(values) or not known:
        return np.zeros(count, dtype=dtype)
    found: np.ndarray = np.concatenate(known)[order].astype(dtype)
    return found
