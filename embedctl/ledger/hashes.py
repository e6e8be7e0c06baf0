"""Content hashes of committed windows' rows, for sinks that do not keep them.

Enters: uint64 pairs, a window at a time. Leaves: one object a window, beside the ledger.
"""

from __future__ import annotations

import numpy as np

from embedctl.records import WindowKey
from embedctl.storage import STATE, Storage, etag_of

FOLDER = f"{STATE}/hashes"


def put(storage: Storage, key: WindowKey, hashes: np.ndarray, revision: int = 0) -> None:
    """uint64 (live rows, 2), durable. What an attempt that was never committed left is replaced."""
    name, content = _name(key, revision), np.ascontiguousarray(hashes).astype("<u8").tobytes()
    if not storage.put_if_absent(name, content) and (earlier := storage.read(name)) != content:
        storage.replace_if_match(name, content, etag_of(earlier))


def read(storage: Storage, key: WindowKey, revision: int = 0) -> np.ndarray | None:
    """uint64 (n, 2); None where there are none."""
    content = storage.read(_name(key, revision))
    if content is None or len(content) % 16:
        return None
    return np.frombuffer(content, dtype="<u8").astype(np.uint64).reshape(-1, 2)


def delete(storage: Storage, key: WindowKey, revision: int) -> None:
    """Absent is fine."""
    storage.delete(_name(key, revision))


def _name(key: WindowKey, revision: int) -> str:
    return f"{FOLDER}/{key.stem}{f'-r{revision}' if revision else ''}.u64"
