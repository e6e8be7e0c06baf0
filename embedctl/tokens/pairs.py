"""Pairs of texts to token ids, as cross-encoders and decoder rerankers take them.

Texts made by `pairs.joined` enter; ids with special tokens and token types, cut to the model's length, leave as
`Tokenized`. A pair too long loses tokens from its longer text first (`longest_first`), as sentence-transformers cuts
it; a rendered chat keeps its last, fixed tokens. Refused: a tokenizer or template that cannot hold two texts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedctl import pairs
from embedctl.errors import ModelError, UsageError
from embedctl.records import Tokenized
from embedctl.tokens.fake import FakeTokenizer
from embedctl.tokens.load import LoadedTokenizer, load_rust
from embedctl.tokens.tokenize import RustTokenizer, add_lowercase, parts_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PROBES = (("a", "b"), ("of the sea", "1 2"), ("\u4e2d", "a b c"))
_LEAST_ROOM = 2
Render = Callable[[str, str], str]
"""(query, document) -> the whole prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a tokenizer puts around two texts: ids before, between and after, and the token type of each place."""

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    head_types: tuple[int, ...]
    middle_types: tuple[int, ...]
    tail_types: tuple[int, ...]
    first_type: int
    second_type: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.middle) + len(self.tail)


def load_pair_tokenizer(
    folder: Path, *, max_length: int, prompt: str = "", lowercase: bool = False, trust_remote_code: bool = False
) -> PairTokenizer:
    """The tokenizer of a model folder for pairs of at most `max_length` tokens; the prompt stands before the query.

    :raises ModelError: no tokenizer that can be used. :raises UsageError: max_length leaves no room for text.
    """
    loaded = load_rust(folder, trust_remote_code=trust_remote_code, as_file=False)
    if lowercase:
        add_lowercase(loaded.rust)
    return PairTokenizer(loaded, max_length=max_length, prompt=prompt)


class _Unchunked:
    """What `tokens.base.Tokenizer` asks for the sake of chunks, which pairs have none of."""

    num_prompt_tokens = 0

    def count(self, texts: Sequence[str]) -> list[int]:
        raise NotImplementedError

    def count_after_prompt(self, texts: Sequence[str]) -> list[int]:
        """As `count`."""
        return self.count(texts)

    def offsets(self, texts: Sequence[str]) -> list[np.ndarray]:  # noqa: ARG002
        """:raises ValueError: always."""
        raise ValueError("a pair of texts has no chunks")


class PairTokenizer(_Unchunked):
    """Implements `tokens.base.Tokenizer` for texts made by `pairs.joined`."""

    def __init__(self, loaded: LoadedTokenizer, *, max_length: int, prompt: str = "") -> None:
        self.max_length = max_length
        self.prompt = prompt
        self._texts = RustTokenizer(loaded, max_length=max_length)
        self._frame = frame_of(loaded.rust)
        self._with_types, self._cut_left = loaded.type_ids, loaded.cut_left
        self._room = max_length - self._frame.size
        if self._room < _LEAST_ROOM:
            raise UsageError(
                f"--max-length: {max_length} leaves no room for two texts beside {self._frame.size} special tokens",
                hint=f"--max-length {self._frame.size + _LEAST_ROOM} or more",
            )
        self.overhead_tokens = self._frame.size + (self._texts.count([prompt])[0] if prompt else 0)

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`; token types where the model takes them."""
        flat, types = array("i"), array("B")
        lengths, truncated = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=bool)
        done = 0
        for part in parts_of(texts):
            both = [(self.prompt + query, passage) for query, passage in map(pairs.pair, part)]
            distinct = list(dict.fromkeys(text for pair in both for text in pair))  # candidates share their query
            content = dict(zip(distinct, self._texts.content(distinct, self._room), strict=True))
            for query, passage in both:
                first, second = content[query], content[passage]
                keep = self._kept(query, passage, len(first), len(second))
                truncated[done] = keep != (len(first), len(second))
                lengths[done] = self._put(flat, types, self._cut(first, keep[0]), self._cut(second, keep[1]))
                done += 1
        return Tokenized(
            ids_T=np.array(flat, dtype=np.int32),
            offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            truncated=truncated,
            types_T=np.array(types, dtype=np.uint8) if self._with_types else None,
        )

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of both texts of each pair, uncut, without special tokens and prompt."""
        both = self._texts.count([text for pair in map(pairs.pair, texts) for text in pair])
        return [a + b for a, b in zip(both[::2], both[1::2], strict=True)]

    def _kept(self, query: str, passage: str, first: int, second: int) -> tuple[int, int]:
        if first > self._room < second and self._room % 2:
            # Which of the two keeps the odd token hangs on their whole lengths; content stops counting early.
            first, second = self._texts.count([query, passage])
        return longest_first(first, second, self._room)

    def _cut(self, ids: list[int], keep: int) -> list[int]:
        return ids[len(ids) - keep :] if self._cut_left else ids[:keep]

    def _put(self, flat: array[int], types: array[int], first: list[int], second: list[int]) -> int:
        frame = self._frame
        for ids in (frame.head, first, frame.middle, second, frame.tail):
            flat.extend(ids)
        if self._with_types:
            types.extend(frame.head_types)
            types.extend(bytes([frame.first_type]) * len(first))
            types.extend(frame.middle_types)
            types.extend(bytes([frame.second_type]) * len(second))
            types.extend(frame.tail_types)
        return frame.size + len(first) + len(second)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens that two texts keep of theirs when both must fit into `room`: the longer one gives way, then both do.

    As the tokenizers library cuts pairs, odd token included.
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    if short > room or short + max(short, room - short) > room:
        short, long = room // 2, room // 2 + room % 2
    else:
        long = max(short, room - short)
    return (long, short) if first > second else (short, long)


def frame_of(rust: Tokenizer) -> Frame:
    """The frame a tokenizer puts around any two texts. :raises ModelError: it does something else to them."""
    found = set()
    for first, second in _PROBES:
        contents = [rust.encode(text, add_special_tokens=False).ids for text in (first, second)]
        whole = rust.encode(first, second)
        sides = [[i for i, side in enumerate(whole.sequence_ids) if side == n] for n in (0, 1)]
        if not all(contents) or [[whole.ids[i] for i in side] for side in sides] != contents:
            continue
        (a, *_), (b, *_) = sides
        ends = [side[-1] + 1 for side in sides]
        if ends[0] - a != len(contents[0]) or ends[1] - b != len(contents[1]) or ends[0] > b:
            continue
        ids, types = whole.ids, whole.type_ids
        found.add(
            Frame(
                head=tuple(ids[:a]), middle=tuple(ids[ends[0] : b]), tail=tuple(ids[ends[1] :]),
                head_types=tuple(types[:a]), middle_types=tuple(types[ends[0] : b]), tail_types=tuple(types[ends[1] :]),
                first_type=types[a], second_type=types[b],
            )
        )  # fmt: skip
    if len(found) != 1:
        raise ModelError(
            "the tokenizer does more to a pair of texts than put special tokens around them",
            hint="report the model; it is not supported",
        )
    (frame,) = found
    return frame


class FakePairTokenizer(FakeTokenizer):
    """The fake's way with pairs: the words of both, a mark between them."""

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`."""
        return super().__call__([" | ".join(pairs.pair(text)) for text in texts])

    def count(self, texts: Sequence[str]) -> list[int]:
        """Words of both texts."""
        return super().count([" ".join(pairs.pair(text)) for text in texts])


def load_chat_tokenizer(
    folder: Path, *, max_length: int, prompt: str = "", template: str | None = None, structured: bool = False,
    options: Mapping[str, Any] | None = None, trust_remote_code: bool = False,
) -> ChatTokenizer:  # fmt: skip
    """The tokenizer of a decoder reranker. `template`: Jinja that knows the roles system, query and document, None for
    the folder's own; `structured`: it takes contents as lists of typed parts; `options` are its other variables.

    :raises ModelError: the template cannot hold a query and a document.
    """
    from transformers import AutoTokenizer

    loaded = load_rust(folder, trust_remote_code=trust_remote_code, as_file=False)
    try:
        wrapped = AutoTokenizer.from_pretrained(
            str(folder), use_fast=True, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as exc:
        raise ModelError(f"{folder}: transformers cannot load its tokenizer: {str(exc).strip()[:200]}") from exc

    def render(query: str, document: str) -> str:
        said = [("query", query), ("document", document)]
        said = [("system", prompt), *said] if prompt else said
        messages: list[Any] = [
            {"role": role, "content": [{"type": "text", "text": text}] if structured else text} for role, text in said
        ]
        text = wrapped.apply_chat_template(messages, tokenize=False, chat_template=template, **(options or {}))
        assert isinstance(text, str)
        return text

    try:
        return ChatTokenizer(loaded, render, max_length=max_length)
    except Exception as exc:
        if isinstance(exc, (ModelError, UsageError)):
            raise
        raise ModelError(f"{folder}: its chat template cannot be rendered: {str(exc).strip()[:200]}") from exc


class ChatTokenizer(_Unchunked):
    """Implements `tokens.base.Tokenizer` for texts made by `pairs.joined`, each rendered into one prompt."""

    def __init__(self, loaded: LoadedTokenizer, render: Render, *, max_length: int) -> None:
        self.max_length = max_length
        self._texts = RustTokenizer(loaded, max_length=max_length, add_special_tokens=False)
        self._render = render
        self._suffix = self._fixed_end()
        if len(self._suffix) + _LEAST_ROOM > max_length:
            raise UsageError(
                f"--max-length: {max_length} leaves no room for text beside {len(self._suffix)} tokens of the template",
                hint=f"--max-length {len(self._suffix) + _LEAST_ROOM} or more",
            )
        self.overhead_tokens = self._texts.count([render("", "")])[0]

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`. A cut prompt ends as a whole one does, so that the model is still asked."""
        tokenized = self._texts(self._rendered(texts))
        for i in np.flatnonzero(tokenized.truncated).tolist():
            end = int(tokenized.offsets[i + 1])
            tokenized.ids_T[end - len(self._suffix) : end] = self._suffix
        return tokenized

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each rendered pair, uncut, without what the template itself takes."""
        return [n - self.overhead_tokens for n in self._texts.count(self._rendered(texts))]

    def _rendered(self, texts: Sequence[str]) -> list[str]:
        return [self._render(*pairs.pair(text)) for text in texts]

    def _fixed_end(self) -> list[int]:
        """Last tokens that no text changes. :raises ModelError: the template drops one of the texts."""
        fillers = ("0", "1 2 3 4")
        shown = {(q, d): self._render(q, d) for q in fillers for d in fillers}
        if len(set(shown.values())) < len(shown):
            raise ModelError(
                "the tokenizer's chat template drops the query or the document of a pair",
                hint="put a chat_template.jinja into the folder that renders the roles query and document",
            )
        ends = [shown[filler, filler] for filler in fillers]
        first, second = self._texts.content(ends, max(map(len, ends)))
        same = 0
        while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
            same += 1
        return first[len(first) - same :]
