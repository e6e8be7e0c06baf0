"""Holds a JSON value to the planned type of its column: exact, never silently rounded, cut or stringified.

Enters: a value from `json.loads` and a field. Leaves: the value as Arrow takes it. Refused, with the reason:
another type than planned, a key that the plan's struct does not have, a number out of range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pyarrow as pa

from embedctl.sources.conform import shorten
from embedctl.sources.roles import AnyField, is_id, is_json

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Fit = Callable[[Json], Json]

_INT64 = range(-(1 << 63), 1 << 63)
_EXACT_IN_FLOAT = 1 << 53


class Misfit(ValueError):
    """Why one row or value cannot be read; goes to the dead letter as it stands."""


def kind_of(value: Json) -> str:
    """The JSON word for a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    return {str: "a string", list: "a list"}.get(type(value), "an object")


def fitter(field: AnyField) -> Fit:
    """A function from a value, never None, to the value as the column takes it. It raises Misfit."""
    if pa.types.is_string(field.type):
        return _string_fitter(field)
    inner = _inner(field.type)

    def fit(value: Json) -> Json:
        try:
            return inner(value)
        except Misfit as exc:
            detail = f" ({exc})" if str(exc) else ""
            raise Misfit(f"column {field.name!r} holds {shorten(value)}, not {field.type}{detail}") from None

    return fit


def _string_fitter(field: AnyField) -> Fit:
    name, takes_int, takes_all = field.name, is_id(field), is_json(field)

    def fit(value: Json) -> Json:
        if type(value) is str:
            return value
        if takes_all:
            return json.dumps(value, ensure_ascii=False)
        if takes_int and type(value) is int:
            return str(value)
        expected = "a string or a whole number" if takes_int else "a string"
        raise Misfit(f"column {name!r} is {kind_of(value)}, not {expected}")

    return fit


def _inner(type_: pa.DataType) -> Fit:
    if pa.types.is_boolean(type_):
        return _bool
    if pa.types.is_integer(type_):
        return _int
    if pa.types.is_floating(type_):
        return _float
    if pa.types.is_list(type_):
        return _list(_inner(type_.value_type))
    if pa.types.is_struct(type_):
        return _struct({type_.field(i).name: _inner(type_.field(i).type) for i in range(type_.num_fields)})
    return _str


def _str(value: Json) -> Json:
    if type(value) is str:
        return value
    raise Misfit


def _bool(value: Json) -> Json:
    if type(value) is bool:
        return value
    raise Misfit


def _int(value: Json) -> Json:
    if type(value) is int and value in _INT64:
        return value
    if type(value) is float and value.is_integer() and abs(value) <= _EXACT_IN_FLOAT:
        return int(value)
    raise Misfit


def _float(value: Json) -> Json:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and abs(value) <= _EXACT_IN_FLOAT:
        return float(value)
    raise Misfit


def _list(item: Fit) -> Fit:
    def fit(value: Json) -> Json:
        if type(value) is not list:
            raise Misfit
        return [None if v is None else item(v) for v in value]

    return fit


def _struct(items: dict[str, Fit]) -> Fit:
    def fit(value: Json) -> Json:
        if type(value) is not dict:
            raise Misfit
        for key in value:
            if key not in items:
                raise Misfit(f"key {key!r} was not in the sample the types come from")
        return {k: None if v is None else items[k](v) for k, v in value.items()}

    return fit
