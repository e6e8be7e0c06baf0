"""Reading the small files of a model folder, and proving that the large ones are whole.

Enters: paths. Leaves: JSON objects; the list of weight files. Refuses, in one line naming the file: what is missing,
is not JSON, is cut short, or would need pickle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError

_SAFE = "model.safetensors"
_MAX_HEADER_BYTES = 100 << 20


def read_object(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object. :raises ModelError: missing, unreadable or not an object."""
    value = read_json(path, missing_ok=missing_ok)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_json(path: Path, *, missing_ok: bool = False) -> Any:
    """Any JSON value, None where missing and allowed to be. :raises ModelError: as `read_object`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        if missing_ok:
            return None
        raise ModelError(f"{path}: missing; this is not a complete model folder") from exc
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ModelError(f"{path}: not valid JSON: {exc}") from exc


def find_weights(folder: Path, *, allow_pickle: bool) -> tuple[Path, ...]:
    """The weight files of one folder, whole. :raises ModelError: none, pickled without leave, or broken."""
    single, index = folder / _SAFE, folder / f"{_SAFE}.index.json"
    if single.is_file():
        files: tuple[Path, ...] = (single,)
    elif index.is_file():
        files = _sharded(index)
    else:
        return _pickled(folder, allow_pickle)
    for file in files:
        check_safetensors(file)
    return files


def _sharded(index: Path) -> tuple[Path, ...]:
    """The index and every shard it names."""
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index}: has no weight_map")
    shards = sorted({index.parent / str(name) for name in names.values()})
    for shard in shards:
        if not shard.is_file():
            raise ModelError(f"{shard}: missing; {index.name} names it", hint="download the model again")
    return tuple(shards)


def _pickled(folder: Path, allow_pickle: bool) -> tuple[Path, ...]:
    found = sorted(p for p in folder.glob("pytorch_model*.bin") if p.is_file())
    if not found:
        raise ModelError(f"{folder}: no weights ({_SAFE} is missing)", hint="download the model again")
    if not allow_pickle:
        raise ModelError(
            f"{folder}: its only weights are {found[0].name}, a pickle, which can run code when opened",
            hint="convert them to safetensors, or add --allow-pickle if you trust their author",
        )
    return tuple(found)


def check_safetensors(path: Path) -> None:
    """Header readable and file as long as the header says: catches cut downloads and Git LFS pointers.

    :raises ModelError: it is not whole.
    """
    try:
        ends = [entry["data_offsets"][1] for entry in safetensors_header(path).values()]
        whole = path.stat().st_size == _data_start(path) + max(ends, default=0)
    except (KeyError, IndexError, TypeError) as exc:
        raise ModelError(f"{path}: cut short, or not safetensors", hint="download the model again") from exc
    if not whole:
        raise ModelError(f"{path}: cut short, or not safetensors", hint="download the model again")


def safetensors_header(path: Path) -> dict[str, Any]:
    """Tensor name -> {dtype, shape, data_offsets}. :raises ModelError: not safetensors."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("impossible header length")
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("header is not an object")
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path}: cut short, or not safetensors", hint="download the model again") from exc
    return {k: v for k, v in header.items() if k != "__metadata__"}


def _data_start(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
