"""Turns the columns of a row into its text.

`--text-column` or `--text-template` enters; `TextRule.render` turns a record batch into one string a row, None where
there is no text. Refused, as UsageError: a malformed template, pointing at the place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedctl.errors import UsageError

Cells: TypeAlias = "pa.Array[Any]"
Strings: TypeAlias = "pa.LargeStringArray"

MAX_TEXT_CHARS = 64 << 20
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_FIELD = re.compile(r"[^\s{}.]+(?:[ ]+[^\s{}.]+)*(?:\.[^\s{}.]+(?:[ ]+[^\s{}.]+)*)*")
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b\ufeff]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """`literals` stand around `columns`: one more than columns. A plain column has two empty ones."""

    columns: tuple[str, ...]
    literals: tuple[str, ...]
    is_template: bool

    def render(self, batch: pa.RecordBatch) -> list[str | None]:
        """One text a row, or None: the column is null, or every field of the template is.

        A null field of a template is empty text; lists are joined by ", "; numbers are written plainly.

        :raises UsageError: a column is missing, or holds what has no plain text (a struct, a map).
        """
        fields = [as_strings(_column(batch, name), name) for name in self.columns]
        if not self.is_template:
            return as_texts(fields[0])
        empty: Any = _scalar("")
        parts: list[Strings | pa.LargeStringScalar] = [_scalar(self.literals[0])]
        for values, literal in zip(fields, self.literals[1:], strict=True):
            parts += [_strings(pc.coalesce(values, empty)), _scalar(literal)]
        whole = pc.binary_join_element_wise(*parts, empty)
        some = reduce(pc.or_, [pc.is_valid(values) for values in fields])
        return as_texts(pc.if_else(some, whole, pa.scalar(None, pa.large_string())))


def _scalar(text: str) -> pa.LargeStringScalar:
    return pa.scalar(text, pa.large_string())


def _strings(values: Cells) -> Strings:
    """The stubs lose the type of what compute returns."""
    assert values.type == pa.large_string()
    return cast("pa.LargeStringArray", values)


def as_texts(values: Strings) -> list[str | None]:
    """As Python strings. Bytes that are not UTF-8 become lone surrogates, for `row_problem` to find."""
    try:
        return values.to_pylist()
    except UnicodeDecodeError:
        raw = pc.cast(values, pa.large_binary()).to_pylist()
        return [None if cell is None else cell.decode(errors="surrogateescape") for cell in raw]


def text_rule(column: str | None, template: str | None) -> TextRule:
    r"""The rule of `--text-column NAME` or `--text-template '{title}\n\n{body}'`, exactly one of which is given.

    In a template `\n`, `\t`, `\r` and `\\` are escapes, `{{` and `}}` braces.

    :raises UsageError: none or both are given, or the template is malformed.
    """
    if (column is None) == (template is None):
        raise UsageError("give one of --text-column and --text-template")
    if column is not None:
        return TextRule(columns=(column,), literals=("", ""), is_template=False)
    assert template is not None
    literals, columns = _parse(template)
    if not columns:
        raise UsageError(f"--text-template: {template!r} names no column", hint=r"--text-template '{title}\n\n{body}'")
    return TextRule(columns=tuple(columns), literals=tuple(literals), is_template=True)


def row_problem(text: str | None, max_chars: int = MAX_TEXT_CHARS) -> str | None:
    """Why a text cannot be embedded, or None."""
    if text is None:
        return "text is null"
    if not text:
        return "text is empty"
    if len(text) > max_chars:
        return f"text is {len(text)} characters; at most {max_chars}"
    if _BLANK.fullmatch(text):
        return "text is only white space"
    if not text.isascii() and (bad := _SURROGATE.search(text)):
        return f"text has a lone surrogate or a byte that is not UTF-8 at character {bad.start()}"
    return None


def _parse(template: str) -> tuple[list[str], list[str]]:
    literals, columns, literal, i = [], [], [], 0
    while i < len(template):
        char, pair = template[i], template[i : i + 2]
        if char == "\\":
            if pair[1:] not in _ESCAPES:
                raise _malformed(template, i, f"{pair!r} is no escape; write \\n, \\t, \\r or \\\\")
            literal.append(_ESCAPES[pair[1]])
            i += 2
        elif pair in ("{{", "}}"):
            literal.append(char)
            i += 2
        elif char == "}":
            raise _malformed(template, i, "a '}' without its '{'; write }} for a brace")
        elif char == "{":
            end = template.find("}", i)
            if end < 0:
                raise _malformed(template, i, "this '{' is never closed; write {{ for a brace")
            columns.append(_field(template, i, end))
            literals.append("".join(literal))
            literal, i = [], end + 1
        else:
            literal.append(char)
            i += 1
    return [*literals, "".join(literal)], columns


def _field(template: str, begin: int, end: int) -> str:
    name = template[begin + 1 : end].strip()
    if not _FIELD.fullmatch(name):
        raise _malformed(template, begin, f"{{{name}}} is not a column name" if name else "{} names no column")
    return name


def _malformed(template: str, place: int, reason: str) -> UsageError:
    shown = template.replace("\n", " ").replace("\t", " ")
    return UsageError(f"--text-template: {reason} (character {place})", hint=f"{shown}\n{' ' * place}^")


def _column(batch: pa.RecordBatch, name: str) -> Cells:
    """A top-level column, else a path into structs."""
    if name in batch.schema.names:
        return batch.column(name)
    top, *rest = name.split(".")
    if top not in batch.schema.names:
        raise UsageError(f"no column {name!r}; there are: {', '.join(batch.schema.names)}")
    values = batch.column(top)
    for step in rest:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(step) < 0:
            raise UsageError(f"no column {name!r}: {top!r} is {values.type}, without a field {step!r}")
        values = pc.struct_field(values, step)
    return values


def as_strings(values: Cells, name: str) -> Strings:
    """large_string, nulls kept. Lists of plain values are joined."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return as_strings(values.dictionary_decode(), name)  # type: ignore[attr-defined]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _joined(values, name)
    try:
        lenient = pc.CastOptions(target_type=pa.large_string(), allow_invalid_utf8=True)
        return _strings(pc.cast(values, options=lenient))  # type: ignore[call-overload]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as exc:
        raise UsageError(
            f"column {name!r} is {kind}, which has no plain text", hint="name a text column, or a field in it: a.b"
        ) from exc


def _joined(values: Cells, name: str) -> Strings:
    """Items of each list joined by ", ", null items left out; a null list stays null."""
    items = as_strings(pc.list_flatten(values), name)
    keep = pc.is_valid(items)
    counts = np.bincount(pc.filter(pc.list_parent_indices(values), keep).to_numpy(), minlength=len(values))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pc.cast(pc.filter(items, keep), pa.string()))
    joined = pc.cast(pc.binary_join(lists, ", "), pa.large_string())
    return _strings(pc.if_else(pc.is_valid(values), joined, pa.scalar(None, pa.large_string())))
