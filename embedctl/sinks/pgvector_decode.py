"""Cells as PostgreSQL sends them in binary, back as Arrow columns.

Enters: the cells of a column and its SQL type. Leaves: an Arrow array of a type that the SQL type alone decides: whole
numbers, floats, bool, text, bytea, date, time and timestamp as they are; numeric with a size a decimal; uuid, jsonb and
all else their text. One-dimensional arrays are lists. Refused: arrays of more dimensions.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError

_EPOCH_DAYS, _EPOCH_US = 10_957, 946_684_800_000_000
_FIXED: dict[str, tuple[str, pa.DataType, int]] = {
    "boolean": ("?", pa.bool_(), 0),
    "smallint": (">i2", pa.int16(), 0),
    "integer": (">i4", pa.int32(), 0),
    "bigint": (">i8", pa.int64(), 0),
    "real": (">f4", pa.float32(), 0),
    "double precision": (">f8", pa.float64(), 0),
    "date": (">i4", pa.date32(), _EPOCH_DAYS),
    "time without time zone": (">i8", pa.time64("us"), 0),
    "timestamp without time zone": (">i8", pa.timestamp("us"), _EPOCH_US),
    "timestamp with time zone": (">i8", pa.timestamp("us", "UTC"), _EPOCH_US),
}
_RAW = {"text": pa.string(), "character varying": pa.string(), "bytea": pa.binary()}


def selected(name: str, declared: str) -> Any:
    """The column in a SELECT: as it is where it is read in binary, else as text."""
    from psycopg import sql

    column, base = sql.Identifier(name), declared.removesuffix("[]")
    if base in _FIXED or base in _RAW or base.startswith("character varying("):
        return column
    cast = sql.SQL("{}::text[]" if declared.endswith("[]") else "{}::text")
    return cast.format(column)


def column_from(cells: Sequence[bytes | None], declared: str) -> Any:
    """n cells of a column selected by `selected`. :raises SinkError: an array of more than one dimension."""
    if not declared.endswith("[]"):
        return _scalars(cells, declared)
    sizes, inner = [], []
    for cell in cells:
        entries = None if cell is None else _entries(cell)
        sizes.append(len(entries or []))
        inner += entries or []
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int32)
    missing = np.array([cell is None for cell in cells] + [False])
    values = _scalars(inner, declared.removesuffix("[]"))
    starts: Any = pa.array(offsets, mask=missing)
    return pa.ListArray.from_arrays(starts, values)


def _entries(cell: bytes) -> list[bytes | None]:
    (dimensions,) = struct.unpack_from(">i", cell)
    if dimensions > 1:
        raise SinkError(
            f"an array of {dimensions} dimensions; lists of lists are not read", hint="a view that leaves it out"
        )
    if not dimensions:
        return []
    (count,) = struct.unpack_from(">i", cell, 12)
    found: list[bytes | None] = []
    at = 20
    for _ in range(count):
        (size,) = struct.unpack_from(">i", cell, at)
        at += 4
        found.append(None if size < 0 else cell[at : at + size])
        at += max(size, 0)
    return found


def _scalars(cells: Sequence[bytes | None], declared: str) -> Any:
    if declared in _FIXED:
        return _fixed(cells, *_FIXED[declared])
    if declared in _RAW:
        return pa.array(cells, pa.binary()).cast(_RAW[declared])
    text = pa.array(cells, pa.binary()).cast(pa.string())
    exact = re.fullmatch(r"numeric\((\d+),(\d+)\)", declared)
    if exact is not None and int(exact[1]) <= 38 and not any(cell == b"NaN" for cell in cells):
        return text.cast(pa.decimal128(int(exact[1]), int(exact[2])))
    return text


def _fixed(cells: Sequence[bytes | None], dtype: str, kind: pa.DataType, shift: int) -> Any:
    zero = b"\x00" * np.dtype(dtype).itemsize
    values = np.frombuffer(b"".join([zero if cell is None else cell for cell in cells]), dtype=dtype)
    missing = np.array([cell is None for cell in cells], dtype=bool)
    native = values.astype(values.dtype.newbyteorder("="))
    if not shift:
        return pa.array(native, mask=missing).cast(kind)
    ends = np.iinfo(native.dtype)
    endless = (native == ends.min) | (native == ends.max)  # -infinity and infinity, which Arrow lacks
    missing |= endless
    return pa.array(np.where(endless, 0, native) + native.dtype.type(shift), mask=missing).cast(kind)
