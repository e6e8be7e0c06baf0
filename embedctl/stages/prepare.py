"""Windows -> units, tokens and batches: chunks documents, tokenizes distinct texts, packs.

Enters: a `Window`. Leaves: a `Prepared` window. A text that cannot be tokenized, or is too long where the user said so,
kills its row and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from embedctl.records import Batch, Tokenized, Units, Window

Spans = Callable[[str], list[tuple[int, int]]]
"""A document's chunks as character spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """How texts become units. chunk: for every document; overlong: for those the model would cut, when asked.

    unique: texts -> (distinct texts, int64 index of each). pack: tokens and budget -> batches over distinct texts.
    """

    tokenize: Callable[[Sequence[str]], Tokenized]
    unique: Callable[[Sequence[str]], tuple[list[str], np.ndarray]]
    pack: Callable[[Tokenized, int], list[Batch]]
    chunk: Spans | None
    on_overlong: str
    overlong: Spans | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A window with its units. reasons: live row -> why it is dead after all. batches: packed for `batch_tokens`."""

    window: Window
    units: Units
    batches: Sequence[Batch]
    batch_tokens: int
    reasons: dict[int, str] = field(default_factory=dict)


def prepare(window: Window, rules: TextRules, batch_tokens: int) -> Prepared:
    """Pure: the same window, rules and budget give the same batches."""
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
    needed = _needed_sequences(units, reasons)
    batches = rules.pack(_only(units.tokenized, needed), batch_tokens)
    return Prepared(
        window=window, units=units, batches=_renumbered(batches, needed), batch_tokens=batch_tokens, reasons=reasons
    )


def repack(prepared: Prepared, rules: TextRules, batch_tokens: int) -> Prepared:
    """The same window under another budget."""
    needed = _needed_sequences(prepared.units, prepared.reasons)
    batches = rules.pack(_only(prepared.units.tokenized, needed), batch_tokens)
    return Prepared(
        window=prepared.window,
        units=prepared.units,
        batches=_renumbered(batches, needed),
        batch_tokens=batch_tokens,
        reasons=prepared.reasons,
    )


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
    pieces = [text[b:e] for text, s in zip(texts, spans, strict=True) for b, e in s]
    distinct, sequence = rules.unique(pieces)
    tokenized, bad = _tokenize(distinct, rules)
    reasons = {int(document[u]): bad[s] for u, s in enumerate(sequence.tolist()) if s in bad} if bad else {}
    units = Units(
        document=document, number=number, begin=flat[:, 0], end=flat[:, 1], tokenized=tokenized, sequence=sequence
    )
    return units, reasons


def _tokenize(texts: Sequence[str], rules: TextRules) -> tuple[Tokenized, dict[int, str]]:
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
    return Tokenized(ids_T=ids, offsets=offsets, truncated=np.concatenate([p.truncated for p in parts])), bad


def _empty(n: int) -> Tokenized:
    zeros = np.zeros(n + 1, dtype=np.int64)
    return Tokenized(ids_T=np.zeros(0, dtype=np.int32), offsets=zeros, truncated=np.zeros(n, dtype=bool))


def _truncated_rows(units: Units) -> list[int]:
    rows: list[int] = np.unique(units.document[units.tokenized.truncated[units.sequence]]).tolist()
    return rows


def _needed_sequences(units: Units, reasons: dict[int, str]) -> np.ndarray:
    """Distinct texts of at least one token that a live row needs, ascending."""
    live = ~np.isin(units.document, np.fromiter(reasons, dtype=np.int64, count=len(reasons)))
    needed: np.ndarray = np.unique(units.sequence[live])
    found: np.ndarray = needed[units.tokenized.lengths[needed] > 0]
    return found


def _only(tokenized: Tokenized, rows: np.ndarray) -> Tokenized:
    if len(rows) == len(tokenized.truncated):
        return tokenized
    lengths = tokenized.lengths[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.repeat(tokenized.offsets[:-1][rows] - offsets[:-1], lengths)
    ids = tokenized.ids_T[np.arange(offsets[-1]) + starts]
    return Tokenized(ids_T=ids, offsets=offsets, truncated=tokenized.truncated[rows])


def _renumbered(batches: Sequence[Batch], rows: np.ndarray) -> list[Batch]:
    return [
        Batch(
            input_ids_T=b.input_ids_T,
            cu_seqlens=b.cu_seqlens,
            units=rows[b.units],
            token_type_ids_T=b.token_type_ids_T,
        )
        for b in batches
    ]
