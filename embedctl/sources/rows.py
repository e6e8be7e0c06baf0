"""What row-by-row formats share: decoded rows gather into bounded blocks of the planned schema.

Enters: rows one at a time, as values by column or as a reason why there are none. Leaves: `RowBlock`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from embedctl.records import RowBlock, SourceFile
from embedctl.sources.base import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS
from embedctl.sources.files import STDIN
from embedctl.sources.jsonfit import Json
from embedctl.sources.roles import AnyArray, AnyField


class Row(NamedTuple):
    """One row. values: a cell for each column of the schema (None: null). error: why a cell or the row is unreadable.

    offset, end: bytes of the file it takes, decompressed. raw: these bytes, without the line end.
    """

    offset: int
    end: int
    values: list[Json]
    error: str | None
    raw: bytes


def blocks_of_rows(file: SourceFile, rows: Iterable[Row], schema: pa.Schema) -> Iterator[RowBlock]:
    """Blocks of at most MAX_BLOCK_ROWS rows and about MAX_BLOCK_BYTES of file."""
    held: list[Row] = []
    num_bytes = 0
    try:
        for row in rows:
            size = len(row.raw)
            if held and (len(held) == MAX_BLOCK_ROWS or num_bytes + size > MAX_BLOCK_BYTES):
                yield _block(file, held, schema)
                held, num_bytes = [], 0
            held.append(row)
            num_bytes += size
    except Exception:
        # The rows before a break in the file are whole: they come first, then the error.
        if held:
            yield _block(file, held, schema)
        raise
    if held:
        yield _block(file, held, schema)


def _block(file: SourceFile, rows: list[Row], schema: pa.Schema) -> RowBlock:
    errors = {i: row.error for i, row in enumerate(rows) if row.error is not None}
    arrays: list[AnyArray] = []
    for i, field in enumerate(schema):
        array, bad = _array([row.values[i] for row in rows], field)
        arrays.append(array)
        for row_in_block, reason in bad.items():
            errors.setdefault(row_in_block, reason)
    columns = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else _no_columns(len(rows))
    return RowBlock(
        file=file.index,
        positions=np.array([row.offset for row in rows], dtype=np.int64),
        columns=columns,
        next_position=rows[-1].end,
        errors=dict(sorted(errors.items())),
        raw=[row.raw for row in rows] if file.path == STDIN else None,
    )


def _no_columns(num_rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=["_"]).select([])


def _array(values: list[Json], field: AnyField) -> tuple[AnyArray, Mapping[int, str]]:
    try:
        return pa.array(values, field.type), {}
    except (UnicodeEncodeError, OverflowError, pa.ArrowException):
        pass
    good, bad = list(values), {}
    for i, value in enumerate(values):
        try:
            pa.array([value], field.type)
        except (UnicodeEncodeError, OverflowError, pa.ArrowException) as exc:
            good[i], bad[i] = None, _reason(field, exc)
    return pa.array(good, field.type), bad


def _reason(field: AnyField, exc: Exception) -> str:
    if isinstance(exc, UnicodeEncodeError):
        return f"column {field.name!r} holds a lone surrogate (character {exc.start})"
    return f"column {field.name!r} does not fit {field.type}: {str(exc).splitlines()[0]}"
