"""Duplicate ids across windows, found exactly by an external merge of id hashes; memory is bounded at any size.

Hashes (128 bits) are spread over buckets by their first bits, each small enough to sort in memory. The first
position of an id wins; all others lose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedctl.records import WindowKey

BUCKET_ROWS = 1_000_000
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("ordinal", "<u8")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """Live row `row` of window `key` has the id of row `first_row` of window `first_key`, which stands before it."""

    key: WindowKey
    row: int
    first_key: WindowKey
    first_row: int


def find(
    keys: Sequence[WindowKey],
    counts: Sequence[int],
    ids_of: Callable[[WindowKey], Sequence[str]],
    scratch: Callable[[str], Path],
) -> Iterator[Loser]:
    """Losers, in no order. `counts` are the live rows of each window; `keys` are in order of position.

    `scratch` gives paths for spill files, used only past BUCKET_ROWS rows and removed afterwards.
    """
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(starts[-1])
    if total <= BUCKET_ROWS:
        blocks = [_entries(ids_of(key), int(start)) for key, start in zip(keys, starts, strict=False)]
        if blocks:
            yield from _losers(np.concatenate(blocks), keys, starts)
        return
    paths = [scratch(f"ids-{b}") for b in range(min(256, -(-total // (BUCKET_ROWS // 2))))]
    try:
        _spill(keys, starts, ids_of, paths)
        for path in paths:
            yield from _losers(np.fromfile(path, dtype=_ENTRY), keys, starts)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _spill(
    keys: Sequence[WindowKey], starts: np.ndarray, ids_of: Callable[[WindowKey], Sequence[str]], paths: Sequence[Path]
) -> None:
    files = [path.open("wb") for path in paths]
    try:
        for key, start in zip(keys, starts, strict=False):
            entries = _entries(ids_of(key), int(start))
            bucket = (entries["high"] % np.uint64(len(paths))).astype(np.int64)
            for b in np.unique(bucket).tolist():
                entries[bucket == b].tofile(files[b])
    finally:
        for file in files:
            file.close()


def _entries(ids: Sequence[str], start: int) -> np.ndarray:
    digests = b"".join(hashlib.blake2b(i.encode("utf-8", "surrogatepass"), digest_size=16).digest() for i in ids)
    entries = np.empty(len(ids), dtype=_ENTRY)
    halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    entries["high"], entries["low"] = halves[:, 0], halves[:, 1]
    entries["ordinal"] = np.arange(start, start + len(ids), dtype=np.uint64)
    return entries


def _losers(entries: np.ndarray, keys: Sequence[WindowKey], starts: np.ndarray) -> Iterator[Loser]:
    entries = entries[np.lexsort((entries["ordinal"], entries["low"], entries["high"]))]
    same = (entries["high"][1:] == entries["high"][:-1]) & (entries["low"][1:] == entries["low"][:-1])
    again = np.flatnonzero(same) + 1
    if not len(again):
        return
    group_start = np.maximum.accumulate(np.where(np.concatenate([[False], same]), 0, np.arange(len(entries))))
    for i in again.tolist():
        key, row = _place(int(entries["ordinal"][i]), keys, starts)
        first_key, first_row = _place(int(entries["ordinal"][group_start[i]]), keys, starts)
        yield Loser(key=key, row=row, first_key=first_key, first_row=first_row)


def _place(ordinal: int, keys: Sequence[WindowKey], starts: np.ndarray) -> tuple[WindowKey, int]:
    window = int(np.searchsorted(starts, ordinal, side="right")) - 1
    return keys[window], ordinal - int(starts[window])
