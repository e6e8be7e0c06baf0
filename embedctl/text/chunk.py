"""Cuts documents into chunks, counted in the model's own tokens.

Texts enter with two callables of the tokenizer (tokens in a text; character spans of its tokens); character spans
leave, as lists of (begin, end) with `text[begin:end]` the chunk. Every visible character is in some chunk; chunks
hold no white space at their ends and are never only white space. Refused: a size without room for text.

tokens     windows of exactly the content tokens that fit, cut between tokens. Where a piece alone tokenizes to more
           than it did inside its text, the window shrinks until it fits.
sentence   whole sentences (Unicode rules), as many as fit; line breaks count as white space. A longer sentence is cut
           between words.
semantic   the structure of plain text: the largest of paragraph, line, sentence, word that fits, not crossing a larger
           one. No model judges the meaning.
The last two are semantic-text-splitter's. A chunk is longer than asked only where a single token or character, cut
out of its text, is more tokens than fit: with room for a few tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from embedctl.errors import UsageError

if TYPE_CHECKING:
    from semantic_text_splitter import TextSplitter

Kind = Literal["tokens", "sentence", "semantic"]
Span = tuple[int, int]

SEGMENT_CHARS = 1 << 16
MAX_WINDOWS_AHEAD = 128
_BREAKS = str.maketrans(dict.fromkeys("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


class Chunker:
    """Cuts texts by one rule. Not thread-safe where the tokenizer is not."""

    def __init__(
        self, kind: Kind, size: int, overlap: int, *, overhead: int,
        count: Callable[[Sequence[str]], list[int]], offsets: Callable[[Sequence[str]], list[np.ndarray]],
    ) -> None:  # fmt: skip
        """size: tokens of a chunk as the model sees it, `overhead` (special tokens and prompt) included.
        overlap: content tokens that neighbours share, at most. count: content tokens of each text, as read behind the
        prompt. offsets: int64 (t, 2) for each text, the character span of each content token.

        :raises UsageError: no room for text, or the overlap fills it, or the splitter is not installed.
        """
        self.room = size - overhead
        if self.room < 1:
            raise UsageError(
                f"--chunk: {size} tokens leave no room for text beside {overhead} of special tokens and prompt",
                hint=f"--chunk {kind}:{overhead + 1} or more",
            )
        if overlap >= self.room:
            raise UsageError(
                f"--overlap: {overlap} must be below the {self.room} tokens of text in a chunk",
                hint=f"{size} tokens, {overhead} of them special tokens and prompt",
            )
        self.kind = kind
        self.overlap = overlap
        self._count = count
        self._offsets = offsets
        self._splitter = None if kind == "tokens" else _splitter(self.room, overlap, count)

    def __call__(self, texts: Sequence[str]) -> list[list[Span]]:
        """Spans of the chunks of each text, in order; none for a text of white space.

        :raises ValueError: the tokenizer cannot take a text.
        """
        return [self.spans(text) for text in texts]

    def spans(self, text: str) -> list[Span]:
        """The same for one text."""
        return self._tokens(text) if self._splitter is None else self._structure(text)

    def _structure(self, text: str) -> list[Span]:
        assert self._splitter is not None
        spans = []
        for base, end in _segments(text):
            piece = text[base:end]
            view = piece.translate(_BREAKS) if self.kind == "sentence" else piece
            cuts = self._splitter.chunk_indices(view)
            spans += _trimmed(text, [(base + begin, base + begin + len(chunk)) for begin, chunk in cuts])
        return self._tightened(text, spans)

    def _tightened(self, text: str, spans: list[Span]) -> list[Span]:
        """Windows of tokens in place of a span whose text is longer in tokens than the splitter saw it."""
        out: list[Span] = []
        for span, n in zip(spans, self._count([text[begin:end] for begin, end in spans]), strict=True):
            inner = self._tokens(text[slice(*span)]) if n > self.room else [(0, span[1] - span[0])]
            out += [(span[0] + begin, span[0] + end) for begin, end in inner]
        return _trimmed(text, sorted(out))

    def _tokens(self, text: str) -> list[Span]:
        starts = self._token_starts(text)
        spans: list[Span] = []
        token, ahead = 0, 1
        while token < len(starts):
            windows = self._windows(starts, token, ahead)
            excess = self._excess(text, starts, windows)
            good = next((i for i, n in enumerate(excess) if n > 0), len(windows))
            ahead = min(2 * ahead, MAX_WINDOWS_AHEAD)
            accepted = windows[:good]
            if good < len(windows):
                accepted.append(self._shrunk(text, starts, windows[good], excess[good]))
                ahead = 1
            spans += [_chars(text, starts, window) for window in accepted]
            token = self._next(starts, accepted[-1])
        return _trimmed(text, spans)

    def _token_starts(self, text: str) -> np.ndarray:
        """int64, rising, without repeats lost: where each token begins; the first is 0, so nothing is left out."""
        segments = _segments(text)
        found = self._offsets([text[begin:end] for begin, end in segments])
        starts = [spans[:, 0] + begin for spans, (begin, _) in zip(found, segments, strict=True)]
        whole = np.maximum.accumulate(np.concatenate([*starts, np.zeros(0, dtype=np.int64)]))
        if len(whole):
            whole[0] = 0
        elif text.strip():
            return np.zeros(1, dtype=np.int64)
        return whole

    def _windows(self, starts: np.ndarray, token: int, ahead: int) -> list[Span]:
        """Up to `ahead` windows (first token, token after the last) from `token` on."""
        out: list[Span] = []
        while len(out) < ahead and token < len(starts):
            out.append((token, _cut(starts, token, token + self.room)))
            token = self._next(starts, out[-1])
        return out

    def _next(self, starts: np.ndarray, window: Span) -> int:
        """The first token of the window after this one; always in a later character."""
        begin, end = window
        if end >= len(starts):
            return len(starts)
        later = int(np.searchsorted(starts, starts[begin], side="right"))
        return min(max(int(np.searchsorted(starts, starts[max(end - self.overlap, 0)])), later), end)

    def _excess(self, text: str, starts: np.ndarray, windows: Sequence[Span]) -> list[int]:
        """By how many tokens each window's text, tokenized alone, is too long."""
        pieces = [text[slice(*_chars(text, starts, window))].strip() for window in windows]
        return [n - self.room for n in self._count(pieces)]

    def _shrunk(self, text: str, starts: np.ndarray, window: Span, excess: int) -> Span:
        begin, end = window
        while excess > 0:
            smaller = _cut(starts, begin, max(end - excess, begin))
            if smaller >= end:
                break
            end = smaller
            excess = self._excess(text, starts, [(begin, end)])[0]
        return begin, end


def _splitter(room: int, overlap: int, count: Callable[[Sequence[str]], list[int]]) -> TextSplitter:
    try:
        from semantic_text_splitter import TextSplitter
    except ImportError as exc:
        raise UsageError("--chunk: sentence and semantic need semantic-text-splitter, which is not installed",
                         hint="pip install 'embedctl[chunk]'") from exc  # fmt: skip
    return TextSplitter.from_callback(lambda text: count([text])[0], room, overlap=overlap, trim=True)


def _cut(starts: np.ndarray, begin: int, end: int) -> int:
    """The window's end moved back to where a character begins, else on to the next one, so that it holds one."""
    if end >= len(starts):
        return len(starts)
    back = int(np.searchsorted(starts, starts[end]))
    return back if starts[back] > starts[begin] else int(np.searchsorted(starts, starts[begin], side="right"))


def _chars(text: str, starts: np.ndarray, window: Span) -> Span:
    begin, end = window
    return int(starts[begin]), int(starts[end]) if end < len(starts) else len(text)


def _segments(text: str) -> list[Span]:
    """Stretches of at most SEGMENT_CHARS, cut before white space where there is some, so that memory is bounded."""
    out, begin = [], 0
    while len(text) - begin > SEGMENT_CHARS:
        end = begin + SEGMENT_CHARS
        space = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end))
        out.append((begin, space if space > begin else end))
        begin = out[-1][1]
    return [*out, (begin, len(text))]


def _trimmed(text: str, spans: Sequence[Span]) -> list[Span]:
    """Without white space at the ends, and without spans that then lie within a neighbour."""
    out: list[Span] = []
    for begin, end in spans:
        piece = text[begin:end]
        begin += len(piece) - len(piece.lstrip())
        end = begin + len(piece.strip())
        if begin == end or (out and end <= out[-1][1]):
            continue
        if out and begin == out[-1][0]:
            out.pop()
        out.append((begin, end))
    return out


def pool_chunks(vectors: np.ndarray, doc_of_chunk: np.ndarray, weights: np.ndarray, normalise: bool) -> np.ndarray:
    """One vector a document: the mean of its chunks' vectors, weighted by their tokens.

    vectors: float32 (n, C). doc_of_chunk: int64 (n,), ascending from 0 without gaps. weights: int64 (n,), positive.
    Returns float32 (docs, C), accumulated in float64; `normalise` scales each to length 1 (a zero vector stays zero).
    """
    if not len(vectors):
        return np.zeros((0, vectors.shape[1]), dtype=np.float32)
    first = np.flatnonzero(np.diff(doc_of_chunk, prepend=-1))
    weights = weights.astype(np.float64)
    sums = np.add.reduceat(vectors * weights[:, None], first, axis=0)
    mean = sums / np.add.reduceat(weights, first)[:, None]
    if normalise:
        norms = np.linalg.norm(mean, axis=1, keepdims=True)
        mean = np.divide(mean, norms, out=np.zeros_like(mean), where=norms > 0)
    return mean.astype(np.float32)
