"""Tables of token vectors and weights, from safetensors to numpy.

Enters: one file. Leaves: its tensors as stored, but bfloat16, which numpy has not, as float32. Refuses: what cannot be
opened, and other kinds of numbers that numpy has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.errors import ModelError
from embedctl.models.files import safetensors_header


def read_tables(path: Path) -> dict[str, np.ndarray]:
    """Name -> tensor. :raises ModelError: see the module."""
    from safetensors import SafetensorError, safe_open

    header = safetensors_header(path)
    try:
        with safe_open(path, framework="numpy") as opened:
            return {
                name: _widened(path, entry) if entry["dtype"] == "BF16" else opened.get_tensor(name)
                for name, entry in header.items()
            }
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ModelError(f"{path}: cannot be opened: {exc}") from exc


def _widened(path: Path, entry: Mapping[str, Any]) -> np.ndarray:
    """float32: a bfloat16 is the upper half of one."""
    begin, end = entry["data_offsets"]
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    halves = np.fromfile(path, dtype="<u2", count=(end - begin) // 2, offset=start + begin)
    whole: np.ndarray = (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return whole
