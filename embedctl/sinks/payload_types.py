"""JSON-like payloads back to columns, each of one type from the first row to the last.

Enters: payloads, all of them once for their types, then batch by batch. Leaves: Arrow batches. A column of values that
share no type that holds them exactly, or of objects with very many different keys, is the JSON text of each value.
Refused: a value that does not fit the types seen, its row named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from embedctl.errors import SinkError

MAX_KEYS = 256
_EXACT_FLOAT = 1 << 53
_INT64, _UINT64 = 1 << 63, 1 << 64


@dataclass(slots=True)
class Kind:
    """All that values of one place were: `words` of null, bool, int, float, text, list, object.

    least and most: of whole numbers. item: of lists. fields: of objects.
    """

    words: set[str] = field(default_factory=set)
    least: int = 0
    most: int = 0
    item: Kind | None = None
    fields: dict[str, Kind] = field(default_factory=dict)

    def look(self, value: object) -> None:
        word = _WORDS.get(type(value), "other")
        self.words.add(word)
        if isinstance(value, int) and word == "int":
            self.least, self.most = min(self.least, value), max(self.most, value)
        elif isinstance(value, list):
            self.item = self.item or Kind()
            for one in value:
                self.item.look(one)
        elif isinstance(value, dict) and len(self.fields) <= MAX_KEYS:
            for name, one in value.items():
                self.fields.setdefault(name, Kind()).look(one)

    def type(self) -> pa.DataType | None:
        """None: only JSON text holds them all."""
        words = self.words - {"null"}
        if not words - {"int"}:
            return self._whole() if words else pa.null()
        if words == {"int", "float"}:
            return pa.float64() if max(self.most, -self.least) <= _EXACT_FLOAT else None
        if len(words) > 1:
            return None
        word = words.pop()
        if word == "list":
            assert self.item is not None
            inner = self.item.type()
            return None if inner is None else pa.list_(inner)
        if word == "object":
            kinds = {name: kind.type() for name, kind in self.fields.items()}
            if not kinds or len(kinds) > MAX_KEYS:
                return None
            known = [(n, k) for n, k in kinds.items() if k is not None]
            return pa.struct(known) if len(known) == len(kinds) else None
        plain: dict[str, pa.DataType] = {"bool": pa.bool_(), "float": pa.float64(), "text": pa.string()}
        return plain.get(word)

    def _whole(self) -> pa.DataType | None:
        if self.least >= -_INT64 and self.most < _INT64:
            return pa.int64()
        return pa.uint64() if self.least >= 0 and self.most < _UINT64 else None


_WORDS: dict[type, str] = {
    type(None): "null", bool: "bool", int: "int", float: "float", str: "text", list: "list", dict: "object",
}  # fmt: skip


class Seen:
    """What was seen of each field, in the order in which fields came."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def look(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            for name, value in row.items():
                self._kinds.setdefault(name, Kind()).look(value)

    def schema(self, *, first: Sequence[str] = (), last: Sequence[str] = ()) -> pa.Schema:
        """Fields of `first` before all others and of `last` after them, those that there are, the others by name."""
        rest = sorted(self._kinds.keys() - {*first, *last})
        names = [n for n in (*first, *rest, *last) if n in self._kinds]
        fields = []
        for name in names:
            kind = self._kinds[name].type()
            fields.append(
                pa.field(name, pa.string() if kind is None else kind, metadata=_JSON if kind is None else None)
            )
        return pa.schema(fields)


_JSON = {b"embedctl": b"json"}


def batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, name: str) -> pa.RecordBatch:
    """:raises SinkError: a value that was not there when the types were looked for."""
    unknown = next((key for row in rows for key in row if schema.get_field_index(key) < 0), None)
    if unknown is not None:
        raise SinkError(f"{name}: field {unknown!r} came up while it was read", hint=_AGAIN)
    columns = [_column([row.get(f.name) for row in rows], f, rows, name) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_AGAIN = "start again when nothing writes to it"


def _column(values: list[Any], wanted: pa.Field[Any], rows: Sequence[Mapping[str, Any]], name: str) -> pa.Array[Any]:
    if wanted.metadata == _JSON:
        values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
    for i, value in enumerate(values):
        if not _fits(value, wanted.type):
            raise SinkError(
                f"{name}: point {rows[i].get('id')!r}: field {wanted.name!r} is {value!r:.80}, before: {wanted.type}",
                hint=_AGAIN,
            )
    made: pa.Array[Any] = pa.array(values, wanted.type)
    return made


def _fits(value: object, kind: pa.DataType) -> bool:
    types = pa.types
    if value is None:
        return True
    if isinstance(value, bool):
        return types.is_boolean(kind)
    if isinstance(value, int):
        if types.is_floating(kind):
            return abs(value) <= _EXACT_FLOAT
        return (types.is_int64(kind) and -_INT64 <= value < _INT64) or (types.is_uint64(kind) and 0 <= value < _UINT64)
    if isinstance(value, float):
        return types.is_floating(kind)
    if isinstance(value, str):
        return types.is_string(kind)
    if isinstance(value, list):
        return types.is_list(kind) and all(_fits(v, kind.value_type) for v in value)
    if isinstance(value, dict):
        return types.is_struct(kind) and all(
            kind.get_field_index(k) >= 0 and _fits(v, kind.field(k).type) for k, v in value.items()
        )
    return False
