"""What a file format must do to be a source. One file and one registry line make a new one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from embedctl.records import RowBlock, Segment, SourceFile

MAX_BLOCK_ROWS = 1024
MAX_BLOCK_BYTES = 4 << 20
MAX_ROW_BYTES = 64 << 20


class Format(Protocol):
    """A file format. Stateless; safe to use from several threads on different files."""

    name: str

    def schema(self, file: SourceFile) -> pa.Schema:
        """Column names and types. Line formats infer them from a bounded sample at the file's start.

        :raises SourceError: the file cannot be opened or is not of this format.
        """
        ...

    def segments(self, file: SourceFile, target_bytes: int) -> list[Segment]:
        """Cut the file into stretches of about `target_bytes`, in order, without gap or overlap.

        A file that cannot be entered in the middle is one segment. A file without rows may give one empty segment.
        """
        ...

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """Yield the segment's rows in order, at or after position `start`, only the columns of `schema`.

        Blocks hold at most MAX_BLOCK_ROWS rows and about MAX_BLOCK_BYTES. Memory is bounded whatever the file's
        own grouping. A row that cannot be decoded is an entry in `RowBlock.errors`, never an exception.

        :raises SourceError: the file itself is broken (truncated, not this format), with the file's name.
        """
        ...
