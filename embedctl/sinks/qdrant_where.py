"""`--where` for Qdrant: a filter of its own as JSON, or simple SQL made into one.

Enters: text, and the types of the columns where they are known. Leaves: a filter as Qdrant's REST takes it (`must`,
`should`, ...), in plain Python values. Of SQL it knows AND, OR, NOT, =, <>, <, <=, >, >=, BETWEEN, IN, IS [NOT] NULL,
list_contains(COLUMN, VALUE) and bare columns of true and false; text is compared in order only where it is a time. A
comparison with null is neither true nor false, as in SQL; a list passes where one of its values does; a NaN was stored
as null. Refused: all else, named, also what Qdrant would answer wrongly: order past 53 bits, and of decimals, which are
stored as their text.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.sinks.base import UNIT_COLUMNS

Filter = dict[str, Any]
Node = Mapping[str, Any]

_HINT = "simple SQL like \"lang = 'en' AND year >= 2020\", or a filter of Qdrant's own as JSON: '{\"must\": [...]}'"
_PARTS = ("must", "should", "must_not", "min_should")
_ORDERS = {
    "COMPARE_LESSTHAN": "lt",
    "COMPARE_LESSTHANOREQUALTO": "lte",
    "COMPARE_GREATERTHAN": "gt",
    "COMPARE_GREATERTHANOREQUALTO": "gte",
}
_MIRRORED = {"lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}
_OPPOSITE = {"lt": "gte", "lte": "gt", "gt": "lte", "gte": "lt"}
_EXACT_FLOAT = 1 << 53
_ALWAYS_THERE = ("id", *UNIT_COLUMNS)

Value = str | int | float | bool | decimal.Decimal | datetime.datetime | datetime.date


def parse_where(text: str, kept: pa.Schema | None = None) -> Filter:
    """kept: the columns that rows kept; None: not known, values are compared as they are written.

    :raises UsageError: neither a filter in JSON nor SQL of the kind above; what is not understood is named.
    """
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as exc:
            raise UsageError(f"--where: {text!r} is not JSON: {exc}", hint=_HINT) from exc
        unknown = sorted(found.keys() - set(_PARTS))
        if unknown or not found:
            named = repr(unknown[0]) if unknown else "nothing"
            raise UsageError(f"--where: a filter has {', '.join(_PARTS)}, not {named}", hint=_HINT)
        return dict(found)
    return _Sql(text, kept).filter()


def field_path(*names: str) -> str:
    """A payload field as Qdrant writes it: names with other signs than letters, digits, _ and - in quotes."""
    return ".".join(n if re.fullmatch(r"[A-Za-z0-9_-]+", n) else f'"{n}"' for n in names)


class _Sql:
    """One expression, parsed by DuckDB, whose own words for its tree are used here."""

    def __init__(self, text: str, kept: pa.Schema | None) -> None:
        self._text, self._kept = text, kept
        self._types: dict[str, pa.DataType | None] = {}

    def filter(self) -> Filter:
        import duckdb

        options: dict[str, str | bool | int | float | list[str]] = {"threads": 1, "enable_external_access": False}
        with duckdb.connect(":memory:", config=options) as self._connection:
            try:
                row = self._connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({self._text}\n)"]).fetchone()
            except duckdb.Error as exc:
                raise self._no(str(exc).splitlines()[0]) from exc
            assert row is not None
            tree = json.loads(row[0])
            if tree["error"]:
                raise self._no(str(tree.get("error_message")).splitlines()[0])
            node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
            if len(node.get("select_list", ())) != 1 or node["from_table"]["type"] != "EMPTY":
                raise self._no("not one expression")
            self._shell = tree
            return self._holds(node["select_list"][0], True)

    def _no(self, why: str) -> UsageError:
        return UsageError(f"--where: {self._text!r}: {why}", hint=_HINT)

    def _holds(self, node: Node, wanted: bool) -> Filter:
        """A filter of the points for which the expression is `wanted`; null is neither."""
        kind, found = node["class"], node["type"]
        if kind == "CONJUNCTION":
            every = (found == "CONJUNCTION_AND") == wanted
            return {"must" if every else "should": [self._holds(c, wanted) for c in node["children"]]}
        if kind == "OPERATOR" and found == "OPERATOR_NOT":
            return self._holds(node["children"][0], not wanted)
        if kind == "OPERATOR" and found in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            null = {"is_empty": {"key": self._column(node["children"][0])}}
            return {"must" if (found == "OPERATOR_IS_NULL") == wanted else "must_not": [null]}
        if kind == "COLUMN_REF":
            return {"must": [{"key": self._column(node), "match": {"value": wanted}}]}
        if kind == "COMPARISON":
            return self._comparison(node, wanted)
        if kind == "BETWEEN":
            key = self._column(node["input"])
            ends = [self._order(key, op, self._value(node[end])) for op, end in (("gte", "lower"), ("lte", "upper"))]
            return {"must": ends} if wanted else _not(key, {"must": ends})
        if kind == "OPERATOR" and found in ("COMPARE_IN", "COMPARE_NOT_IN"):
            key, values = self._column(node["children"][0]), [self._value(c) for c in node["children"][1:]]
            one = {"should": [self._equal(key, v) for v in values]}
            return one if (found == "COMPARE_IN") == wanted else _not(key, one)
        if kind == "FUNCTION" and node["function_name"] in ("list_contains", "array_contains", "list_has"):
            column, value = (_argument(a) for a in node.get("children") or node["arguments"])
            key = self._column(column)
            has = self._equal(key, self._value(value))
            return {"must": [has]} if wanted else _not(key, {"must": [has]})
        raise self._no(f"{node.get('function_name') or found} is not known to this filter")

    def _comparison(self, node: Node, wanted: bool) -> Filter:
        left, right, found = node["left"], node["right"], node["type"]
        mirrored = right["class"] == "COLUMN_REF"
        key, value = self._column(right if mirrored else left), self._value(left if mirrored else right)
        if found in ("COMPARE_EQUAL", "COMPARE_NOTEQUAL"):
            same = {"must": [self._equal(key, value)]}
            return same if (found == "COMPARE_EQUAL") == wanted else _not(key, same)
        if found not in _ORDERS:
            raise self._no(f"{found} is not known to this filter")
        op = _MIRRORED[_ORDERS[found]] if mirrored else _ORDERS[found]
        return {"must": [self._order(key, op if wanted else _OPPOSITE[op], value)]}

    def _column(self, node: Node) -> str:
        if node["class"] != "COLUMN_REF":
            raise self._no("a comparison needs a plain column on one side and a value on the other")
        names = list(node["column_names"])
        kind = None if self._kept is None else self._kept_type(self._kept, names)
        path = field_path(*names)
        self._types[path] = kind
        return path

    def _kept_type(self, kept: pa.Schema, names: list[str]) -> pa.DataType | None:
        """The innermost type; of a list, that of its values. Names without regard to case, as in SQL, become exact."""
        known = [*kept.names, *(n for n in _ALWAYS_THERE if n not in kept.names)]
        if names[0] not in known:
            same = [n for n in known if n.lower() == names[0].lower()]
            if not same:
                raise self._no(f"no column {names[0]!r}; there are {', '.join(known)}")
            names[0] = same[0]
        if names[0] not in kept.names:
            return None
        kind: pa.DataType = kept.field(names[0]).type
        for name in names[1:]:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                return None
            kind = kind.field(name).type
        while isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.DictionaryType)):
            kind = kind.value_type
        return kind

    def _value(self, node: Node) -> Value:
        """What stands there, worked out by DuckDB itself."""
        import duckdb

        if _has_column(node):
            raise self._no("a comparison needs a plain column on one side and a value on the other")
        self._shell["statements"][0]["node"]["select_list"] = [node]
        try:
            row = self._connection.execute(
                "SELECT * FROM json_execute_serialized_sql(?)", [json.dumps(self._shell)]
            ).fetchone()
        except duckdb.Error as exc:
            raise self._no(str(exc).splitlines()[0]) from exc
        value = row[0] if row else None
        if isinstance(value, (str, int, float, decimal.Decimal, datetime.date)):
            return value
        raise self._no(f"{value!r} is no value to compare with; IS NULL finds what is missing")

    def _equal(self, key: str, value: Value) -> Filter:
        kind = self._types.get(key)
        if kind is not None:
            if pa.types.is_decimal(kind):
                return {"key": key, "match": {"value": self._decimal_text(value, kind)}}
            if pa.types.is_uint64(kind) and isinstance(value, int) and 1 << 63 <= value < 1 << 64:
                return {"key": key, "match": {"value": str(value)}}
        value = self._typed(value, kind)
        if isinstance(value, datetime.date):
            return {"key": key, "range": {"gte": value.isoformat(), "lte": value.isoformat()}}
        if isinstance(value, (bool, str)):
            return {"key": key, "match": {"value": value}}
        if _has_exact_order(value, kind):
            return {"key": key, "range": {"gte": float(value), "lte": float(value)}}  # also a whole number kept as 3.0
        if value != int(value) or not -(1 << 63) <= value < 1 << 63:
            raise self._no(f"{value} is past what a whole number can be")
        return {"key": key, "match": {"value": int(value)}}

    def _order(self, key: str, op: str, value: Value) -> Filter:
        kind = self._types.get(key)
        if kind is not None and pa.types.is_decimal(kind):
            raise self._no(f"{key} holds decimals, which have no order in Qdrant; it keeps them as text")
        value = self._typed(value, kind)
        if isinstance(value, bool) or not (isinstance(value, (str, datetime.date)) or _has_exact_order(value, kind)):
            raise self._no(f"{value} cannot be compared in order; Qdrant does so with 53 bits")
        if isinstance(value, str):
            try:
                datetime.datetime.fromisoformat(value)
            except ValueError as exc:
                raise self._no(f"{value!r} is not a time, and text has no order in Qdrant") from exc
            return {"key": key, "range": {op: value}}
        if isinstance(value, datetime.date):
            return {"key": key, "range": {op: value.isoformat()}}
        found: Filter = {"key": key, "range": {op: float(value)}}
        if kind is not None and pa.types.is_uint64(kind) and op in ("gt", "gte"):  # past 63 bits they are text
            return {"should": [found, _not(key, {"key": key, "range": {"gte": 0.0}})]}
        return found

    def _typed(self, value: Value, kind: pa.DataType | None) -> Value:
        """Text that is compared with a column of times, as a time."""
        if kind is None:
            return value
        if pa.types.is_time(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise self._no(f"values of type {kind} cannot be compared in Qdrant")
        if isinstance(value, str) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            try:
                return datetime.datetime.fromisoformat(value)
            except ValueError as exc:
                raise self._no(f"{value!r} is not a time") from exc
        return value

    def _decimal_text(self, value: Value, kind: pa.DataType) -> str:
        """As the payload writes it; a number that the column's type cannot hold is equal to none of its values."""
        try:
            number = decimal.Decimal(str(value))
            return str(pa.array([number], kind).cast(pa.string())[0].as_py())
        except decimal.InvalidOperation as exc:
            raise self._no(f"{value!r} is not a number") from exc
        except pa.ArrowInvalid:
            return f"={value}"


def _has_exact_order(value: int | float | decimal.Decimal, kind: pa.DataType | None) -> bool:
    """Whether Qdrant, which compares as float64, and SQL agree."""
    return isinstance(value, float) or -_EXACT_FLOAT < value < _EXACT_FLOAT or pa.types.is_floating(kind or pa.null())


def _not(key: str, inner: Filter) -> Filter:
    """Not so, and the field is there: what is null is neither."""
    return {"must_not": [inner, {"is_empty": {"key": key}}]}


def _argument(node: Node) -> Node:
    inner: Node = node.get("expression", node)
    return inner


def _has_column(node: object) -> bool:
    if isinstance(node, Mapping):
        return node.get("class") in ("COLUMN_REF", "SUBQUERY") or any(map(_has_column, node.values()))
    return isinstance(node, list) and any(map(_has_column, node))
