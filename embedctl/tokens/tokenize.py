"""Texts to token ids with the model's own tokenizer, in Rust, off the GIL.

Texts enter; flat int32 ids with special tokens, cut to the model's length, leave as `Tokenized`. The ids equal those
of sentence-transformers. Refused: a text Rust cannot take (lone surrogates), as ValueError, for the caller to find.

The library is asked for content tokens only; cutting and special tokens are done here, because it would otherwise
build every cut-off remainder too, and because "was it cut" is then exact.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedctl.errors import ModelError, UsageError
from embedctl.records import Tokenized
from embedctl.tokens.load import LoadedTokenizer, load_rust
from embedctl.tokens.precut import PreCut

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TEXTS_PER_CALL = 256
CHARS_PER_CALL = 1 << 20
FIRST_CUT_CHARS_PER_TOKEN = 8
GROWTH = 4


def set_threads(n: int) -> None:
    """Threads of the Rust pool, for the whole process. Works only before the first text is tokenized.

    RAYON_NUM_THREADS and TOKENIZERS_PARALLELISM win where the user has set them.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(n))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if n > 1 else "false")


def load_tokenizer(
    folder: Path, *, max_length: int, prompt: str = "", lowercase: bool = False, strip: bool = False,
    trust_remote_code: bool = False, add_special_tokens: bool = True, marker: str = "",
) -> RustTokenizer:  # fmt: skip
    """The tokenizer of a model folder, cut to `max_length` tokens, special tokens included.

    lowercase: sentence-transformers' `do_lower_case`, also for a cased tokenizer. strip: white space around each text
    is dropped first (sentence-transformers 6 does not). add_special_tokens=False: static embeddings, whose
    tokenizer.json is taken as it stands, its own truncation included. marker: a token put behind the first special one,
    or text before the prompt where the tokenizer does not know it.

    :raises ModelError: no tokenizer that can be used; the folder and the reason are named.
    :raises UsageError: max_length leaves no room for text.
    """
    loaded = load_rust(folder, trust_remote_code=trust_remote_code, as_file=not add_special_tokens)
    if not add_special_tokens and loaded.file_max_length is not None:
        max_length = min(max_length, loaded.file_max_length)
    if lowercase:
        add_lowercase(loaded.rust)
    return RustTokenizer(
        loaded, max_length=max_length, prompt=prompt, strip=strip, add_special_tokens=add_special_tokens, marker=marker
    )


class RustTokenizer:
    """Implements `tokens.base.Tokenizer`, and what the chunker takes: `count`, `offsets`, `overhead_tokens`."""

    def __init__(
        self, loaded: LoadedTokenizer, *, max_length: int, prompt: str = "", strip: bool = False,
        add_special_tokens: bool = True, marker: str = "",
    ) -> None:  # fmt: skip
        marker_id, rest = _marker_id(loaded.rust, marker)
        prompt = rest + prompt
        self.max_length = max_length
        self.prompt = prompt
        self._rust = loaded.rust
        self._cut_left = loaded.cut_left
        self._strip = strip
        self._head, self._tail = _special_ids(loaded.rust) if add_special_tokens else ([], [])
        if marker_id is not None:
            self._head = [*self._head[:1], marker_id, *self._head[1:]]
        self._room = max_length - len(self._head) - len(self._tail)
        if self._room < 1:
            raise UsageError(
                f"--max-length: {max_length} leaves no room for text beside {max_length - self._room} special tokens",
                hint=f"--max-length {max_length - self._room + 1} or more",
            )
        self._precut = PreCut(loaded.rust)
        self.num_prompt_tokens = self._prompt_length(loaded.special_ids)
        self._prompt_tokens = self.count([prompt])[0] if prompt else 0
        self.overhead_tokens = len(self._head) + len(self._tail) + self._prompt_tokens
        """Tokens of `max_length` that special tokens and prompt take."""

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`. Memory for a text is bounded by what is kept of it where the cut is proven."""
        flat, lengths = array("i"), np.zeros(len(texts), dtype=np.int64)
        truncated = np.zeros(len(texts), dtype=bool)
        head, tail, room = self._head, self._tail, self._room
        done = 0
        for part in parts_of([self._whole(text) for text in texts]):
            for ids in self.content(part, room):
                if len(ids) > room:
                    truncated[done] = True
                    ids = ids[-room:] if self._cut_left else ids[:room]
                flat.fromlist(head)
                flat.fromlist(ids)
                flat.fromlist(tail)
                lengths[done] = len(head) + len(ids) + len(tail)
                done += 1
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Tokenized(ids_T=np.array(flat, dtype=np.int32), offsets=offsets, truncated=truncated)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, uncut, without special tokens and prompt.

        :raises ValueError: a text cannot be tokenized.
        """
        return [len(encoding) for part in parts_of(texts) for encoding in self._encode(part)]

    def count_after_prompt(self, texts: Sequence[str]) -> list[int]:
        """As `count`, but read behind the prompt: tokens of prompt and text, less those of the prompt alone.

        The two differ where the prompt's end and the text's start join: chunks must fit by this one.
        """
        if not self.prompt:
            return self.count(texts)
        return [n - self._prompt_tokens for n in self.count([self.prompt + text for text in texts])]

    def offsets(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int64 (t, 2) for each text: character span of each token, uncut, without special tokens and prompt.

        :raises ValueError: a text cannot be tokenized.
        """
        return [
            np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
            for part in parts_of(texts)
            for encoding in self._encode(part, with_offsets=True)
        ]

    def _whole(self, text: str) -> str:
        return self.prompt + (text.strip() if self._strip else text)

    def content(self, texts: Sequence[str], room: int) -> list[list[int]]:
        """Content ids of each text, as it stands: all of them, or of a proven prefix that holds more than `room`.

        :raises ValueError: a text cannot be tokenized.
        """
        limit = FIRST_CUT_CHARS_PER_TOKEN * room + 64
        pieces = [self._prefix(text, limit) for text in texts]
        ids = [encoding.ids for encoding in self._encode(pieces)]
        for i, text in enumerate(texts):
            grown = limit
            while len(ids[i]) <= room and len(pieces[i]) < len(text):
                grown *= GROWTH
                pieces[i] = self._prefix(text, grown)
                ids[i] = self._encode([pieces[i]])[0].ids
        return ids

    def _prefix(self, text: str, limit: int) -> str:
        if self._cut_left or len(text) <= 2 * limit:
            return text
        place = self._precut.place(text, limit)
        return text if place is None else text[:place]

    def _encode(self, texts: Sequence[str], *, with_offsets: bool = False) -> list[Encoding]:
        encode = self._rust.encode_batch if with_offsets else self._rust.encode_batch_fast
        try:
            return encode(list(texts), add_special_tokens=False)
        except BaseException as exc:
            # A panic in Rust is a BaseException, but it is about the text as much as any other error is.
            if not isinstance(exc, Exception) and type(exc).__name__ != "PanicException":
                raise
            raise ValueError(f"the tokenizer cannot take this text: {exc}") from exc

    def _prompt_length(self, special_ids: frozenset[int]) -> int:
        """As sentence-transformers counts it: the prompt alone, less a special token at its end."""
        if not self.prompt:
            return 0
        alone = self([""]).ids_T
        return len(alone) - (1 if len(alone) and int(alone[-1]) in special_ids else 0)


def parts_of(texts: Sequence[str]) -> list[Sequence[str]]:
    """Runs of texts for one call of the library each, so that its encodings never hold a whole window."""
    out, begin, chars = [], 0, 0
    for i, text in enumerate(texts):
        if i > begin and (i - begin >= TEXTS_PER_CALL or chars + len(text) > CHARS_PER_CALL):
            out.append(texts[begin:i])
            begin, chars = i, 0
        chars += len(text)
    return [*out, texts[begin:]] if begin < len(texts) else out


def _special_ids(rust: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids the tokenizer puts before and after a text.

    :raises ModelError: it does something else to the text's own ids.
    """
    found = set()
    for probe in ("a", "of the sea", "1", "\u4e2d"):
        content = rust.encode(probe, add_special_tokens=False).ids
        if not content:
            continue
        whole = rust.encode(probe, add_special_tokens=True)
        begin = next((i for i, special in enumerate(whole.special_tokens_mask) if not special), 0)
        head, tail = whole.ids[:begin], whole.ids[begin + len(content) :]
        if list(chain(head, content, tail)) != whole.ids:
            raise ModelError("the tokenizer's post-processor does more than put special tokens around a text",
                             hint="report the model; it is not supported")  # fmt: skip
        found.add((tuple(head), tuple(tail)))
    if len(found) != 1:
        raise ModelError("the tokenizer's special tokens cannot be told from the text's", hint="report the model")
    ((head_ids, tail_ids),) = found
    return list(head_ids), list(tail_ids)


def _marker_id(rust: Tokenizer, marker: str) -> tuple[int | None, str]:
    """(the token of the whole marker or of its first word, what is left of it as text); (None, marker): it has none."""
    for text in (marker, *marker.split(None, 1)[:1]):
        found = rust.token_to_id(text) if text else None
        if found is not None:
            rest = marker.removeprefix(text)
            return found, rest if rest.strip() else ""
    return None, marker


def add_lowercase(rust: Tokenizer) -> None:
    """Lowercase before anything else, where the tokenizer does not do so already."""
    from tokenizers import normalizers

    known = rust.normalizer
    if isinstance(known, normalizers.Lowercase):
        return
    nested = isinstance(known, normalizers.Sequence)
    parts = [known[i] for i in range(len(known))] if nested else [known] if known is not None else []
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        rust.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])
