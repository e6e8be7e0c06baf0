"""A tokenizer without a model, for tests and for runs that try everything but the numbers.

Words split at white space enter; their id is `2 + crc32(word) % 30000`, between a start (0) and an end (1) token.
Deterministic on every machine. Refuses text that is not valid Unicode, as the real ones do.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Sequence

import numpy as np

from embedctl.records import Tokenized

START_ID, END_ID = 0, 1
NUM_WORD_IDS = 30000
_WORD = re.compile(r"\S+")


class FakeTokenizer:
    """Implements `tokens.base.Tokenizer` and what the chunker takes."""

    def __init__(self, max_length: int = 256, prompt: str = "") -> None:
        self.max_length = max_length
        self.prompt = prompt
        self.num_prompt_tokens = 1 + len(prompt.split()) if prompt else 0
        self.overhead_tokens = 2 + len(prompt.split())

    @staticmethod
    def id_of(word: str) -> int:
        """The token id of one word. :raises ValueError: the word holds a lone surrogate."""
        return 2 + zlib.crc32(word.encode()) % NUM_WORD_IDS

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`."""
        ids, lengths = array("i"), np.zeros(len(texts), dtype=np.int64)
        truncated = np.zeros(len(texts), dtype=bool)
        room = self.max_length - 2
        for i, text in enumerate(texts):
            words = (self.prompt + text).split()
            truncated[i] = len(words) > room
            words = words[:room]
            ids.extend((START_ID, *map(self.id_of, words), END_ID))
            lengths[i] = len(words) + 2
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return Tokenized(ids_T=np.array(ids, dtype=np.int32), offsets=offsets, truncated=truncated)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Words of each text."""
        return [len(text.split()) for text in texts]

    def count_after_prompt(self, texts: Sequence[str]) -> list[int]:
        """The same, read behind the prompt."""
        return [n - len(self.prompt.split()) for n in self.count([self.prompt + text for text in texts])]

    def offsets(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int64 (t, 2) for each text: the character span of each word."""
        return [np.array([m.span() for m in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2) for text in texts]
