"""A query and its passages as one text: how rows of several texts travel through a job that knows one a row.

Enters: the texts, query first, None where a cell is null. Leaves: one string that begins with their lengths in
characters (`5,12,-`, `-` for None), then a line feed, then the texts end to end: nothing in them has to be escaped.
A pair is a query with one passage, and what tokenizers of pairs take. Refuses nothing that `joined` made.
"""

from __future__ import annotations

from collections.abc import Sequence

_NULL = "-"


def joined(texts: Sequence[str | None]) -> str:
    """The texts as one."""
    lengths = ",".join(_NULL if text is None else str(len(text)) for text in texts)
    return f"{lengths}\n{''.join(text for text in texts if text)}"


def parts(text: str) -> list[str | None]:
    """The texts that `joined` was given."""
    head, begin = _head(text)
    out: list[str | None] = []
    for length in head:
        out.append(None if length is None else text[begin : begin + length])
        begin += length or 0
    return out


def pair(text: str) -> tuple[str, str]:
    """Query and passage of a pair without nulls."""
    query, passage = parts(text)
    assert query is not None
    assert passage is not None
    return query, passage


def passages(text: str) -> list[tuple[int, int]]:
    """Where each passage stands in the string: character spans, as chunks of a document have them."""
    (query, *lengths), begin = _head(text)
    begin += query or 0
    spans = []
    for length in lengths:
        spans.append((begin, begin + (length or 0)))
        begin += length or 0
    return spans


def pair_at(text: str, begin: int, end: int) -> str:
    """The query with the passage of that span, as a pair."""
    line = text.index("\n")
    query = int(text[: text.index(",")])
    return f"{query},{end - begin}\n{text[line + 1 : line + 1 + query]}{text[begin:end]}"


def _head(text: str) -> tuple[list[int | None], int]:
    """Lengths, and where the first text begins."""
    line = text.index("\n")
    return [None if n == _NULL else int(n) for n in text[:line].split(",")], line + 1
