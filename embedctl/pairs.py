"""A query and its passages as one text: how rows of several texts travel through a job that knows one a row.

Enters: the texts, query first, None where a cell is null, and the passages' ids where they have some. Leaves: one
string that begins with their lengths in characters (`5,12,-;2,2`, `-` for None, ids after the semicolon), then a line
feed, then all of them end to end: nothing in them has to be escaped. A pair is a query with one passage, and what
tokenizers of pairs take. Refuses nothing that `joined` made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_NULL = "-"
Length = int | None


def joined(texts: Sequence[str | None], ids: Sequence[str | None] = ()) -> str:
    """The texts as one."""
    lengths = [",".join(_NULL if text is None else str(len(text)) for text in part) for part in (texts, ids)]
    head = lengths[0] if not ids else ";".join(lengths)
    return f"{head}\n{''.join(text for part in (texts, ids) for text in part if text)}"


def parts(text: str) -> list[str | None]:
    """The texts that `joined` was given."""
    lengths, _, begin = _head(text)
    return list(_cut(text, lengths, begin))


def ids(text: str) -> list[str | None]:
    """The ids that `joined` was given, [] without any."""
    lengths, ids, begin = _head(text)
    return list(_cut(text, ids, begin + sum(n or 0 for n in lengths)))


def pair(text: str) -> tuple[str, str]:
    """Query and passage of a pair without nulls."""
    query, passage = parts(text)
    assert query is not None
    assert passage is not None
    return query, passage


def passages(text: str) -> list[tuple[int, int]]:
    """Where each passage stands in the string: character spans, as chunks of a document have them."""
    (query, *lengths), _, begin = _head(text)
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


def _head(text: str) -> tuple[list[Length], list[Length], int]:
    """Lengths of texts and of ids, and where the first text begins."""
    line = text.index("\n")
    lengths, _, ids = text[:line].partition(";")
    return _lengths(lengths), _lengths(ids), line + 1


def _lengths(listed: str) -> list[Length]:
    return [None if n == _NULL else int(n) for n in listed.split(",")] if listed else []


def _cut(text: str, lengths: Sequence[Length], begin: int) -> Iterator[str | None]:
    for length in lengths:
        yield None if length is None else text[begin : begin + length]
        begin += length or 0
