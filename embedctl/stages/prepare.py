"""Windows -> units, tokens and batches: chunks documents, tokenizes distinct texts, packs.

Enters: a `Window`. Leaves: a `Prepared` window. A text that cannot be tokenized, or is too long where the user said so,
kills its row and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from embedctl.records import Batch, Tokenized, Units, Window

Spans = Callable[[str], list[tuple[int, int]]]
"""A document's chunks as character spans."""


def stretch(text: str, begin: int, end: int) -> str:
    """What a span of a document's text is: that stretch of it."""
    return text[begin:end]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRules:
    """How texts become one encoder's batches. tokenize: may be the same as another encoder's, which then runs once.

    pack: tokens and budget -> batches over distinct texts.
    """

    tokenize: Callable[[Sequence[str]], Tokenized]
    pack: Callable[[Tokenized, int], list[Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """How texts become units. chunk: for every document; overlong: for those the model would cut, when asked.

    unique: texts -> (distinct texts, int64 index of each). feeds: one an encoder; the first one's tokens count. piece:
    a row's text and a span of it -> what is tokenized.
    """

    unique: Callable[[Sequence[str]], tuple[list[str], np.ndarray]]
    feeds: Sequence[FeedRules]
    chunk: Spans | None
    on_overlong: str
    overlong: Spans | None
    piece: Callable[[str, int, int], str] = stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What one encoder gets of a window: tokens of the distinct texts, and the batches packed for `batch_tokens`."""

    tokenized: Tokenized
    batches: Sequence[Batch]
    batch_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A window with its units. reasons: live row -> why it is dead after all."""

    window: Window
    units: Units
    feeds: tuple[Feed, ...]
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.window.text_bytes + sum(feed.tokenized.ids_T.nbytes for feed in self.feeds)


def prepare(window: Window, rules: TextRules, batch_tokens: Sequence[int]) -> Prepared:
    """Pure: the same window, rules and budgets, one an encoder, give the same batches."""
    reasons: dict[int, str] = {}
    spans = [_spans(text, rules.chunk, row, reasons) for row, text in enumerate(window.texts)]
    units, failed = _units(window.texts, spans, rules)
    reasons |= failed
    cut = _truncated_rows(units)
    if cut and rules.on_overlong == "dead-letter":
        reasons |= dict.fromkeys(cut, "text is longer than the model takes")
    elif cut and rules.overlong is not None:
        for row in cut:
            spans[row] = _spans(window.texts[row], rules.overlong, row, reasons)
        units, failed = _units(window.texts, spans, rules)
        reasons |= failed
    tokenized, failed = _for_each_feed(window.texts, units, rules)
    reasons = {**_without_tokens(tokenized, units), **failed, **reasons}
    feeds = _packed(tokenized, units, reasons, rules, batch_tokens)
    return Prepared(window=window, units=units, feeds=feeds, reasons=reasons)


def repack(prepared: Prepared, rules: TextRules, batch_tokens: Sequence[int]) -> Prepared:
    """The same window under other budgets."""
    tokenized = [feed.tokenized for feed in prepared.feeds]
    feeds = _packed(tokenized, prepared.units, prepared.reasons, rules, batch_tokens)
    return replace(prepared, feeds=feeds)


def _without_tokens(tokenized: Sequence[Tokenized], units: Units) -> dict[int, str]:
    """Rows of which a tokenizer leaves nothing, like a lone zero-width space."""
    empty = np.zeros(len(units.tokenized.truncated), dtype=bool)
    for tokens in tokenized:
        empty |= tokens.lengths == 0
    rows = np.unique(units.document[empty[units.sequence]]).tolist()
    return dict.fromkeys(rows, "the text has no tokens")


def _packed(
    tokenized: Sequence[Tokenized], units: Units, reasons: dict[int, str], rules: TextRules, budgets: Sequence[int]
) -> tuple[Feed, ...]:
    feeds = []
    for tokens, feed, budget in zip(tokenized, rules.feeds, budgets, strict=True):
        needed = _needed_sequences(units, tokens, reasons)
        batches = _renumbered(feed.pack(_only(tokens, needed), budget), needed)
        feeds.append(Feed(tokenized=tokens, batches=batches, batch_tokens=budget))
    return tuple(feeds)


def _for_each_feed(texts: Sequence[str], units: Units, rules: TextRules) -> tuple[list[Tokenized], dict[int, str]]:
    """The distinct texts in every tokenizer's tokens, each tokenizer asked once."""
    known = {id(rules.feeds[0].tokenize): units.tokenized}
    reasons: dict[int, str] = {}
    if any(id(feed.tokenize) not in known for feed in rules.feeds):
        first = np.unique(units.sequence, return_index=True)[1].tolist()
        distinct = [rules.piece(texts[int(units.document[u])], int(units.begin[u]), int(units.end[u])) for u in first]
        for feed in rules.feeds:
            if id(feed.tokenize) not in known:
                known[id(feed.tokenize)], bad = _tokenize(distinct, feed)
                reasons |= _rows_of(bad, units.document, units.sequence)
    return [known[id(feed.tokenize)] for feed in rules.feeds], reasons


def _spans(text: str, chunk: Spans | None, row: int, reasons: dict[int, str]) -> list[tuple[int, int]]:
    if chunk is None:
        return [(0, len(text))]
    try:
        return chunk(text) or [(0, len(text))]
    except ValueError as exc:
        reasons[row] = f"the text cannot be cut into chunks: {exc}"
        return [(0, len(text))]


def _units(
    texts: Sequence[str], spans: Sequence[list[tuple[int, int]]], rules: TextRules
) -> tuple[Units, dict[int, str]]:
    document = np.repeat(np.arange(len(spans), dtype=np.int64), [len(s) for s in spans])
    number = np.concatenate([np.arange(len(s), dtype=np.int32) for s in spans] or [np.zeros(0, np.int32)])
    flat = np.array([pair for s in spans for pair in s], dtype=np.int32).reshape(-1, 2)
    pieces = [rules.piece(text, b, e) for text, s in zip(texts, spans, strict=True) for b, e in s]
    distinct, sequence = rules.unique(pieces)
    tokenized, bad = _tokenize(distinct, rules.feeds[0])
    reasons = _rows_of(bad, document, sequence)
    units = Units(
        document=document, number=number, begin=flat[:, 0], end=flat[:, 1], tokenized=tokenized, sequence=sequence
    )
    return units, reasons


def _rows_of(bad: dict[int, str], document: np.ndarray, sequence: np.ndarray) -> dict[int, str]:
    """Why each row is dead that has a bad sequence."""
    return {int(document[u]): bad[s] for u, s in enumerate(sequence.tolist()) if s in bad} if bad else {}


def _tokenize(texts: Sequence[str], rules: FeedRules) -> tuple[Tokenized, dict[int, str]]:
    """Tokens of all texts; where the batch call fails, one by one, so that only the bad ones are lost."""
    try:
        return rules.tokenize(texts), {}
    except ValueError:
        pass
    parts, bad = [], {}
    for i, text in enumerate(texts):
        try:
            parts.append(rules.tokenize([text]))
        except ValueError as exc:
            bad[i] = f"the text cannot be tokenized: {str(exc).splitlines()[0]}"
            parts.append(_empty(1))
    offsets = np.concatenate([[0], np.cumsum([int(p.offsets[-1]) for p in parts])])
    ids = np.concatenate([p.ids_T for p in parts])
    types = [p.types_T for p in parts if p.types_T is not None]
    truncated = np.concatenate([p.truncated for p in parts])
    contents = texts if any(p.contents is not None for p in parts) else None
    return Tokenized(
        ids_T=ids,
        offsets=offsets,
        truncated=truncated,
        types_T=np.concatenate(types) if types else None,
        contents=contents,
    ), bad


def _empty(n: int) -> Tokenized:
    zeros = np.zeros(n + 1, dtype=np.int64)
    return Tokenized(ids_T=np.zeros(0, dtype=np.int32), offsets=zeros, truncated=np.zeros(n, dtype=bool))


def _truncated_rows(units: Units) -> list[int]:
    rows: list[int] = np.unique(units.document[units.tokenized.truncated[units.sequence]]).tolist()
    return rows


def _needed_sequences(units: Units, tokenized: Tokenized, reasons: dict[int, str]) -> np.ndarray:
    """Distinct texts of at least one token that a live row needs, ascending."""
    live = ~np.isin(units.document, np.fromiter(reasons, dtype=np.int64, count=len(reasons)))
    needed: np.ndarray = np.unique(units.sequence[live])
    found: np.ndarray = needed[tokenized.lengths[needed] > 0]
    return found


def _only(tokenized: Tokenized, rows: np.ndarray) -> Tokenized:
    if len(rows) == len(tokenized.truncated):
        return tokenized
    lengths = tokenized.lengths[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.repeat(tokenized.offsets[:-1][rows] - offsets[:-1], lengths)
    index = np.arange(offsets[-1]) + starts
    types = None if tokenized.types_T is None else tokenized.types_T[index]
    return Tokenized(
        ids_T=tokenized.ids_T[index],
        offsets=offsets,
        truncated=tokenized.truncated[rows],
        types_T=types,
        contents=None if tokenized.contents is None else [tokenized.contents[i] for i in rows.tolist()],
    )


def _renumbered(batches: Sequence[Batch], rows: np.ndarray) -> list[Batch]:
    return [replace(b, units=rows[b.units]) for b in batches]
