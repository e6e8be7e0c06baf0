"""The list of changed rows between two generations: written once by a sync, then read in place of the files.

Enters: rows of blocks, with what they are. Leaves: chunks of Arrow streams under `.embedctl/changes-<generation>/`, and
a manifest, last, that makes the list whole. Read back as blocks that carry the real file and position of each row, so a
run killed half-way goes on although the files have changed meanwhile.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import BooksError, SinkError
from embedctl.records import RowBlock, Segment, Slice, SourceFile
from embedctl.sources.base import MAX_BLOCK_ROWS
from embedctl.storage import STATE, LocalStorage, sink_error

ENCODE, REUSE = "encode", "reuse"
"""What a chunk's rows need: to be embedded, or only other columns beside the outputs they have."""
_MANIFEST = "manifest.json"
_OWN: list[Any] = [pa.field("file", pa.int32()), pa.field("position", pa.int64()), pa.field("problem", pa.string())]
_OLD = pa.field("old", pa.uint64())


def folder_of(generation: int) -> str:
    return f"{STATE}/changes-{generation:04d}"


def _chunk_name(generation: int, number: int) -> str:
    return f"{folder_of(generation)}/{number:05d}.arrows"


@dataclass(slots=True)
class ChangeWriter:
    """Writes one kind's chunks. `numbers` are shared by all writers of a list: a chunk's is its slice's."""

    storage: LocalStorage
    generation: int
    schema: pa.Schema
    kind: str
    max_bytes: int
    numbers: Iterator[int]
    chunks: list[int] = field(default_factory=list)
    _file: Any = None
    _writer: Any = None
    _path: Path | None = None
    _bytes: int = 0
    _rows: int = 0

    def add(
        self, block: RowBlock, rows: np.ndarray, problems: Mapping[int, str], old: np.ndarray | None = None
    ) -> np.ndarray:
        """Append these rows (int64, ascending) of a block; their uint64 names, chunk << 32 | row in the chunk.

        problems: why a row, by its number in the block, is dead. old: uint64 names of the rows they replace.
        """
        try:
            if self._writer is None:
                self._open()
            batch = self._batch(block, rows, problems, old)
            self._writer.write_batch(batch)
        except OSError as exc:
            raise sink_error(self._path or self.storage.root, exc) from exc
        first = (self.chunks[-1] << 32) + self._rows
        self._rows += len(rows)
        self._bytes += batch.nbytes
        if self._bytes >= self.max_bytes or self._rows >= 1 << 30:
            self.close()
        return np.arange(first, first + len(rows), dtype=np.uint64)

    def close(self) -> None:
        """The open chunk is whole and durable."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            assert self._path is not None
            self.storage.put_if_absent(_chunk_name(self.generation, self.chunks[-1]), self._path)
            self._writer = None
            self._bytes = self._rows = 0

    def _open(self) -> None:
        self.chunks.append(next(self.numbers))
        self._path = self.storage.scratch(f"changes-{self.chunks[-1]}")
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_stream(self._file, _stored_schema(self.schema, self.kind))

    def _batch(
        self, block: RowBlock, rows: np.ndarray, problems: Mapping[int, str], old: np.ndarray | None
    ) -> pa.RecordBatch:
        taken = block.columns.take(pa.array(rows))
        own = [
            pa.array(np.full(len(rows), block.file, dtype=np.int32)),
            pa.array(block.positions[rows]),
            pa.array([problems.get(i) for i in rows.tolist()], pa.string()),
            *([] if old is None else [pa.array(old)]),
        ]
        return pa.RecordBatch.from_arrays([*own, *taken.columns], schema=_stored_schema(self.schema, self.kind))


def _stored_schema(schema: pa.Schema, kind: str) -> pa.Schema:
    own = [*_OWN, _OLD] if kind == REUSE else _OWN
    return pa.schema([*own, *(pa.field(str(i), f.type) for i, f in enumerate(schema))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A whole list. kinds: of each chunk, by number. losers: row names -> why they are dead, or "" to pass them over.

    details: what the writer wants to find again.
    """

    generation: int
    kinds: Mapping[int, str]
    losers: Mapping[int, str]
    details: Mapping[str, Any]


def publish(storage: LocalStorage, changes: Changes) -> None:
    """The last step: from here on the list is whole."""
    content = {
        "version": 1,
        "kinds": [[n, k] for n, k in sorted(changes.kinds.items())],
        "losers": [[n, why] for n, why in sorted(changes.losers.items())],
        "details": dict(changes.details),
    }
    name = f"{folder_of(changes.generation)}/{_MANIFEST}"
    if not storage.put_if_absent(name, json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")):
        raise SinkError(f"{storage.uri}/{name}: another run has written it")


def is_whole(storage: LocalStorage, generation: int) -> bool:
    """Whether a list is there that was published."""
    return storage.read(f"{folder_of(generation)}/{_MANIFEST}") is not None


def load(storage: LocalStorage, generation: int) -> Changes:
    """:raises BooksError: it is not there, or was never finished."""
    name = f"{folder_of(generation)}/{_MANIFEST}"
    content = storage.read(name)
    if content is None:
        raise BooksError(
            f"{storage.uri}/{name}: the list of changed rows is gone",
            hint="bring it back, or start a new job with another --to",
        )
    obj = json.loads(content)
    return Changes(
        generation=generation,
        kinds={int(n): str(k) for n, k in obj["kinds"]},
        losers={int(n): str(why) for n, why in obj["losers"]},
        details=obj["details"],
    )


def clear(storage: LocalStorage, generation: int) -> None:
    """Remove a list: the manifest first, so that a half of it is never taken for a whole."""
    storage.delete(f"{folder_of(generation)}/{_MANIFEST}")
    for entry in storage.list(folder_of(generation)):
        storage.delete(entry.name)
    with contextlib.suppress(OSError):  # it was not there, or is not empty
        (storage.root / folder_of(generation)).rmdir()


def slices_of(storage: LocalStorage, changes: Changes) -> tuple[Slice, ...]:
    """One slice a chunk; a segment runs from a file's first position in it to the last."""
    slices = []
    for number in sorted(changes.kinds):
        segments: list[Segment] = []
        for batch in _batches(storage, changes.generation, number):
            file, positions = _file(batch), batch.column(1).to_numpy()
            begin, end = int(positions[0]), int(positions[-1]) + 1
            if segments and segments[-1].file == file:
                segments[-1] = Segment(file=file, begin=segments[-1].begin, end=end)
            else:
                segments.append(Segment(file=file, begin=begin, end=end))
        slices.append(Slice(index=number, segments=tuple(segments)))
    return tuple(slices)


def blocks_of(
    storage: LocalStorage, generation: int, slices: Sequence[Slice], schema: pa.Schema
) -> Callable[[SourceFile, int, int | None, int], Iterator[RowBlock]]:
    """A reader that serves a file's changed rows instead of the file's."""
    changes = load(storage, generation)
    chunk_of = {(s.file, s.begin): slice_.index for slice_ in slices for s in slice_.segments}

    def blocks(file: SourceFile, begin: int, end: int | None, start: int) -> Iterator[RowBlock]:
        number, row = chunk_of[file.index, begin], 0
        for batch in _batches(storage, generation, number):
            first, row = row, row + batch.num_rows
            positions = batch.column(1).to_numpy()
            if _file(batch) != file.index or positions[-1] < start:
                continue
            if end is not None and positions[0] >= end:
                return
            block = _block(batch, schema, _lost(changes, (number << 32) + first, batch.num_rows), start)
            if block is not None:
                yield block

    return blocks


def _lost(changes: Changes, name: int, count: int) -> dict[int, str]:
    """Losers among `count` rows from this name on, by their number among them."""
    if not changes.losers:
        return {}
    return {i: changes.losers[name + i] for i in range(count) if name + i in changes.losers}


def _block(batch: pa.RecordBatch, schema: pa.Schema, losers: Mapping[int, str], start: int) -> RowBlock | None:
    """The rows at or after `start` that are not passed over; None where there are none."""
    positions = batch.column(1).to_numpy()
    keep = positions >= start
    keep[[row for row, why in losers.items() if not why]] = False
    rows = np.flatnonzero(keep)
    if not len(rows):
        return None
    taken = batch.take(pa.array(rows, pa.int64()))
    problems = batch.column(2)
    why = {i: losers.get(row) or problems[row].as_py() for i, row in enumerate(rows.tolist())}
    own = len(batch.schema) - len(schema)
    return RowBlock(
        file=_file(batch),
        positions=positions[rows],
        columns=pa.RecordBatch.from_arrays(taken.columns[own:], schema=schema),
        next_position=int(positions[-1]) + 1,
        errors={i: reason for i, reason in why.items() if reason},
    )


def replaced_by(storage: LocalStorage, generation: int, number: int) -> dict[tuple[int, int], int]:
    """(file, position) of each row of a chunk that needs no embedding -> the name of the row it replaces."""
    found: dict[tuple[int, int], int] = {}
    for batch in _batches(storage, generation, number):
        file = _file(batch)
        positions, old = batch.column(1).to_numpy().tolist(), batch.column(3).to_numpy().tolist()
        found |= {(file, p): o for p, o in zip(positions, old, strict=True)}
    return found


def files_of(storage: LocalStorage, generation: int, names: Sequence[int]) -> list[tuple[int, int]]:
    """(file, position) of each row, by name."""
    wanted: dict[int, list[int]] = {}
    for name in names:
        wanted.setdefault(name >> 32, []).append(name & 0xFFFFFFFF)
    found: dict[int, tuple[int, int]] = {}
    for number, rows in wanted.items():
        first, here = 0, sorted(rows)
        for batch in _batches(storage, generation, number):
            inside = [r for r in here if first <= r < first + batch.num_rows]
            for r in inside:
                found[(number << 32) + r] = (_file(batch), int(batch.column(1).to_numpy()[r - first]))
            first += batch.num_rows
    return [found[name] for name in names]


def _file(batch: pa.RecordBatch) -> int:
    return int(batch.column(0).to_numpy()[0])


def _batches(storage: LocalStorage, generation: int, number: int) -> Iterator[pa.RecordBatch]:
    """Batches of one chunk, each of one file and of at most MAX_BLOCK_ROWS rows."""
    path = storage.root / _chunk_name(generation, number)
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                assert batch.num_rows <= MAX_BLOCK_ROWS
                yield batch
    except (pa.ArrowInvalid, OSError) as exc:
        raise BooksError(f"{path}: the list of changed rows cannot be read ({exc})") from exc
