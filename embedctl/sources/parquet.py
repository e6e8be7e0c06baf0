"""Parquet, streamed: a row group of any size in bounded memory, only the needed columns.

Enters: a Parquet file and row numbers. Leaves: blocks. Refused: a file without its footer, a page that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.base import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS
from embedctl.sources.columnar import blocks_of

# Pre-buffering would hold every column chunk of a row group at once; a small buffer reads page by page.
_BUFFER_BYTES = 1 << 16


class ParquetFormat:
    """Positions are row numbers in the file; segments are cut between row groups."""

    name = "parquet"

    def schema(self, file: SourceFile) -> pa.Schema:
        """The file's Arrow schema, from its footer. :raises SourceError: not a Parquet file, or cut short."""
        with _open(file) as parquet:
            return parquet.schema_arrow

    def segments(self, file: SourceFile, target_bytes: int) -> list[Segment]:
        """Runs of whole row groups of about `target_bytes` (compressed, all columns)."""
        with _open(file) as parquet:
            metadata = parquet.metadata
            out: list[Segment] = []
            begin = row = num_bytes = 0
            for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
                size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
                if row > begin and num_bytes + size > target_bytes:
                    out.append(Segment(file=file.index, begin=begin, end=row))
                    begin, num_bytes = row, 0
                row += group.num_rows
                num_bytes += size
            out.append(Segment(file=file.index, begin=begin, end=row))
            return out

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """Rows of the segment from row `start` on; row groups before it are not read.

        :raises SourceError: the file or one of its pages is broken.
        """
        begin = segment.begin if start is None else max(start, segment.begin)
        with _open(file) as parquet:
            groups, first = _groups(parquet.metadata, begin, segment.end)
            if groups:
                yield from blocks_of(file, _batches(file, parquet, groups, schema), schema, first, begin, segment.end)


def _open(file: SourceFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.path, pre_buffer=False, buffer_size=_BUFFER_BYTES, memory_map=False)
    except (pa.ArrowException, OSError) as exc:
        raise SourceError(
            f"{file.uri}: not a readable Parquet file: {str(exc).splitlines()[0]}",
            hint="is it complete? write or download it again",
        ) from exc


def _groups(metadata: pq.FileMetaData, begin: int, end: int | None) -> tuple[list[int], int]:
    """Row groups that hold rows of [begin, end), and the row number at which the first of them starts."""
    groups: list[int] = []
    first = row = 0
    for i in range(metadata.num_row_groups):
        num_rows = metadata.row_group(i).num_rows
        if num_rows and row + num_rows > begin and (end is None or row < end):
            first = first if groups else row
            groups.append(i)
        row += num_rows
    return groups, first


def _batches(
    file: SourceFile, parquet: pq.ParquetFile, groups: list[int], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    rows = _batch_rows(parquet.metadata, groups, schema)
    try:
        yield from parquet.iter_batches(
            batch_size=rows, row_groups=groups, columns=_columns(parquet.schema_arrow, schema), use_threads=False
        )
    except (pa.ArrowException, OSError) as exc:
        raise SourceError(
            f"{file.uri}: a page in row groups {groups[0]} to {groups[-1]} cannot be read: {str(exc).splitlines()[0]}",
            hint="write or download the file again",
        ) from exc


def _columns(in_file: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Names to ask of pyarrow: it takes dotted paths into structs as they are."""
    return [name for name in wanted.names if name in in_file.names or name.partition(".")[0] in in_file.names]


def _batch_rows(metadata: pq.FileMetaData, groups: list[int], schema: pa.Schema) -> int:
    """Rows in a batch, so that one is about MAX_BLOCK_BYTES by the footer's sizes."""
    tops = {name.partition(".")[0] for name in schema.names} | set(schema.names)
    heaviest = 1.0
    for group in (metadata.row_group(i) for i in groups):
        columns = (group.column(i) for i in range(group.num_columns))
        size = sum(c.total_uncompressed_size for c in columns if _top(c.path_in_schema) in tops)
        heaviest = max(heaviest, size / max(group.num_rows, 1))
    return int(np.clip(MAX_BLOCK_BYTES / heaviest, 1, MAX_BLOCK_ROWS))


def _top(path: str) -> str:
    return path.partition(".")[0]
