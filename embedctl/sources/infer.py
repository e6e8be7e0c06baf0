"""Infers column types of JSON rows from a bounded sample, and merges types of several files.

Enters: parsed rows. Leaves: an Arrow schema: bool, int64, float64 (whole numbers and fractions together), string, list,
struct. A column of nulls is string; one of mixed kinds is string, marked to hold other values as JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from embedctl.sources.jsonfit import Json
from embedctl.sources.roles import AnyField, is_json, is_unknown, mark_json, mark_unknown

_NULL: pa.DataType = pa.null()


class Mixed(ValueError):
    """Two types that no Arrow type holds both of without loss."""


class Inference:
    """Gathers rows; `schema` tells what they have in common."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._types: dict[str, pa.DataType | None] = {}

    def add(self, row: dict[str, Json]) -> None:
        """Take one row into account."""
        self.num_rows += 1
        for name, value in row.items():
            known = self._types.get(name, _NULL)
            if known is None:
                continue
            try:
                self._types[name] = merge(known, type_of(value))
            except Mixed:
                self._types[name] = None

    def schema(self) -> pa.Schema:
        """Columns in order of first appearance."""
        return pa.schema([_field(name, type_) for name, type_ in self._types.items()])


def _field(name: str, type_: pa.DataType | None) -> AnyField:
    if type_ is None:
        return mark_json(pa.field(name, pa.string()))
    field = pa.field(name, without_nulls(type_))
    return mark_unknown(field) if pa.types.is_null(type_) else field


def type_of(value: Json) -> pa.DataType:
    """The Arrow type of one value. :raises Mixed: a list of mixed kinds."""
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        item: pa.DataType = _NULL
        for v in value:
            item = merge(item, type_of(v))
        return pa.list_(item)
    return pa.struct([pa.field(k, type_of(v)) for k, v in value.items()])


def merge(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The narrowest type that holds both. :raises Mixed: there is none."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(merge(a.value_type, b.value_type))
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = {f.name: f.type for f in _fields(a)}
        for f in _fields(b):
            fields[f.name] = merge(fields.get(f.name, _NULL), f.type)
        return pa.struct([pa.field(k, t) for k, t in fields.items()])
    raise Mixed(f"{a} and {b}")


def merge_inferred(fields: Iterable[AnyField]) -> AnyField:
    """One column's field over several files of sampled types; mixed ones become JSON text."""
    every = list(fields)
    first, *rest = [f for f in every if not is_unknown(f)] or every
    if any(is_json(f) for f in (first, *rest)):
        return mark_json(pa.field(first.name, pa.string()))
    merged = first.type
    try:
        for f in rest:
            merged = merge(merged, f.type)
    except Mixed:
        return mark_json(pa.field(first.name, pa.string()))
    return pa.field(first.name, merged)


def without_nulls(type_: pa.DataType) -> pa.DataType:
    """The type with every null in it, of which nothing is known, made string."""
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(without_nulls(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, without_nulls(f.type)) for f in _fields(type_)])
    return type_


def _fields(type_: pa.DataType) -> list[AnyField]:
    return [type_.field(i) for i in range(type_.num_fields)]
