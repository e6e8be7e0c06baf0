"""Dead letters: one object a window, mode 0600, durable before the window's record; one file for people at the end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence

from embedctl.codec import Json, dead_to_json
from embedctl.records import DeadRow, SourceFile, WindowKey
from embedctl.storage import STATE, Storage, etag_of

FOLDER = f"{STATE}/dead"
MERGED = f"{STATE}/dead_letters.jsonl"


def put(
    storage: Storage, key: WindowKey, rows: Sequence[DeadRow], files: Sequence[SourceFile], revision: int = 0
) -> None:
    """Write a window's letters; none leaves no object. Those of an attempt that was never committed are replaced."""
    if rows:
        lines = [json.dumps(dead_to_json(row, files[row.file].uri), ensure_ascii=False) for row in rows]
        content = "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")
        name = _name(key, revision)
        if not storage.put_if_absent(name, content, mode=0o600) and (earlier := storage.read(name)) != content:
            storage.replace_if_match(name, content, etag_of(earlier), mode=0o600)


def letters(storage: Storage, keys: Iterable[tuple[WindowKey, int]]) -> Iterator[tuple[WindowKey, Json]]:
    """The letters of these (window, revision), in order, one JSON object each. A torn one is as good as lost."""
    for key, revision in keys:
        for line in (storage.read(_name(key, revision)) or b"").splitlines():
            with contextlib.suppress(ValueError):
                yield key, json.loads(line)


def merge(storage: Storage, keys: Iterable[tuple[WindowKey, int]]) -> int:
    """Rewrite the one file people read; returns the number of letters."""
    lines = [json.dumps(letter, ensure_ascii=False) + "\n" for _, letter in letters(storage, keys)]
    content = "".join(lines).encode("utf-8", "backslashreplace")
    current = storage.read(MERGED)
    if content != (current or b""):
        storage.replace_if_match(MERGED, content, etag_of(current), mode=0o600)
    return len(lines)


def _name(key: WindowKey, revision: int) -> str:
    return f"{FOLDER}/{key.stem}{'-d' if revision else ''}.jsonl"
