"""Kept columns as JSON-like values, for stores whose payload is JSON.

Enters: an Arrow table. Leaves: a dict a row. The mapping: null, bool, string, whole numbers (exact to 64 bits) and
floats as they are; NaN and Inf, which JSON lacks, null; list and struct nested; map a list of `[key, value]`;
timestamp, date and time ISO 8601 text, in UTC with `Z` where they have a zone; duration whole units; decimal its text;
binary base64; uint64 past int64 its text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
_MAX_INT64 = (1 << 63) - 1
_Value = Callable[[object], Json]


def payloads(table: pa.Table) -> list[dict[str, Json]]:
    """One dict a row, columns in order."""
    return rows_of(columns(table)) if table.num_columns else [{} for _ in range(table.num_rows)]


def columns(table: pa.Table) -> dict[str, Sequence[Json]]:
    """The values of each column."""
    return {name: _column(table.column(name)) for name in table.column_names}


def rows_of(columns: Mapping[str, Sequence[Json]]) -> list[dict[str, Json]]:
    """One dict a row of at least one column."""
    names = tuple(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _column(column: pa.ChunkedArray[Any]) -> list[Json]:
    for leaf in (_utc, _plain):
        kind = _mapped(column.type, leaf)
        column, before = (column if kind == column.type else column.cast(kind)), column.type
    values: list[object] = column.to_pylist()
    change = _change(before)
    return values if change is None else [None if v is None else change(v) for v in values]  # type: ignore[return-value]


def _utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type to cast to, so that no value needs more than Python's own types to say exactly."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_decimal(kind):
        return pa.string()
    return pa.int64() if types.is_duration(kind) else kind


def _mapped(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with each of its innermost types exchanged; dictionaries and extensions give way to what they hold."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _mapped(kind.storage_type, leaf)
    if types.is_dictionary(kind):
        return _mapped(kind.value_type, leaf)
    if types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _mapped(kind.value_type, leaf)))
    if types.is_large_list(kind):
        return pa.large_list(pa.field(kind.value_field.name, _mapped(kind.value_type, leaf)))
    if types.is_fixed_size_list(kind):
        fixed: pa.DataType = pa.list_(pa.field(kind.value_field.name, _mapped(kind.value_type, leaf)), kind.list_size)
        return fixed
    if types.is_struct(kind):
        return pa.struct([pa.field(f.name, _mapped(f.type, leaf)) for f in kind])
    if types.is_map(kind):
        return pa.map_(_mapped(kind.key_type, leaf), _mapped(kind.item_type, leaf))
    changed: pa.DataType = leaf(kind)
    return changed


def _change(kind: pa.DataType) -> _Value | None:
    """What is left to do to each value that is not null, told by the type it had; None: nothing."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _change(kind.storage_type)
    if types.is_dictionary(kind):
        return _change(kind.value_type)
    if types.is_timestamp(kind):
        return lambda v: str(v).replace(" ", "T", 1)
    if types.is_floating(kind):
        return lambda v: float(v) if math.isfinite(v) else None  # type: ignore[arg-type]
    if types.is_uint64(kind):
        return lambda v: v if v <= _MAX_INT64 else str(v)  # type: ignore[operator,return-value]
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda v: base64.b64encode(v).decode()  # type: ignore[arg-type]
    return _change_nested(kind)


def _change_nested(kind: pa.DataType) -> _Value | None:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _of(kind.value_type)
        return lambda v: [inner(x) for x in v]  # type: ignore[attr-defined]
    if types.is_struct(kind):
        fields = [(f.name, _of(f.type)) for f in kind]
        return lambda v: {name: change(v[name]) for name, change in fields}  # type: ignore[index]
    if types.is_map(kind):
        key, item = _of(kind.key_type), _of(kind.item_type)
        return lambda v: [[key(k), item(x)] for k, x in v]  # type: ignore[attr-defined]
    return None


def _of(kind: pa.DataType) -> _Value:
    change = _change(kind)
    return lambda v: v if v is None or change is None else change(v)  # type: ignore[return-value]
