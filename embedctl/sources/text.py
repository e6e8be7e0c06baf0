"""Plain text: one row a line, one column `text`.

Enters: a file and byte offsets. Leaves: blocks. A line that is not valid UTF-8 is an error of that row alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.lines import Line, byte_segments, head, read_lines
from embedctl.sources.rows import Row, blocks_of_rows

COLUMN = "text"


class TextFormat:
    """Positions are decompressed byte offsets; plain files are cut at any byte, compressed ones are one segment."""

    name = "text"

    def schema(self, file: SourceFile) -> pa.Schema:
        """Always the one column `text`. :raises SourceError: the file cannot be read."""
        head(file, 16)
        return pa.schema([pa.field(COLUMN, pa.string())])

    def segments(self, file: SourceFile, target_bytes: int) -> list[Segment]:
        """Byte ranges; a line belongs to the one that holds its first byte."""
        return byte_segments(file, target_bytes)

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """Lines of the segment from byte `start` on; empty lines are no rows.

        :raises SourceError: the file cannot be read to its end; rows before that come first.
        """
        if any(name != COLUMN for name in schema.names):
            raise SourceError(f"{file.uri}: plain text has only the column {COLUMN!r}, not {', '.join(schema.names)}")
        begin = segment.begin if start is None else max(start, segment.begin)
        width = len(schema)
        return blocks_of_rows(file, (_row(line, width) for line in read_lines(file, begin, segment.end)), schema)


def _row(line: Line, width: int) -> Row:
    if line.too_long:
        return Row(line.offset, line.end, [None] * width, "line is longer than 64 MiB", b"")
    try:
        return Row(line.offset, line.end, [line.content.decode("utf-8")] * width, None, line.content)
    except UnicodeDecodeError as exc:
        return Row(line.offset, line.end, [None] * width, f"line is not valid UTF-8 (byte {exc.start})", line.content)
