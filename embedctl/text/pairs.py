"""Turns the columns of a row into a query and its passages, for rerankers and classifiers of pairs.

Enters: a rule for the query and one for the passage, or the column of its candidates: a list of texts or of structs.
Leaves: one string a row, as `pairs.joined` makes it. Refused, as UsageError: a column that is no such list. A row with
a text that cannot be scored is told by `problem`, with the column and the candidate's number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedctl import pairs
from embedctl.errors import UsageError
from embedctl.text.template import TextRule, as_strings, as_texts, row_problem

TEXT_FIELDS = ("text", "content", "body", "document", "passage", "abstract")
ID_FIELDS = ("id", "_id", "docid", "doc_id", "pid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A column of lists. text, id: fields of its structs; both None where it lists texts. is_json: it holds JSON text,
    whose items may differ, so that fields are found item by item where they are not named."""

    column: str
    text: str | None = None
    id: str | None = None
    is_json: bool = False

    @property
    def has_ids(self) -> bool:
        """Whether candidates have ids, or may have."""
        return self.is_json or self.id is not None


Listed = tuple[list[str | None] | None, list[str | None]]
"""Texts and ids of a row's candidates: texts None where there is no list, ids [] where they have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRule:
    """passage: one text a row, or `Candidates`, several. The columns' names go into what `problem` says."""

    query: TextRule
    passage: TextRule | Candidates

    def render(self, batch: pa.RecordBatch) -> list[str | None]:
        """One joined text a row, nulls in it where cells are null; None for a row without a list of candidates."""
        queries = self.query.render(batch)
        if isinstance(self.passage, TextRule):
            return [pairs.joined(both) for both in zip(queries, self.passage.render(batch), strict=True)]
        out: list[str | None] = []
        lists = _json_lists(batch, self.passage) if self.passage.is_json else _lists(batch, self.passage)
        for query, (texts, ids) in zip(queries, lists, strict=True):
            out.append(None if texts is None else pairs.joined([query, *texts], ids))
        return out

    def problem(self, text: str | None) -> str | None:
        """Why the row cannot be scored, or None."""
        where = self.passage.column if isinstance(self.passage, Candidates) else _columns(self.passage)
        if text is None:
            return f"{where}: there is no list of candidates"
        query, *passages = pairs.parts(text)
        if not passages:
            return f"{where}: there are no candidates"
        found = row_problem(query)
        if found is not None:
            return f"{_columns(self.query)}: {found}"
        for number, passage in enumerate(passages):
            found = row_problem(passage)
            if found is not None:
                place = f"{where}[{number}]" if isinstance(self.passage, Candidates) else where
                return f"{place}: {found}"
        return None


def _lists(batch: pa.RecordBatch, of: Candidates) -> list[Listed]:
    column: Any = batch.column(batch.schema.get_field_index(of.column))
    items: Any = pc.list_flatten(column)
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(counts)
    texts = _field(items, of.text)
    ids = _field(items, of.id) if of.id is not None else None
    valid = pc.is_valid(column).to_pylist()
    return [
        (texts[e - n : e] if ok else None, [] if ids is None else ids[e - n : e])
        for ok, n, e in zip(valid, counts.tolist(), ends.tolist(), strict=True)
    ]


def _json_lists(batch: pa.RecordBatch, of: Candidates) -> list[Listed]:
    out: list[Listed] = []
    for cell in batch.column(batch.schema.get_field_index(of.column)).to_pylist():
        try:
            items = json.loads(cell) if cell is not None else None
        except (ValueError, RecursionError):  # brackets a thousand deep
            items = None
        if not isinstance(items, list):
            out.append((None, []))
            continue
        out.append(
            ([_part(i, of.text, TEXT_FIELDS) for i in items], [_part(i, of.id, ID_FIELDS, inner=True) for i in items])
        )
    return out


def _part(item: Any, name: str | None, names: Sequence[str], *, inner: bool = False) -> str | None:
    """A field of an item as text, by its name or the first known one; the item itself where it is no object (`inner`:
    which then has none)."""
    if isinstance(item, dict):
        item = item.get(name if name is not None else next((n for n in names if n in item), ""))
    elif inner:
        return None
    if item is None or isinstance(item, str):
        return item
    return str(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else None


def candidates_of(
    column: str, kind: pa.DataType, *, text: str | None, id: str | None, is_json: bool = False
) -> Candidates:
    """The column's texts and ids. `text` and `id` name fields of its structs; None finds them. `is_json`: it holds JSON
    text, in which every row can be of another kind.

    :raises UsageError: not a list of texts or structs, or its structs have no such field.
    """
    if is_json:
        return Candidates(column=column, text=text, id=id, is_json=True)
    inner: Any = getattr(kind, "value_type", None)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise UsageError(
            f"--candidates-column: column {column!r} is {kind}, not a list",
            hint=f"--text-column {column} takes one passage a row",
        )
    if not pa.types.is_struct(inner):
        if not _is_text(inner):
            raise UsageError(f"--candidates-column: column {column!r} lists {inner}; allowed: texts, or structs")
        for flag, given in (("--candidate-text", text), ("--candidate-id", id)):
            if given is not None:
                raise UsageError(
                    f"{flag}: {column!r} lists plain texts, which have no fields", hint=f"leave out {flag}"
                )
        return Candidates(column=column)
    fields = {f.name: f.type for f in inner}
    texts = [name for name, type_ in fields.items() if _is_text(type_)]
    chosen = text or next((n for n in TEXT_FIELDS if n in texts), texts[0] if len(texts) == 1 else None)
    if chosen is None or chosen not in fields:
        raise UsageError(
            f"--candidate-text: which field of {column!r} is the text? it has: {', '.join(fields)}",
            hint=f"--candidate-text {texts[0]}" if texts else None,
        )
    named = id or next((n for n in ID_FIELDS if n in fields and n != chosen), None)
    if named is not None and named not in fields:
        raise UsageError(f"--candidate-id: {column!r} has no field {named!r}; it has: {', '.join(fields)}")
    return Candidates(column=column, text=chosen, id=named)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)


def _columns(rule: TextRule) -> str:
    return ", ".join(rule.columns)


def _field(items: Any, name: str | None) -> list[str | None]:
    """Each item's field as text, nulls kept; the item itself without a name."""
    values = items if name is None else pc.struct_field(items, name)
    return as_texts(as_strings(values, name or "candidates"))
