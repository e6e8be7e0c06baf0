"""Where a huge text may be cut before it is tokenized, without changing a token before the cut.

A tokenizer's parts enter; `PreCut.place(text, limit)` gives a cut, or None where none can be proven.

The argument. Let the cut p stand between a visible character text[p - 1] and a space text[p]. For the parts listed
below, tokens(text[:p]) is a prefix of tokens(text):
  added tokens   none holds white space after a visible character, so no match crosses p; a match after p can eat only
                 white space to its left (lstrip), which ends at p;
  normalizers    map each character, or each grapheme or composition around one base character, for itself. A space
                 starts a new one, whatever follows it, and text[p - 1] is seen to normalise to something that ends
                 visibly. (Characters that join with what follows, like U+0600, are not taken for text[p - 1].)
  pre-tokenizers split at p, and no pattern's match that begins before p can take in or look past a space at p;
  model          works on each pre-token alone. BPE without a pre-tokenizer (Llama, Gemma) is taken only when no token
                 joins a visible character to a following space mark: then no merge crosses p either.
So a prefix that already gives more tokens than are kept is enough, and only then is the cut used. BERT normalizers
put spaces around each CJK character, so there p may also stand between two of those. All else is refused: None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SCAN_CHARS = 4096
SPACE_MARK = "\u2581"

_LOCAL_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend",
                      "Strip", "StripAccents"}  # fmt: skip
_LOCAL_REPLACE = {" {2,}"}
_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_LOCAL_PRE_TOKENIZERS = {"Digits", "Punctuation"}
_SAFE_ALTERNATIVES = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"(?i:'s|'d|'m|'t|'ll|'ve|'re)",
    r"(?i:[sdmt]|ll|ve|re)",
    *(f"'{tail}" for tail in ("s", "t", "re", "ve", "m", "ll", "d", "(?:[sdmt]|ll|ve|re)")),
    r" ?\p{L}+",
    r" ?\p{N}+",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r"\s+(?!\S)",
    r"\s+",
}


def _is_cjk(char: str) -> bool:
    return "\u4e00" <= char <= "\u9fff" or "\u3400" <= char <= "\u4dbf"


class PreCut:
    """The proof for one tokenizer. `spaces`: cuts before a space are proven; `cjk`: cuts between CJK characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        normalizers = _flat(_state(tokenizer.normalizer), "normalizers")
        pre_tokenizers = _flat(_state(tokenizer.pre_tokenizer), "pretokenizers")
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        parts = normalizers + pre_tokenizers
        local = all(map(_is_local_normalizer, normalizers))
        splits = [_splits_at_space(part) for part in pre_tokenizers]
        self.spaces = (
            local
            and not any(re.search(rf"[^\s{SPACE_MARK}][\s{SPACE_MARK}]", content) for content in added)
            and None not in splits
            and (any(splits) or (any(map(_marks_spaces, parts)) and _never_merges_over_space(tokenizer)))
        )
        self.cjk = (
            self.spaces
            and any(part["type"] == "BertNormalizer" and part.get("handle_chinese_chars") for part in normalizers)
            and any(part["type"] in _SPLITTERS for part in pre_tokenizers)
            and not any(_is_cjk(char) for content in added for char in content)
        )
        self._normalize: Callable[[str], str] = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str

    def place(self, text: str, limit: int) -> int | None:
        """The last proven cut p <= `limit`, within SCAN_CHARS of it; None: none is there."""
        if not self.spaces:
            return None
        for p in range(min(limit, len(text) - 1), max(limit - SCAN_CHARS, 0), -1):
            if text[p] == " ":
                if self._ends_visibly(text[p - 1]):
                    return p
            elif self.cjk and _is_cjk(text[p]) and _is_cjk(text[p - 1]):
                return p
        return None

    def _ends_visibly(self, char: str) -> bool:
        if not (char.isalnum() or "!" <= char <= "~") or char >= "\U00011000" or char == "\u0d4e":
            return False
        normal = self._normalize(char)
        return bool(normal) and not normal[-1].isspace() and normal[-1] != SPACE_MARK


def _state(part: Any) -> dict[str, Any] | None:
    return None if part is None else json.loads(part.__getstate__())


def _flat(state: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    return [leaf for part in state[key] for leaf in _flat(part, key)] if state["type"] == "Sequence" else [state]


def _is_local_normalizer(part: dict[str, Any]) -> bool:
    if part["type"] == "Replace":
        pattern = part["pattern"]
        return len(pattern.get("String", "")) == 1 or pattern.get("Regex") in _LOCAL_REPLACE
    return part["type"] in _LOCAL_NORMALIZERS


def _marks_spaces(part: dict[str, Any]) -> bool:
    """Every space becomes a space mark, and the text stays whole."""
    if part["type"] == "Metaspace":
        return str(part["replacement"]) == SPACE_MARK
    return part["type"] == "Replace" and (part["pattern"].get("String"), part["content"]) == (" ", SPACE_MARK)


def _splits_at_space(part: dict[str, Any]) -> bool | None:
    """True: always splits at the cut. False: splits by single characters, harmless. None: not understood."""
    kind = part["type"]
    if kind in _SPLITTERS or (kind == "ByteLevel" and part.get("use_regex", True)):
        return True
    if kind == "Metaspace":
        return bool(part.get("split", True))
    if kind == "Split":
        pattern = part["pattern"]
        if pattern.get("String") in (" ", SPACE_MARK):
            return False
        known = "Regex" in pattern and set(_alternatives(pattern["Regex"])) <= _SAFE_ALTERNATIVES
        return True if known and part["behavior"] == "Isolated" and part["invert"] is False else None
    return False if kind in _LOCAL_PRE_TOKENIZERS or kind == "ByteLevel" else None


def _alternatives(regex: str) -> list[str]:
    """Split a pattern at the bars outside all brackets."""
    out, depth, start = [], 0, 0
    for i, char in enumerate(regex):
        depth += (char in "([{") - (char in ")]}")
        if char == "|" and depth == 0:
            out.append(regex[start:i])
            start = i + 1
    return [*out, regex[start:]]


def _never_merges_over_space(tokenizer: Tokenizer) -> bool:
    model = tokenizer.model
    if type(model).__name__ != "BPE" or model.dropout or getattr(model, "ignore_merges", False):
        return False
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    over = re.compile(rf"[^\s{SPACE_MARK}][\s{SPACE_MARK}]")
    return SPACE_MARK in vocab and not any(map(over.search, vocab))
