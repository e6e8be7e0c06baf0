"""Files that are rows themselves: a folder of pictures or sounds.

Enters: a file. Leaves: one row: `id`, its URI, and its bytes, as `image` and as `audio`, whichever is asked for. A file
that is larger than a row may be is an error of that row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.base import MAX_ROW_BYTES

_FIELDS: list[Any] = [pa.field("id", pa.string()), pa.field("image", pa.binary()), pa.field("audio", pa.binary())]


class FileFormat:
    """The one position of a file is 0."""

    name = "file"

    def schema(self, _: SourceFile) -> pa.Schema:
        """Always the same three columns."""
        return pa.schema(_FIELDS)

    def segments(self, file: SourceFile, _: int) -> list[Segment]:
        """The one row."""
        return [Segment(file=file.index, begin=0, end=1)]

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """The row, where `start` is not behind it. :raises SourceError: the file cannot be read."""
        if max(segment.begin, start or 0) > 0:
            return
        errors: dict[int, str] = {}
        cells: dict[str, Any] = {"id": file.uri}
        if set(schema.names) & {"image", "audio"}:
            try:
                with open(file.path, "rb") as opened:
                    content = opened.read(MAX_ROW_BYTES + 1)
            except OSError as exc:
                raise SourceError(f"{file.uri}: cannot be read: {exc.strerror}", hint=f"ls -l {file.path}") from exc
            if len(content) > MAX_ROW_BYTES:
                errors[0] = f"the file is larger than {MAX_ROW_BYTES >> 20} MiB"
            else:
                cells |= {"image": content, "audio": content}
        arrays: list[Any] = [pa.array([cells.get(f.name)], f.type) for f in schema]
        columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield RowBlock(
            file=file.index, positions=np.zeros(1, dtype=np.int64), columns=columns, next_position=1, errors=errors
        )
