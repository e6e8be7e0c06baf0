"""The texts of the bench, made on this machine: documentation of installed Python packages, cut four ways.

Leaves: corpora that are the same wherever the same packages are installed, with a hash that tells. Lengths are tokens
of the model's own tokenizer, special tokens included.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = ("skewed", "short", "long", "worst")
PACKAGES = ("numpy", "pyarrow", "fsspec", "transformers", "torch")
SKEWED, SHORT, LONG, WORST = 2000, 2000, 150, 1000
LONG_TOKENS = 512
_SHORT_TOKENS = (8, 32)
_WORST_LONG = 4
_SEED = 7
_MIN_CHARS, _MAX_CHARS = 40, 20_000
_CHARS_PER_TOKEN = 3.4

Count = Callable[[Sequence[str]], Sequence[int]]
"""Texts -> tokens of each, uncut, special tokens included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """file: the texts as one JSON list. tokens and lengths are what a model that cuts at `max_length` really sees."""

    name: str
    file: str
    texts: tuple[str, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\0".join(self.texts).encode("utf-8", "surrogatepass")).hexdigest()


def make(name: str, count: Count, max_length: int, folder: Path, *, scale: float = 1.0) -> Corpus:
    """One of NAMES; `scale` shrinks the number of texts. :raises ValueError: no such corpus."""
    makers = {"skewed": _skewed, "short": _short, "long": _long, "worst": _worst}
    if name not in makers:
        raise ValueError(f"--corpora: {name!r} is not one of {', '.join(NAMES)}")
    return stored(name, makers[name](docstrings(), count, scale), count, max_length, folder)


def stored(name: str, texts: Sequence[str], count: Count, max_length: int, folder: Path) -> Corpus:
    """The texts as a corpus, written where contenders can read them."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{max_length}-{len(texts)}.json"
    file.write_text(json.dumps(list(texts)), encoding="utf-8")
    lengths = tuple(min(n, max_length) for n in count(texts))
    return Corpus(name=name, file=str(file), texts=tuple(texts), lengths=lengths)


def docstrings() -> list[str]:
    """Distinct docstrings of the standard library and of what else is installed of PACKAGES, in a fixed order."""
    paths = sysconfig.get_paths()
    roots = [Path(paths["stdlib"]), *(Path(paths["purelib"]) / package for package in PACKAGES)]
    found: dict[str, None] = {}
    for root in roots:
        for file in sorted(root.rglob("*.py") if root.is_dir() else ()):
            inner = file.relative_to(root).parts
            if "site-packages" not in inner and "test" not in inner and "tests" not in inner:
                found.update(dict.fromkeys(_docstrings_of(file)))
        if len(found) > 4 * SKEWED:
            break
    return list(found)


def _docstrings_of(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = (ast.get_docstring(node) or "").encode("utf-8", "replace").decode()
            if _MIN_CHARS <= len(text) <= _MAX_CHARS:
                yield text


def _some(texts: Sequence[str], number: int, seed: int) -> list[str]:
    return random.Random(seed).sample(texts, min(number, len(texts)))


def _skewed(texts: Sequence[str], count: Count, scale: float) -> list[str]:  # noqa: ARG001
    return _some(texts, round(SKEWED * scale), _SEED)


def _short(texts: Sequence[str], count: Count, scale: float) -> list[str]:
    """Runs of 6 to 24 words, those kept that have 8 to 32 tokens."""
    chance, words = random.Random(_SEED + 1), " ".join(_some(texts, len(texts), _SEED + 1)).split()
    pieces: list[str] = []
    wanted, place = round(SHORT * scale), 0
    while len(pieces) < 2 * wanted and place < len(words):
        size = chance.randint(6, 24)
        pieces.append(" ".join(words[place : place + size]))
        place += size
    least, most = _SHORT_TOKENS
    return [text for text, n in zip(pieces, count(pieces), strict=True) if least <= n <= most][:wanted]


def _long(texts: Sequence[str], count: Count, scale: float) -> list[str]:  # noqa: ARG001
    """Docstrings joined until each text has more than LONG_TOKENS tokens."""
    out, piece = [], ""
    for text in _some(texts, len(texts), _SEED + 2):
        piece = f"{piece}\n\n{text}" if piece else text
        if len(piece) > LONG_TOKENS * _CHARS_PER_TOKEN * 2:
            out.append(piece)
            piece = ""
        if len(out) == round(LONG * scale):
            break
    return out


def _worst(texts: Sequence[str], count: Count, scale: float) -> list[str]:
    """Short texts with a few of the longest strewn in: whoever pads a batch in the order given pays for all."""
    short = _short(texts, count, scale * WORST / SHORT)
    long = _long(texts, count, 1.0)[: max(1, round(_WORST_LONG * scale))]
    step = max(1, len(short) // len(long))
    for number, text in enumerate(long):
        short.insert(number * (step + 1), text)
    return short
