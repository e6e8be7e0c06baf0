"""Where a job writes: the default name, and what may not be written into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedctl.errors import UsageError
from embedctl.sources.files import STDIN
from embedctl.spec import JobSpec
from embedctl.storage import STATE, LocalStorage


def open_destination(spec: JobSpec) -> LocalStorage:
    """:raises UsageError: the destination exists and is something else than a job's folder."""
    path = Path(spec.to or default_destination(spec.inputs))
    if path.exists() and not path.is_dir():
        raise UsageError(f"--to: {path} is a file, not a folder", hint="choose another destination with --to")
    if path.is_dir() and not (path / STATE).is_dir() and any(path.iterdir()):
        raise UsageError(
            f"--to: {path} is not empty and was not made by embedctl", hint="choose a new folder with --to"
        )
    return LocalStorage(path)


def default_destination(inputs: Sequence[str]) -> str:
    """`<stem>.embeddings` of the first input, in the current folder."""
    first = inputs[0] if inputs else "corpus"
    if first == STDIN:
        return "stdin.embeddings"
    path = Path(first.rstrip("/"))
    while any(c in path.name for c in "*?["):
        path = path.parent
    name = path.resolve().name or "corpus"
    return f"{name if path.is_dir() else name.split('.')[0] or name}.embeddings"
