"""What turns texts into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from embedctl.records import Tokenized


class Tokenizer(Protocol):
    """Texts to token ids, off the GIL where it is Rust. Safe to call from one thread at a time."""

    max_length: int
    num_prompt_tokens: int
    """Leading tokens that come from the prompt (special tokens before it included); 0 without a prompt."""

    overhead_tokens: int
    """Tokens of `max_length` that special tokens and prompt take."""

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """Prompt prepended, special tokens added, cut to `max_length`.

        :raises ValueError: a text cannot be tokenized; the caller then tries them one by one.
        """
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, uncut, without special tokens and prompt: what chunk sizes are measured in."""
        ...

    def count_after_prompt(self, texts: Sequence[str]) -> list[int]:
        """The same for texts as they stand behind the prompt, which may join with their first letters."""
        ...

    def offsets(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int64 (t, 2) for each text: the character span of each of its content tokens."""
        ...
