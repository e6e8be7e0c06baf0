"""Texts as the numbers of their characters, for models that read words and not tokens.

Enters: texts. Leaves: code points as token ids, nothing added, nothing cut, so that the text comes back exactly.
Refuses text that is not valid Unicode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedctl.records import Tokenized


class CodePoints:
    """Implements `tokens.base.Tokenizer`."""

    num_prompt_tokens = overhead_tokens = 0

    def __init__(self, max_length: int, prompt: str = "") -> None:
        self.max_length, self._prompt = max_length, prompt

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """See `Tokenizer.__call__`."""
        encoded = [(self._prompt + text).encode("utf-32-le") for text in texts]
        full = np.array([len(e) // 4 for e in encoded], dtype=np.int64)
        cut = [e[: 4 * self.max_length] for e in encoded]
        offsets = np.concatenate(([0], np.cumsum(np.minimum(full, self.max_length)))).astype(np.int64)
        ids_T = np.frombuffer(b"".join(cut), dtype="<i4").astype(np.int32)
        return Tokenized(ids_T=ids_T, offsets=offsets, truncated=full > self.max_length)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Characters of each text."""
        return [len(text) for text in texts]

    count_after_prompt = count

    def offsets(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int64 (t, 2) for each text: every character stands for itself."""
        return [np.stack([np.arange(len(t)), np.arange(1, len(t) + 1)], axis=1).astype(np.int64) for t in texts]
