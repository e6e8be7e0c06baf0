"""What makes a model's numbers, as one hash.

Enters: a folder and the weight files in use. Leaves: sha256 over their contents and those of tokenizer and settings,
in the order of their names, so neither place nor time counts. Hashes of single files are remembered by path, size and
modification time, since weights are large.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

SETTINGS = (
    "config.json", "modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "router_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.model", "chat_template.*", "artifact.metadata", "*.py", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
"""Files that, with the weights, make a model's numbers."""


def cache_folder() -> Path:
    """Where what can be computed again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "embedctl"


def fingerprint_of(root: Path | None, name: str, weights: Sequence[Path]) -> str:
    """sha256 in hex. Without a root (fakes) it is the name's. :raises OSError: a file cannot be read."""
    if root is None:
        return hashlib.sha256(name.encode()).hexdigest()
    folders = [root, *sorted(p for p in root.rglob("*") if p.is_dir() and not _hidden(p, root))]
    settings = {p for d in folders for p in d.iterdir() if p.is_file() and any(fnmatch(p.name, g) for g in SETTINGS)}
    digest = hashlib.sha256()
    for path in sorted(settings | set(weights), key=lambda p: p.relative_to(root).as_posix()):
        digest.update(f"{path.relative_to(root).as_posix()}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _hidden(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return any(part.startswith((".", "__")) or part in ("onnx", "openvino") for part in parts)


def file_sha256(path: Path) -> str:
    """Of one file's contents, remembered across runs. :raises OSError: it cannot be read."""
    real = path.resolve()
    stat = real.stat()
    key = hashlib.sha256(f"{real}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()
    remembered = cache_folder() / "sha256" / key
    try:
        known = remembered.read_text()
        if len(known) == 64:
            return known
    except OSError:
        pass
    with real.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if stat.st_size > 1 << 20:
        remember(remembered, digest)
    return digest


def remember(path: Path, text: str) -> None:
    """Best effort: a cache that cannot be written costs time, nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError:
        pass
