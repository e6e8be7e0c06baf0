"""`--where`: a SQL boolean expression over a row's columns, evaluated by DuckDB.

Enters: an expression and record batches. Leaves: which rows it keeps; null counts as false. Refused: what is not one
expression, an unknown column, a function whose answer differs from run to run or looks at other rows. Files and network
are out of reach.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.sources.roles import is_number_id

if TYPE_CHECKING:
    import duckdb

_TABLE = "block"
_EXAMPLE = "--where \"lang = 'en'\""
_UNSTABLE = frozenset({
    "random", "setseed", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "now", "current_timestamp", "current_date",
    "get_current_timestamp", "get_current_time", "current_time", "today", "transaction_timestamp", "nextval",
    "currval", "localtime", "localtimestamp", "current_localtime", "current_localtimestamp", "age",
})  # fmt: skip


def columns_of(expression: str, known: Iterable[str]) -> set[str]:
    """The columns of `known` that the expression reads, struct fields by their top-level column.

    :raises UsageError: not an expression, or it names a column that is not known; the nearest is named.
    """
    names = list(known)
    lower = {name.lower(): name for name in reversed(names)}
    out: set[str] = set()
    for path in _column_paths(expression):
        exact = path[0] if path[0] in names else lower.get(path[0].lower())
        if exact is None:
            near = difflib.get_close_matches(path[0], names, n=1)
            raise UsageError(
                f"--where: no column {path[0]!r}; the corpus has {', '.join(names) or 'no columns'}",
                hint=f"did you mean {near[0]!r}? (text goes in single quotes: lang = 'en')"
                if near
                else "text goes in single quotes: lang = 'en'",
            )
        out.add(exact)
    return out


class Where:
    """The expression over a fixed schema. Holds one DuckDB connection of one thread; for one thread at a time."""

    def __init__(self, expression: str, columns: pa.Schema) -> None:
        """:raises UsageError: the expression does not fit the columns or is not boolean."""
        columns_of(expression, columns.names)
        self.expression = expression
        self._connection = _connect()
        # An id of whole numbers is read as text, but compares as the number it is in the file.
        numbers = ", ".join(
            f"CAST({_quoted(f.name)} AS BIGINT) AS {_quoted(f.name)}" for f in columns if is_number_id(f)
        )
        rows = f"(SELECT * REPLACE ({numbers}) FROM {_TABLE})" if numbers else _TABLE
        self._sql = f"SELECT ({expression}\n) AS keep FROM {rows}"
        answer = self._run(pa.Table.from_batches([], schema=columns)).schema.field(0).type
        if not pa.types.is_boolean(answer):
            raise UsageError(f"--where: {expression!r} gives {answer}, not true or false", hint=_EXAMPLE)
        self._check_one_row(f"SELECT 1 FROM {rows} WHERE ({expression}\n)")

    def mask(self, batch: pa.RecordBatch) -> np.ndarray:
        """bool (rows,): true where the expression is true.

        :raises UsageError: a value cannot be converted as the expression asks.
        """
        keep = self._run(pa.Table.from_batches([batch])).column(0)
        return np.array([value is True for value in keep.to_pylist()], dtype=bool)

    def close(self) -> None:
        self._connection.close()

    def _check_one_row(self, sql: str) -> None:
        """What looks at other rows would depend on how the corpus is cut: aggregates, windows, unnest."""
        import duckdb

        try:
            self._connection.sql(sql).fetchall()
        except duckdb.Error as exc:
            raise UsageError(
                f"--where: {self.expression!r} does not judge a row by itself: {_first_line(exc)}", hint=_EXAMPLE
            ) from exc

    def _run(self, table: pa.Table) -> pa.Table:
        import duckdb

        try:
            self._connection.register(_TABLE, table)
            answer: pa.Table = self._connection.sql(self._sql).to_arrow_table()
        except duckdb.Error as exc:
            raise UsageError(
                f"--where: {self.expression!r}: {_first_line(exc)}",
                hint="text compares as text; try_cast(COLUMN AS INTEGER) makes a number of it, or null",
            ) from exc
        assert answer is not None
        return answer


def _connect() -> duckdb.DuckDBPyConnection:
    import duckdb

    options: dict[str, str | bool | int | float | list[str]] = {"threads": 1, "enable_external_access": False}
    return duckdb.connect(":memory:", config=options)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(exc: Exception) -> str:
    return str(exc).splitlines()[0]


def _column_paths(expression: str) -> Iterator[list[str]]:
    """Column references of the parsed expression, as DuckDB's own parser sees them."""
    import duckdb

    with _connect() as connection:
        try:
            row = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({expression}\n)"]).fetchone()
        except duckdb.Error as exc:
            raise UsageError(f"--where: {expression!r}: {_first_line(exc)}") from exc
    assert row is not None
    tree = json.loads(row[0])
    if tree["error"]:
        raise UsageError(
            f"--where: {expression!r} is not a SQL expression: {str(tree.get('error_message')).splitlines()[0]}",
            hint=_EXAMPLE,
        )
    node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
    if len(node.get("select_list", ())) != 1 or node["from_table"]["type"] != "EMPTY":
        raise UsageError(f"--where: {expression!r} is not one SQL expression", hint=_EXAMPLE)
    yield from _references(node["select_list"][0])


def _references(node: object) -> Iterator[list[str]]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        if node.get("class") == "SUBQUERY":
            raise UsageError("--where: a subquery is not allowed; give a plain expression over the row's columns")
        if node.get("class") == "FUNCTION" and node["function_name"].lower() in _UNSTABLE:
            raise UsageError(
                f"--where: {node['function_name']}() differs from run to run; a resumed run would not agree with it",
                hint="--sample 1% takes a repeatable random part",
            )
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"]
        else:
            for value in node.values():
                yield from _references(value)
