"""Word-matching models that the fastembed library computes: BM25, BM42, miniCOIL.

Enters: `bm25`, `bm42`, `minicoil`, fastembed's own names, each with options: `bm25:language=german,avg_len=auto`.
Leaves: a `ModelFolder`. Refused: an option that does not exist, files that are not on this machine where no hub may be
asked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models.folder import ModelFolder

NAMES = {"bm25": "Qdrant/bm25", "bm42": "Qdrant/bm42-all-minilm-l6-v2-attentions", "minicoil": "Qdrant/minicoil-v1"}
VOCABULARY = 1 << 32
"""Words are hashed to indices of 32 bits."""
AUTO = "auto"
INSTALL = "pip install 'embedctl[fastembed]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical:
    """What the library is told. avg_len: words of an average document, `auto` counts them in the corpus first; k, b: of
    BM25's formula; alpha: BM42's; path: a folder with the model's files."""

    name: str
    language: str | None = None
    avg_len: str | None = None
    k: str | None = None
    b: str | None = None
    alpha: str | None = None
    path: str | None = None

    @property
    def settings(self) -> dict[str, str | float]:
        """As the library takes them."""
        numbers = {n: float(v) for n in ("avg_len", "k", "b", "alpha") if (v := getattr(self, n)) not in (None, AUTO)}
        return {**({"language": self.language} if self.language else {}), **numbers}


_ALLOWED = {"bm25": ("language", "avg_len", "k", "b", "path"), "bm42": ("alpha", "path"),
            "minicoil": ("avg_len", "k", "b", "path")}  # fmt: skip


def parse(text: str) -> Lexical | None:
    """None for what names no such model. :raises ModelError: an option it does not have, or a value that is none."""
    head, _, options = text.partition(":")
    short = next((s for s, full in NAMES.items() if head.lower() in (s, full.lower())), None)
    if short is None:
        return None
    given: dict[str, str] = {}
    for item in filter(None, options.split(",")):
        key, _, value = item.partition("=")
        if key not in _ALLOWED[short] or not value:
            raise ModelError(
                f"--model: {item!r} is not an option of {short}; it has: {', '.join(_ALLOWED[short])}",
                hint=f"{short}:{_ALLOWED[short][0]}=...",
            )
        given[key] = value
    found = Lexical(name=NAMES[short], **given)
    try:
        if any(value <= 0 for key, value in found.settings.items() if isinstance(value, float) and key != "b"):
            raise ValueError
    except ValueError:
        raise ModelError(f"--model: {options!r}: numbers above 0 are wanted", hint="bm25:avg_len=120") from None
    return found


def find(text: str, *, offline: bool) -> ModelFolder | None:
    """The model of that name, its files on this machine; None where it is none of these.

    :raises ModelError: the library or the files are not to be had.
    """
    found = parse(text)
    if found is None:
        return None
    root = _files(found, offline=offline)
    weights = tuple(sorted(p for p in root.rglob("*") if p.is_file() and ".cache" not in p.parts))
    return ModelFolder(
        name=text, kind="lexical", root=root, architecture=found.name, model_type=text.partition(":")[0].lower(),
        gives=("sparse",), similarity="dot", weights=weights, modifier="idf", settings=settings_hash(text),
    )  # fmt: skip


def with_avg_len(text: str, avg_len: float) -> str:
    """The same model with the counted average in the place of `auto`."""
    return text.replace(f"avg_len={AUTO}", f"avg_len={avg_len!r}")


def settings_hash(text: str) -> str:
    """Of everything in the name that changes numbers."""
    found = parse(text)
    assert found is not None
    told = {f.name: getattr(found, f.name) for f in fields(found) if f.name != "path"}
    return hashlib.sha256(repr(sorted(told.items(), key=lambda item: item[0])).encode()).hexdigest()


def _files(found: Lexical, *, offline: bool) -> Path:
    """The folder of the model's files."""
    if found.path is not None:
        folder = Path(found.path).expanduser().resolve()
        if not folder.is_dir():
            raise ModelError(f"--model: path={found.path}: no such folder")
        return folder
    return Path(open_library(found, offline=offline, lazy_load=True).model._model_dir)


def open_library(found: Lexical, *, offline: bool, **options: Any) -> Any:
    """fastembed's own object. :raises ModelError: the library or the files are not to be had."""
    try:
        from fastembed import SparseTextEmbedding
    except ImportError as exc:
        raise ModelError(
            f"--model: {found.name} is computed by fastembed, which is not installed", hint=INSTALL
        ) from exc
    from loguru import logger

    logger.disable("fastembed")  # its remarks on stderr; what matters becomes an error below
    given: dict[str, Any] = {**found.settings, **({"specific_model_path": found.path} if found.path else {}), **options}
    try:
        return SparseTextEmbedding(found.name, local_files_only=offline, **given)
    except Exception as exc:  # the library has no error tree of its own
        reason = str(exc).strip().splitlines()[0][:200] if str(exc).strip() else type(exc).__name__
        raise ModelError(
            f"--model: {found.name} cannot be opened: {reason}",
            hint=f"give the folder of its files: --model {_short(found.name)}:path=FOLDER",
        ) from exc


def _short(full: str) -> str:
    return next(short for short, name in NAMES.items() if name == full)
