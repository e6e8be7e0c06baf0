"""CSV and TSV with a header row, RFC 4180 quotes and line breaks inside quotes.

Enters: a file and byte offsets. Leaves: blocks; every column is a string unless the plan says otherwise. Refused: a
column name that is empty or there twice. A row with too many or too few cells, a quote that does not close or a cell
that is not valid UTF-8 is an error of that row alone.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.base import MAX_ROW_BYTES
from embedctl.sources.conform import shorten
from embedctl.sources.jsonfit import Json, Misfit
from embedctl.sources.lines import Line, head, read_physical_lines, split_lines
from embedctl.sources.roles import AnyField
from embedctl.sources.rows import Row, blocks_of_rows

HEADER_BYTES = 1 << 20


class _Record(NamedTuple):
    offset: int
    end: int
    cells: list[str]
    error: str | None
    raw: bytes
    damaged: bool


class CsvFormat:
    """Positions are decompressed byte offsets of records. One file is one segment: quotes span lines."""

    name = "csv"
    delimiter = ","

    def schema(self, file: SourceFile) -> pa.Schema:
        """The header's names, all strings; no columns for an empty file.

        :raises SourceError: the file cannot be read, or a name is empty or there twice.
        """
        lines = split_lines(iter([head(file, HEADER_BYTES)]), 0, all_lines=True)
        first = next(_records(lines, self.delimiter), None)
        return pa.schema([pa.field(name, pa.string()) for name in _header(file, first)])

    def segments(self, file: SourceFile, target_bytes: int) -> list[Segment]:  # noqa: ARG002 (the protocol's)
        """The whole file: a byte in the middle does not tell whether it is inside quotes."""
        return [Segment(file=file.index)]

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """All rows at or after byte `start`; what comes before is read and passed over.

        :raises SourceError: the file cannot be read to its end (rows before that come first), or lacks a column.
        """
        return blocks_of_rows(file, self._rows(file, schema, max(start or 0, segment.begin)), schema)

    def _rows(self, file: SourceFile, schema: pa.Schema, begin: int) -> Iterator[Row]:
        # The module's limit is one for the whole process; the lines are bounded by the reader below anyway.
        csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_ROW_BYTES))
        records = _records(read_physical_lines(file), self.delimiter)
        header = _header(file, next(records, None))
        missing = [name for name in schema.names if name not in header] if header else []
        if missing:
            raise SourceError(f"{file.uri}: no column {missing[0]!r}; it has {', '.join(header)}")
        cells = [(header.index(f.name), f.name, _converter(f)) for f in schema] if header else []
        for record in records:
            if record.offset >= begin:
                yield _row(record, len(header), cells)


class TsvFormat(CsvFormat):
    """CSV with tabs."""

    name = "tsv"
    delimiter = "\t"


class _Feed:
    """Hands physical lines to the csv parser as text and remembers the bytes of the record at hand."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self.begin_record()

    def begin_record(self) -> None:
        self.offset = self.end = -1
        self.raw: list[bytes] = []
        self.num_bytes = 0
        self.damaged = self.too_long = False

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self.too_long:
            raise StopIteration
        line = next(self._lines)
        self.offset = line.offset if self.offset < 0 else self.offset
        self.end = line.end
        self.num_bytes += line.end - line.offset
        if line.too_long or self.num_bytes > MAX_ROW_BYTES:
            self.too_long = True
            self.raw = []
            return ""
        self.raw.append(line.content)
        try:
            return line.content.decode("utf-8")
        except UnicodeDecodeError:
            self.damaged = True
            return line.content.decode("utf-8", "surrogateescape")


def _records(lines: Iterator[Line], delimiter: str) -> Iterator[_Record]:
    feed = _Feed(lines)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin_record()
        error = None
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as exc:
            error = _parse_error(exc, len(feed.raw))
        if feed.too_long:
            error = "row is longer than 64 MiB; is a quote not closed?"
            reader = csv.reader(feed, delimiter=delimiter, strict=True)
        if cells or error is not None:
            raw = b"".join(feed.raw).rstrip(b"\r\n")
            yield _Record(feed.offset, feed.end, cells, error, raw, feed.damaged)


def _parse_error(exc: csv.Error, num_lines: int) -> str:
    if "unexpected end of data" in str(exc):
        return f"row has a quote that is not closed before the end of the file, {num_lines} lines on"
    return f"row is not valid CSV: {exc}"


def _header(file: SourceFile, record: _Record | None) -> list[str]:
    if record is None:
        return []
    if record.error is not None or record.damaged:
        raise SourceError(
            f"{file.uri}: the header cannot be read: {record.error or 'it is not valid UTF-8'}",
            hint="the first row must hold the column names",
        )
    names = record.cells
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SourceError(f"{file.uri}: column {name!r} is in the header twice", hint="rename one of them")
        if not name and i < len(names) - 1:
            raise SourceError(f"{file.uri}: column {i + 1} of the header has no name", hint="give it one")
    return names


def _row(record: _Record, width: int, cells: list[tuple[int, str, Callable[[str], Json]]]) -> Row:
    error = record.error
    if error is None and len(record.cells) != width:
        error = f"row has {len(record.cells)} cells, the header has {width}"
    if error is not None:
        return Row(record.offset, record.end, [None] * len(cells), error, record.raw)
    values: list[Json] = []
    for i, name, convert in cells:
        text = record.cells[i]
        try:
            if record.damaged:
                text.encode("utf-8")
            values.append(convert(text))
        except UnicodeEncodeError:
            error = error or f"column {name!r} is not valid UTF-8"
            values.append(None)
        except Misfit as exc:
            error = error or str(exc)
            values.append(None)
    return Row(record.offset, record.end, values, error, record.raw)


def _converter(field: AnyField) -> Callable[[str], Json]:
    if pa.types.is_string(field.type):
        return str
    parse = int if pa.types.is_integer(field.type) else float if pa.types.is_floating(field.type) else _bool

    def convert(text: str) -> Json:
        if not text.strip():
            return None
        try:
            return parse(text)
        except ValueError:
            raise Misfit(f"column {field.name!r} holds {shorten(text)}, not {field.type}") from None

    return convert


def _bool(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None
