"""The frozen records that cross a stage, and the legend of shapes.

Shape suffixes in tensor code: T tokens of a batch (packed, no padding), N sequences, L one group's length,
H heads, D a head's width, E hidden width, V vocabulary, C output dimension. `input_ids_T` is (T,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from embedctl.outputs import Outputs, take


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of the corpus as the plan saw it.

    `uri` is relative to the corpus root and names the file in ids, books and dead letters; `path` opens it.
    `version` is an etag, or the modification time in ns; with `size_bytes` it tells changed content. `touched` is the
    time in ns at which the file system last saw it change in any way, 0 where that is not known: a copy that keeps size
    and modification time moves it too, but so does a rename, so it is a reason to read again and no more.
    """

    index: int
    uri: str
    path: str
    format: str
    compression: str | None
    size_bytes: int
    version: str
    touched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of one file: positions `begin` (inclusive) to `end` (exclusive, None: to the file's end).

    A position is a row number (Parquet, Arrow, CSV, text in compressed form never needs it) or, for
    line formats, the decompressed byte offset at which the row's first byte lies.
    """

    file: int
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one worker takes whole: segments read in order. `limit_rows` ends it early (`--limit`)."""

    index: int
    segments: tuple[Segment, ...]
    limit_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place between two rows of a slice: the next row is at or after `position` of segment `segment`."""

    segment: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """A bounded stretch of consecutive rows of one file, columnar, as a reader yields it.

    positions: int64 (n,), ascending. columns: n rows with exactly the schema the reader was asked for.
    errors: row in the block -> why it could not be read (its cells are then null). next_position: where a
    reader starts to get the row after the last one. raw: the rows' undecoded bytes, for standard input only.
    """

    file: int
    positions: np.ndarray
    columns: pa.RecordBatch
    next_position: int
    errors: Mapping[int, str] = field(default_factory=dict)
    raw: Sequence[bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRow:
    """A row that could not be embedded. `raw` is kept for standard input, which cannot be read again."""

    file: int
    position: int
    id: str | None
    reason: str
    raw: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """Token ids of n texts, end to end, special tokens included, already cut to the model's length.

    ids_T: int32 (T,). offsets: int64 (n + 1,), text i holds ids_T[offsets[i]:offsets[i + 1]].
    truncated: bool (n,), true where tokens were cut off. types_T: uint8 (T,), which of two texts a token is of, where
    the model takes that. contents: n pictures or sounds (see `media`), whose tokens the encoder makes: ids_T is zeros.
    """

    ids_T: np.ndarray
    offsets: np.ndarray
    truncated: np.ndarray
    types_T: np.ndarray | None = None
    contents: Sequence[str] | None = None

    @property
    def lengths(self) -> np.ndarray:
        """int64 (n,): tokens of each text."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one forward pass takes: N sequences packed end to end, sorted by length, so equal lengths touch.

    input_ids_T: int32 (T,). cu_seqlens: int32 (N + 1,), sequence i is input_ids_T[cu_seqlens[i]:cu_seqlens[i + 1]].
    units: int64 (N,), which unit of the window sequence i is. token_type_ids_T: int32 (T,) for pairs, else None.
    contents: N pictures or sounds, else None (see `Tokenized`).
    """

    input_ids_T: np.ndarray
    cu_seqlens: np.ndarray
    units: np.ndarray
    token_type_ids_T: np.ndarray | None = None
    contents: Sequence[str] | None = None

    @property
    def num_tokens(self) -> int:
        return int(self.cu_seqlens[-1])

    @property
    def max_seqlen(self) -> int:
        return int(np.diff(self.cu_seqlens).max(initial=0))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WindowKey:
    """Names a window for ever: generation, slice, number in the slice. Orders as positions in the source do."""

    generation: int
    slice: int
    window: int

    @property
    def stem(self) -> str:
        return f"g{self.generation:04d}-{self.slice:05d}-{self.window:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBooks:
    """The books of one file within one window: read = written + unchanged + skipped + duplicates + dead."""

    file: int
    read: int
    written: int
    skipped: int
    duplicates: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """What the ledger remembers of a committed window. Holds no time, no host, no writer.

    `revision` 1 replaces 0 after duplicates found at the end were taken out. `last`: no window follows in the slice.
    `replay` is the rolling hash of standard input up to `end`, None for files. `part` is the sink's name for it.
    """

    key: WindowKey
    begin: Cursor
    end: Cursor
    last: bool
    books: tuple[FileBooks, ...]
    units: int
    tokens: int
    padded_tokens: int
    truncated: int
    revision: int = 0
    part: str | None = None
    replay: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive rows of one slice, texts made, nothing encoded yet.

    Per live row, in input order: files int32 (n,), positions int64 (n,), ids, texts; `kept` has n rows.
    `books` counts all rows read, live ones as written until a later stage says otherwise. hashes: see `WindowOutput`.
    """

    key: WindowKey
    begin: Cursor
    end: Cursor
    last: bool
    files: np.ndarray
    positions: np.ndarray
    ids: Sequence[str]
    texts: Sequence[str]
    kept: pa.Table
    dead: tuple[DeadRow, ...]
    books: tuple[FileBooks, ...]
    replay: str | None = None
    raw: Sequence[bytes] | None = None
    hashes: np.ndarray | None = None

    @property
    def text_bytes(self) -> int:
        """An upper bound good enough for queues."""
        return 4 * sum(map(len, self.texts)) + self.kept.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What the encoder sees of a window: one unit a document, or one a chunk.

    document: int64 (u,), ascending, the window's live row of each unit. number, begin, end: int32 (u,), the chunk's
    number in its document and its character span. tokenized: of the distinct texts; sequence: int64 (u,), which
    of them each unit is (identical texts are encoded once).
    """

    document: np.ndarray
    number: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    tokenized: Tokenized
    sequence: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOutput:
    """A window ready for the sink: only live rows, units in input order.

    ids: per unit. positions: int64, per live row, or None where ids tell them. outputs: by name, in the plan's order, u
    values each, as they are stored. kept: u rows. chunk columns are None without chunking. hashes: uint64
    (live rows, 2), of the text and of the kept columns, or None where rows have no id of their own.
    """

    record: WindowRecord
    ids: Sequence[str]
    positions: np.ndarray | None
    outputs: Outputs
    kept: pa.Table
    token_count: np.ndarray
    truncated: np.ndarray
    chunk: np.ndarray | None
    char_start: np.ndarray | None
    char_end: np.ndarray | None
    dead: tuple[DeadRow, ...]
    hashes: np.ndarray | None = None

    @property
    def row_of_units(self) -> np.ndarray:
        """int64 (u,): the number, among the window's live rows, of the row each unit came from."""
        if self.chunk is None:
            return np.arange(len(self.ids), dtype=np.int64)
        rows: np.ndarray = np.cumsum(self.chunk == 0) - 1
        return rows

    def only(self, units: np.ndarray) -> WindowOutput:
        """The same window with these units (int64, ascending, whole rows) alone; its record is not changed."""
        rows = np.unique(self.row_of_units[units])
        return replace(
            self,
            ids=[self.ids[i] for i in units.tolist()],
            positions=None if self.positions is None else self.positions[rows],
            outputs={name: take(values, units) for name, values in self.outputs.items()},
            kept=self.kept.take(pa.array(units, pa.int64())),
            token_count=self.token_count[units],
            truncated=self.truncated[units],
            chunk=None if self.chunk is None else self.chunk[units],
            char_start=None if self.char_start is None else self.char_start[units],
            char_end=None if self.char_end is None else self.char_end[units],
            hashes=None if self.hashes is None else self.hashes[rows],
        )
