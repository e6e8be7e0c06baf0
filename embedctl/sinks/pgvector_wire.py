"""Arrow columns and outputs as fields of PostgreSQL's binary COPY, straight from numpy.

Enters: a column. Leaves: its SQL type and, a value a unit, the field as the server reads it (length, then bytes). The
mapping: null text; bool, whole numbers and floats the type that holds them, uint64 numeric; string text (U+0000, which
PostgreSQL has no place for, becomes U+FFFD); binary bytea; date, time and timestamp as they are, to the microsecond;
duration whole units; decimal numeric; a list of any of these an array; all else that nests jsonb, as `payload` says it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedctl.sinks.payload import payloads

NULL = b"\xff\xff\xff\xff"
HEADER = b"PGCOPY\n\xff\r\n\x00" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
_EPOCH_DAYS, _EPOCH_US = 10_957, 946_684_800_000_000
_FIRST_DAY, _FIRST_US = -2_451_545, -211_813_488_000_000_000
"""Before these, PostgreSQL has only -infinity: 4714 BC."""
_LAST_US = 9_223_371_331_200_000_000

Fields = list[bytes]
Column = Any
"""An Arrow array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlType:
    """name: as SQL spells it. oid: of the type, for arrays of it. fields: of a column of this type, chunks joined."""

    name: str
    oid: int
    fields: Callable[[Column], Fields]


def row_bytes(columns: Sequence[Fields]) -> bytes:
    """All rows of these columns, each a tuple of the stream."""
    head = [struct.pack(">h", len(columns))] * len(columns[0])
    return b"".join([piece for row in zip(head, *columns, strict=True) for piece in row])


def sql_type(kind: pa.DataType) -> SqlType:
    """Of a kept column."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        inner = sql_type(kind.storage_type)
        return SqlType(name=inner.name, oid=inner.oid, fields=lambda a: inner.fields(a.storage))
    if types.is_dictionary(kind):
        inner = sql_type(kind.value_type)
        return SqlType(name=inner.name, oid=inner.oid, fields=lambda a: inner.fields(a.dictionary_decode()))
    scalar = _scalar(kind)
    if scalar is not None:
        return scalar
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _scalar(kind.value_type)
        if element is not None:
            return SqlType(name=f"{element.name}[]", oid=0, fields=lambda a: _arrays(a, element))
    return SqlType(name="jsonb", oid=3802, fields=_jsonb)


_NUMBERS: dict[str, tuple[str, int, str]] = {
    "int8": ("smallint", 21, ">i2"), "int16": ("smallint", 21, ">i2"), "uint8": ("smallint", 21, ">i2"),
    "int32": ("integer", 23, ">i4"), "uint16": ("integer", 23, ">i4"), "int64": ("bigint", 20, ">i8"),
    "uint32": ("bigint", 20, ">i8"), "halffloat": ("real", 700, ">f4"), "float": ("real", 700, ">f4"),
    "double": ("double precision", 701, ">f8"), "bool": ("boolean", 16, "u1"),
}  # fmt: skip


def _scalar(kind: pa.DataType) -> SqlType | None:
    types, found = pa.types, _NUMBERS.get(str(kind))
    if found is not None:
        name, oid, dtype = found
        return SqlType(name=name, oid=oid, fields=lambda a: _numbers(a, dtype))
    if types.is_null(kind):
        return SqlType(name="text", oid=25, fields=lambda a: [NULL] * len(a))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return SqlType(name="text", oid=25, fields=_texts)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return SqlType(name="bytea", oid=17, fields=lambda a: _prefixed(a.to_pylist()))
    if types.is_decimal(kind):
        exact = f"({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision else ""
        return SqlType(name=f"numeric{exact}", oid=1700, fields=lambda a: _prefixed(map(_numeric, a.to_pylist())))
    if types.is_uint64(kind):
        return SqlType(name="numeric(20,0)", oid=1700, fields=lambda a: _prefixed(map(_numeric, a.to_pylist())))
    return _moment(kind)


def _moment(kind: pa.DataType) -> SqlType | None:
    types = pa.types
    if types.is_date(kind):
        return SqlType(name="date", oid=1082, fields=_dates)
    if types.is_time(kind):
        return SqlType(
            name="time without time zone",
            oid=1083,
            fields=lambda a: _numbers(_cast(a, pa.time64("us"), pa.int64()), ">i8"),
        )
    if types.is_duration(kind):
        return SqlType(name="bigint", oid=20, fields=lambda a: _numbers(a.cast(pa.int64()), ">i8"))
    if types.is_timestamp(kind):
        name, oid = ("timestamp with time zone", 1184) if kind.tz else ("timestamp without time zone", 1114)
        return SqlType(name=name, oid=oid, fields=lambda a: _timestamps(a, kind))
    return None


def fixed(raw: np.ndarray) -> Fields:
    """uint8 (n, w): n fields of w bytes."""
    count, width = raw.shape
    framed = np.empty((count, 4 + width), dtype=np.uint8)
    framed[:, :4] = np.frombuffer(struct.pack(">i", width), dtype=np.uint8)
    framed[:, 4:] = raw
    fields: Fields = framed.view(f"V{4 + width}").ravel().tolist()
    return fields


def int64s(values: np.ndarray) -> Fields:
    """(n,) of whole numbers, none missing, for a bigint column."""
    return fixed(np.ascontiguousarray(values, dtype=">i8").view(np.uint8).reshape(-1, 8))


def texts(values: Sequence[str]) -> Fields:
    """Text that is known to hold no U+0000 and no half of a pair."""
    return _prefixed(v.encode() for v in values)


def _prefixed(values: Any) -> Fields:
    return [NULL if v is None else len(v).to_bytes(4, "big") + v for v in values]


def _with_nulls(fields: Fields, column: Column) -> Fields:
    if column.null_count:
        for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            fields[i] = NULL
    return fields


def _numbers(column: Column, dtype: str) -> Fields:
    filled = column if not column.null_count else pc.if_else(column.is_null(), pa.scalar(0).cast(column.type), column)
    values = np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).astype(dtype)
    return _with_nulls(fixed(values.view(np.uint8).reshape(len(values), -1)), column)


def _texts(column: Column) -> Fields:
    """U+0000 becomes U+FFFD."""
    values: Column = column.cast(pa.large_string()).cast(pa.large_binary())
    if _has_nul(values):
        return _prefixed(v if v is None else v.replace(b"\x00", b"\xef\xbf\xbd") for v in values.to_pylist())
    return _byte_fields(values)


def plain_texts(values: Sequence[str], max_bytes: int) -> Fields | None:
    """As text; None where one of them holds U+0000, half a pair, or more bytes than this."""
    try:
        column: Column = pa.array(values, pa.large_string()).cast(pa.large_binary())
    except UnicodeEncodeError:
        return None
    if _has_nul(column) or int(_sizes(column).max(initial=0)) > max_bytes:
        return None
    return _byte_fields(column)


def _has_nul(column: Column) -> bool:
    data = column.buffers()[2]
    return data is not None and b"\x00" in memoryview(data).tobytes()


def _sizes(column: Column) -> np.ndarray:
    """(n,): bytes of each value, 0 where it is null."""
    lengths: Column = pc.binary_length(column)
    found: np.ndarray = lengths.fill_null(0).to_numpy()
    return found


def _byte_fields(column: Column) -> Fields:
    """large_binary: length and bytes, joined by Arrow."""
    sizes = _sizes(column).astype(">i4")
    heads = pa.Array.from_buffers(pa.binary(4), len(column), [None, pa.py_buffer(sizes.tobytes())])
    whole: Column = pc.binary_join_element_wise(
        heads.cast(pa.large_binary()), column, pa.scalar(b"", pa.large_binary())
    )
    fields: Fields = whole.fill_null(NULL).to_pylist()
    return fields


def _cast(column: Column, *kinds: pa.DataType) -> Column:
    for kind in kinds:
        column = pc.cast(column, kind, safe=False)
    return column


def _dates(column: Column) -> Fields:
    days = _cast(column, pa.date32(), pa.int32()).fill_null(0).to_numpy().astype(np.int64) - _EPOCH_DAYS
    days = np.where(days < _FIRST_DAY, -(2**31), days).astype(">i4")
    return _with_nulls(fixed(days.view(np.uint8).reshape(-1, 4)), column)


def _timestamps(column: Column, kind: Any) -> Fields:
    ticks = column.cast(pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    if per_s > 10**6:
        micros = ticks // (per_s // 10**6)
    else:
        scale = 10**6 // per_s
        limit = (2**63 - 1) // scale
        micros = np.clip(ticks, -limit, limit) * scale
    low, high = micros < _FIRST_US + _EPOCH_US, micros >= _LAST_US + _EPOCH_US if kind.unit != "ns" else False
    shifted = np.where(low, -(2**63), np.where(high, 2**63 - 1, micros - np.where(low, 0, _EPOCH_US)))
    return _with_nulls(int64s(shifted), column)


def _numeric(value: Decimal | int | None) -> bytes | None:
    """Base-10,000 digits, as the server sends them itself."""
    if value is None:
        return None
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)) + "0" * max(0, exponent)
    scale = max(0, -exponent)
    text = text.rjust(scale + 1, "0")
    whole, part = text[: len(text) - scale], text[len(text) - scale :]
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    both = whole + part.ljust(-(-len(part) // 4) * 4, "0")
    groups = [int(both[i : i + 4]) for i in range(0, len(both), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups.pop()
    head = (len(groups), weight if groups else 0, 0x4000 if sign and groups else 0, scale)
    return struct.pack(f">hhHH{len(groups)}h", *head, *groups)


def _arrays(column: Column, element: SqlType) -> Fields:
    lists: Column = column.cast(pa.large_list(column.type.value_type))
    inner = element.fields(lists.flatten())
    lengths = lists.value_lengths().fill_null(0).to_numpy().tolist()
    fields, at = [], 0
    for length in lengths:
        mine = inner[at : at + length]
        at += length
        size = (1, int(NULL in mine), element.oid, length, 1) if length else (0, 0, element.oid)
        body = struct.pack(f">{len(size)}i", *size) + b"".join(mine)
        fields.append(len(body).to_bytes(4, "big") + body)
    return _with_nulls(fields, column)


def _jsonb(column: Column) -> Fields:
    rows = payloads(pa.table({"it": column}))
    return _prefixed(None if r["it"] is None else b"\x01" + _json(r["it"]).encode() for r in rows)


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if "\\u0000" not in text else json.dumps(_without_nul(value), ensure_ascii=False, separators=(",", ":"))


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {_without_nul(k): _without_nul(v) for k, v in value.items()}
    return [_without_nul(v) for v in value] if isinstance(value, list) else value
