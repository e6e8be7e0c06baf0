"""Arrow IPC, file and stream kinds (`.arrow`, `.feather` version 2, `.ipc`, `.arrows`).

Enters: an Arrow file and row numbers. Leaves: blocks. Refused: Feather version 1, a file that is cut short.
The file is mapped, so a record batch of any size costs only what is looked at (unless its buffers are compressed).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.ipc

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.columnar import blocks_of

_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"


class ArrowFormat:
    """Positions are row numbers in the file. A file is cut between record batches; a stream is one segment."""

    name = "arrow"

    def schema(self, file: SourceFile) -> pa.Schema:
        """The file's schema. :raises SourceError: not an Arrow file."""
        with _opened(file) as source:
            return _reader(source).schema

    def segments(self, file: SourceFile, target_bytes: int) -> list[Segment]:
        """Runs of whole record batches of about `target_bytes`."""
        with _opened(file) as source:
            reader = _reader(source)
            if not isinstance(reader, pa.ipc.RecordBatchFileReader):
                return [Segment(file=file.index)]
            per_batch = file.size_bytes / max(reader.num_record_batches, 1)
            group = max(int(target_bytes / max(per_batch, 1)), 1)
            if reader.num_record_batches <= group:
                return [Segment(file=file.index)]
            sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        begins = [sum(sizes[:i]) for i in range(0, len(sizes), group)]
        ends = [*begins[1:], sum(sizes)]
        return [Segment(file=file.index, begin=b, end=e) for b, e in zip(begins, ends, strict=True)]

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """Rows of the segment from row `start` on.

        :raises SourceError: the file is broken or ends too early; rows before that come first.
        """
        begin = segment.begin if start is None else max(start, segment.begin)
        with _opened(file) as source:
            reader = _reader(source, wanted=schema)
            yield from blocks_of(file, _batches(reader), schema, 0, begin, segment.end)


@contextmanager
def _opened(file: SourceFile) -> Iterator[pa.NativeFile]:
    try:
        with pa.memory_map(file.path) as source:
            yield source
    except (pa.ArrowException, OSError) as exc:
        raise _broken(file, exc) from exc


def _reader(
    source: pa.NativeFile, wanted: pa.Schema | None = None
) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    magic = source.read(len(_FILE_MAGIC))
    source.seek(0)
    if magic.startswith(_FEATHER_1_MAGIC):
        raise pa.ArrowInvalid("it is Feather version 1; only version 2 can be read")
    open_it = pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream
    if wanted is None:
        return open_it(source)
    in_file = open_it(source).schema
    tops = {name.partition(".")[0] for name in wanted.names} | set(wanted.names)
    source.seek(0)
    fields = [i for i, name in enumerate(in_file.names) if name in tops]
    return open_it(source, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))


def _batches(reader: pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)
        return
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        yield batch


def _broken(file: SourceFile, exc: Exception) -> SourceError:
    return SourceError(
        f"{file.uri}: not a readable Arrow file: {str(exc).splitlines()[0]}",
        hint=f"is it complete? write it again ({os.path.getsize(file.path) if os.path.exists(file.path) else 0} bytes)",
    )
