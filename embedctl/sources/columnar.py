"""What columnar formats share: batches of a file, of any size, become bounded blocks of the planned schema."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from embedctl.errors import SourceError
from embedctl.records import RowBlock, SourceFile
from embedctl.sources.base import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS
from embedctl.sources.conform import conform, take_column
from embedctl.sources.roles import AnyArray


def blocks_of(
    file: SourceFile,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    first: int,
    begin: int,
    end: int | None,
) -> Iterator[RowBlock]:
    """Blocks of the rows [begin, end); the first batch's first row has number `first`.

    :raises SourceError: a column of `schema` is not in the file.
    """
    row = first
    for batch in batches:
        if end is not None and row >= end:
            return
        low = min(max(begin - row, 0), batch.num_rows)
        high = batch.num_rows if end is None else min(batch.num_rows, end - row)
        yield from _cut(file, batch.slice(low, high - low), schema, row + low)
        row += batch.num_rows


def _cut(file: SourceFile, batch: pa.RecordBatch, schema: pa.Schema, row: int) -> Iterator[RowBlock]:
    done = 0
    while done < batch.num_rows:
        piece = batch.slice(done, MAX_BLOCK_ROWS)
        # nbytes counts only the slice; halving finds a fitting size in a few steps even among very unequal rows.
        while piece.num_rows > 1 and piece.nbytes > MAX_BLOCK_BYTES:
            piece = piece.slice(0, piece.num_rows // 2)
        yield _block(file, piece, schema, row + done)
        done += piece.num_rows


def _block(file: SourceFile, batch: pa.RecordBatch, schema: pa.Schema, row: int) -> RowBlock:
    errors: dict[int, str] = {}
    arrays: list[AnyArray] = []
    for field in schema:
        try:
            array = take_column(batch, field.name)
        except KeyError as exc:
            raise SourceError(
                f"{file.uri}: no column {field.name!r}; it has {', '.join(batch.schema.names) or 'none'}"
            ) from exc
        out, bad = conform(array, field)
        arrays.append(out)
        for i, reason in bad.items():
            errors.setdefault(i, reason)
    columns = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else batch.select([])
    return RowBlock(
        file=file.index,
        positions=np.arange(row, row + batch.num_rows, dtype=np.int64),
        columns=columns,
        next_position=row + batch.num_rows,
        errors=dict(sorted(errors.items())),
    )
