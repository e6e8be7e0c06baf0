"""Rows that are pictures or sounds, and texts that only a model's own processor can turn into tokens.

Enters: contents as `media` makes them, or texts. Leaves: `Tokenized`. For contents it says how many tokens each becomes
in the model, from its header; the encoder makes the tokens themselves. Refused, as ValueError: contents that cannot be
read. transformers' processors are the reference, so they are what is asked.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.errors import EmbedctlError, ModelError, UsageError
from embedctl.media import Kind, as_bytes
from embedctl.records import Tokenized

_BLANKS = ((64, 64), (640, 200), (90, 400), (1200, 1700))


class ContentCounter:
    """Implements `tokens.base.Tokenizer` for pictures and sounds: nothing is cut into pieces, nothing has a prompt."""

    num_prompt_tokens = overhead_tokens = 0
    max_sequences = 256
    """In a batch, however few tokens they are: before they are tokens they are pixels or samples."""

    def __init__(
        self, kind: Kind, tokens: int | Callable[[int, int], int], *, max_length: int, max_seconds: float | None
    ) -> None:
        """tokens: of every content, or of a picture of that width and height. max_seconds: longer sounds are cut."""
        self.max_length = max_length
        self._kind, self._tokens, self._max_seconds = kind, tokens, max_seconds

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`. :raises ValueError: a header cannot be read."""
        lengths = np.array([self._length(text) for text in texts], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        cut = np.array([self._is_cut(text) for text in texts], dtype=bool)
        return Tokenized(ids_T=np.zeros(offsets[-1], np.int32), offsets=offsets, truncated=cut, contents=list(texts))

    def _length(self, text: str) -> int:
        if isinstance(self._tokens, int):
            return self._tokens
        from embedctl.media.pictures import size_of

        return self._tokens(*size_of(as_bytes(text)))

    def _is_cut(self, text: str) -> bool:
        if self._kind != "audio" or self._max_seconds is None:
            return False
        from embedctl.media.sounds import seconds_of

        return seconds_of(as_bytes(text)) > self._max_seconds

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each content."""
        return [self._length(text) for text in texts]

    count_after_prompt = count

    def offsets(self, _: Sequence[str]) -> list[np.ndarray]:
        """See `Tokenizer.offsets`. :raises UsageError: always."""
        raise UsageError("pictures and sounds cannot be cut into chunks", hint="leave out --chunk")


class ReferenceTokenizer:
    """Implements `tokens.base.Tokenizer` with what transformers has for the model, one text at a time.

    For tokenizers that exist only in Python, and for processors that put words of their own around a query.
    """

    num_prompt_tokens = overhead_tokens = 0

    def __init__(self, encode: Callable[[str], tuple[Any, bool]], *, max_length: int, prompt: str = "") -> None:
        """encode: a text -> (`input_ids` and perhaps `token_type_ids`, as lists; whether it was cut)."""
        self.max_length, self._encode, self._prompt = max_length, encode, prompt

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`."""
        ids: list[list[int]] = []
        types: list[list[int]] = []
        truncated = np.zeros(len(texts), dtype=bool)
        for i, text in enumerate(texts):
            found, truncated[i] = self._one(self._prompt + text)
            ids.append(found["input_ids"])
            types += [found["token_type_ids"]] if "token_type_ids" in found else []
        offsets = np.concatenate(([0], np.cumsum([len(one) for one in ids]))).astype(np.int64)
        flat = np.fromiter((i for one in ids for i in one), dtype=np.int32, count=int(offsets[-1]))
        types_T = np.array([i for one in types for i in one], dtype=np.uint8) if types else None
        return Tokenized(ids_T=flat, offsets=offsets, truncated=truncated, types_T=types_T)

    def _one(self, text: str) -> tuple[Any, bool]:
        text.encode("utf-8")  # lone surrogates are refused here, as the tokenizers in Rust refuse them
        try:
            return self._encode(text)
        except (UnicodeError, ValueError, TypeError, RuntimeError) as exc:
            raise ValueError(f"the tokenizer cannot take this text: {exc}") from exc

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as the model gets it."""
        return [int(n) for n in np.diff(self(texts).offsets)]

    count_after_prompt = count

    def offsets(self, _: Sequence[str]) -> list[np.ndarray]:
        """See `Tokenizer.offsets`. :raises UsageError: always."""
        raise UsageError("this model's tokenizer cannot tell where its tokens stand", hint="leave out --chunk")


def open_counter(
    folder: Path, kind: Kind, tokens: int | None, *, max_length: int, max_seconds: float | None
) -> ContentCounter:
    """tokens: of every content; None asks the processor for each size of picture. :raises ModelError: there is none."""
    if tokens is not None:
        return ContentCounter(kind, tokens, max_length=max_length, max_seconds=max_seconds)
    processor = load_processor(folder)
    return ContentCounter(kind, _page_tokens(processor, folder), max_length=max_length, max_seconds=None)


def _page_tokens(processor: Any, folder: Path) -> Callable[[int, int], int]:
    """(width, height) -> tokens of a page with all that the processor puts around it.

    By the processor's own count of a picture's tokens, where what stands around them is the same for pages of any
    shape; else by trying a blank page of that size.
    """
    from PIL import Image

    def picture_tokens(width: int, height: int) -> int:
        return int(processor._get_num_multimodal_tokens(image_sizes=[(height, width)]).num_image_tokens[0])

    @functools.lru_cache(maxsize=4096)
    def tried(width: int, height: int) -> int:
        return len(processor.process_images(images=[Image.new("RGB", (width, height))])["input_ids"][0])

    try:
        around = {tried(*blank) - picture_tokens(*blank) for blank in _BLANKS}
    except EmbedctlError:
        raise
    except Exception as exc:
        raise ModelError(f"{folder}: its processor cannot be tried on a blank page: {exc}") from exc
    if len(around) > 1:
        return tried
    (same,) = around
    return lambda width, height: same + picture_tokens(width, height)


def open_queries(folder: Path, *, max_length: int, prompt: str) -> ReferenceTokenizer:
    """Queries of page models, with the words that their processor puts around them."""
    processor = load_processor(folder)

    def encode(text: str) -> tuple[Any, bool]:
        found = processor.process_queries(text=[text])
        return {k: found[k][0].tolist() for k in ("input_ids", "token_type_ids") if k in found}, False

    return ReferenceTokenizer(encode, max_length=max_length, prompt=prompt)


def open_filled(folder: Path, *, max_length: int, prompt: str) -> ReferenceTokenizer:
    """Texts filled up to `max_length`, as SigLIP was trained."""
    from transformers import AutoTokenizer

    tokenizer: Any = _loaded(AutoTokenizer, folder)

    def encode(text: str) -> tuple[Any, bool]:
        full = len(tokenizer(text, verbose=False)["input_ids"])
        found = tokenizer(text, padding="max_length", truncation=True, max_length=max_length)
        return {"input_ids": found["input_ids"]}, full > max_length

    return ReferenceTokenizer(encode, max_length=max_length, prompt=prompt)


def load_processor(folder: Path) -> Any:
    """What transformers prepares this model's inputs with. :raises ModelError: it cannot be loaded."""
    from transformers import AutoProcessor

    return _loaded(AutoProcessor, folder)


def _loaded(auto: Any, folder: Path) -> Any:
    try:
        with _quiet():
            return auto.from_pretrained(str(folder), local_files_only=True)
    except EmbedctlError:  # a signal came
        raise
    except Exception as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ModelError(
            f"{folder}: transformers cannot load its {auto.__name__.removeprefix('Auto').lower()}: {lines[0][:300]}",
            hint="is the folder complete? it needs preprocessor_config.json or processor_config.json, and a tokenizer",
        ) from exc


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No advice on stderr."""
    from logging import CRITICAL

    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
