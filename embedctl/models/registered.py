"""The user's own model names: a name for a folder, kept in one file under `$XDG_DATA_HOME/embedctl/`.

Enters: a name and a folder that opens as a model. Leaves: the folder's path for the name. Refused: a name that is no
plain word, or that already means something else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from embedctl.errors import ModelError, UsageError
from embedctl.models import known

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def data_folder() -> Path:
    """Where models that were unpacked, and the names, are kept."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "embedctl"


def registered() -> dict[str, Path]:
    """Name -> folder, in the order of names. :raises ModelError: the file of names cannot be read."""
    path = _file()
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(f"{path}: cannot be read: {exc}") from exc
    try:
        obj = json.loads(content)
        if obj["format"] > FORMAT:
            raise ModelError(f"{path}: written by a newer embedctl", hint="pip install --upgrade embedctl")
        return {str(name): Path(folder) for name, folder in sorted(obj["models"].items())}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{path}: not a list of models ({exc})", hint=f"mend it, or remove it: rm {path}") from exc


def check_name(name: str) -> None:
    """:raises UsageError: not a plain word, or a name that already stands for a known model."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a model; letters, digits, dots, dashes and underscores can")
    if known.find(name) is not None or name == "fake":
        raise UsageError(f"{name!r} already names a known model", hint="choose another name; embedctl models")


def add(name: str, folder: Path, *, replace: bool = False) -> None:
    """Let `--model NAME` mean this folder.

    :raises UsageError: see `check_name`; the name is taken by another folder.
    """
    check_name(name)
    with _locked():
        models = registered()
        if name in models and models[name] != folder and not replace:
            raise UsageError(f"{name!r} already means {models[name]}", hint="--force gives the name to the new folder")
        _write({**models, name: folder})


def remove(name: str) -> Path:
    """Forget a name; the folder stays. :raises UsageError: there is no such name."""
    with _locked():
        models = registered()
        if name not in models:
            there = ", ".join(models) or "none"
            raise UsageError(f"no model was added as {name!r}; there are: {there}", hint="embedctl models")
        folder = models.pop(name)
        _write(models)
    return folder


def _file() -> Path:
    return data_folder() / "models.json"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One writer at a time."""
    import fcntl

    try:
        data_folder().mkdir(parents=True, exist_ok=True)
        guard = (data_folder() / ".models.lock").open("w")
    except OSError as exc:
        raise ModelError(f"{data_folder()}: cannot be written: {exc.strerror}", hint="set XDG_DATA_HOME") from exc
    with guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _write(models: Mapping[str, Path]) -> None:
    content = json.dumps({"format": FORMAT, "models": {n: str(p) for n, p in sorted(models.items())}}, indent=1)
    try:
        with tempfile.NamedTemporaryFile("w", dir=data_folder(), delete=False, encoding="utf-8") as file:
            file.write(content)
        Path(file.name).replace(_file())
    except OSError as exc:
        raise ModelError(f"{_file()}: cannot be written: {exc.strerror}") from exc
