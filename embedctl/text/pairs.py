"""Turns the columns of a row into a query and its passages, for rerankers and classifiers of pairs.

Enters: a rule for the query and one for the passage, or the column of its candidates: a list of texts or of structs.
Leaves: one string a row, as `pairs.joined` makes it. Refused, as UsageError: a column that is no such list. A row with
a text that cannot be scored is told by `problem`, with the column and the candidate's number.
"""

from __future__ import annotations

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
    """A column of lists. text, id: fields of its structs; both None where it lists texts."""

    column: str
    text: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRule:
    """passage: one text a row, or `Candidates`, several. The columns' names go into what `problem` says."""

    query: TextRule
    passage: TextRule | Candidates

    def render(self, batch: pa.RecordBatch) -> list[str | None]:
        """One joined text a row, nulls in it where cells are null; None for a row whose list of candidates is null."""
        queries = self.query.render(batch)
        if isinstance(self.passage, TextRule):
            return [pairs.joined(both) for both in zip(queries, self.passage.render(batch), strict=True)]
        out: list[str | None] = []
        lists = self._lists(batch, self.passage)
        for query, (texts, ids) in zip(queries, lists, strict=True):
            out.append(None if texts is None else pairs.joined([query, *texts], ids))
        return out

    def problem(self, text: str | None) -> str | None:
        """Why the row cannot be scored, or None."""
        where = self.passage.column if isinstance(self.passage, Candidates) else _columns(self.passage)
        if text is None:
            return f"{where}: the list of candidates is null"
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

    def _lists(self, batch: pa.RecordBatch, of: Candidates) -> list[tuple[list[str | None] | None, list[str | None]]]:
        """(texts, ids) of each row's candidates; texts None where the list is null, ids [] where they have none."""
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


def candidates_of(column: str, kind: pa.DataType, *, text: str | None, id: str | None) -> Candidates:
    """The column's texts and ids. `text` and `id` name fields of its structs; None finds them.

    :raises UsageError: not a list of texts or structs, or its structs have no such field.
    """
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
