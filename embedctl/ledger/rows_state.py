"""Every live row's content hashes, on disk, so that a sync finds what changed without reading the destination.

Enters: windows' ids and hashes as 64-bit numbers. Leaves: a file of Arrow batches sorted by id hash, memory-mapped; one
batch is a bucket of the hash's range, and building one at a time bounds the memory at any size. All of it follows
from the live windows: losing it costs a reading of them. Refuses nothing: a file that does not fit is not there.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.records import WindowRecord
from embedctl.storage import STATE, LocalStorage, sink_error

FOLDER = f"{STATE}/rows"
BUCKET_ROWS = 2_000_000
NO_FILE = -1
_ENTRY = np.dtype(
    [
        ("high", "<u8"), ("low", "<u8"), ("text", "<u8"), ("kept", "<u8"),
        ("place", "<u4"), ("row", "<u4"), ("file", "<i4"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsState:
    """n live rows in buckets of ascending id hash.

    windows: [generation, slice, window, revision] of each place. uris: the files that `file` numbers. starts: int64,
    the number of the first row of each bucket. repeated: [place, row] of rows whose id stands in an earlier row.
    """

    name: str | None
    windows: Sequence[Sequence[int]]
    uris: Sequence[str]
    buckets: Sequence[Mapping[str, np.ndarray]]
    starts: np.ndarray
    repeated: Sequence[Sequence[int]] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def knows_contents(self) -> bool:
        """Whether any row has content hashes; without, every row counts as changed."""
        return any(bool(bucket["text"].any()) for bucket in self.buckets)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """int64 (m,): number of the row of each id hash (uint64 (m, 2)), -1 where there is none."""
        found = np.full(len(ids), -1, dtype=np.int64)
        order = np.argsort(ids[:, 0], kind="stable")
        edges = [bucket["high"][0] for bucket in self.buckets[1:]]
        cuts = [0, *np.searchsorted(ids[order, 0], np.array(edges, np.uint64), side="left").tolist(), len(order)]
        for number, bucket in enumerate(self.buckets):
            mine = order[cuts[number] : cuts[number + 1]]
            if len(mine):
                here = _find(bucket["high"], bucket["low"], ids[mine])
                found[mine] = np.where(here < 0, -1, here + self.starts[number])
        return found

    def take(self, column: str, rows: np.ndarray) -> np.ndarray:
        """Values of a column for these row numbers."""
        if len(self.buckets) == 1:
            values: np.ndarray = self.buckets[0][column][rows]
            return values
        out = np.empty(len(rows), dtype=_ENTRY[column])
        bucket_of = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(bucket_of).tolist():
            mine = bucket_of == number
            out[mine] = self.buckets[number][column][rows[mine] - self.starts[number]]
        return out

    def entries(self, begin: int, end: int) -> np.ndarray:
        """Rows [begin, end) as records."""
        out = np.empty(end - begin, dtype=_ENTRY)
        for bucket, first in zip(self.buckets, self.starts.tolist(), strict=False):
            low, high = max(begin, first), min(end, first + len(bucket["high"]))
            if low < high:
                for column in _ENTRY.names or ():
                    out[column][low - begin : high - begin] = bucket[column][low - first : high - first]
        return out


def entries_of(ids: np.ndarray, hashes: np.ndarray, place: int, files: np.ndarray) -> np.ndarray:
    """The rows of one window as records. ids, hashes: uint64 (n, 2). files: int32 (n,), or NO_FILE for all."""
    entries = np.empty(len(ids), dtype=_ENTRY)
    entries["high"], entries["low"] = ids[:, 0], ids[:, 1]
    entries["text"], entries["kept"] = hashes[:, 0], hashes[:, 1]
    entries["place"], entries["row"], entries["file"] = place, np.arange(len(ids)), files
    return entries


def build(
    storage: LocalStorage,
    blocks: Iterable[np.ndarray],
    max_rows: int,
    *,
    windows: Sequence[Sequence[int]],
    uris: Sequence[str],
    details: Mapping[str, Any],
    generation: int,
) -> RowsState:
    """Sort the blocks' records and put them beside the ledger; of one id the first stands, by place and row.

    max_rows: no fewer than there are. :raises SinkError: the disk is full.
    """
    path = storage.scratch(f"rows-{generation}.arrow")
    buckets = min(max(1, -(-max_rows // BUCKET_ROWS)), 1024)
    repeated: list[list[int]] = []
    try:
        _write(path, (_first_of_each(entries, repeated) for entries in _sorted_buckets(storage, blocks, buckets)))
    except OSError as exc:
        raise sink_error(path, exc) from exc
    meta = {
        "windows": [list(w) for w in windows],
        "uris": list(uris),
        "repeated": repeated,
        "details": dict(details),
        "crc32": _checksum(path),
    }
    digest = digest_of(windows)
    name = f"{FOLDER}/g{generation:04d}-{digest}.arrow"
    storage.delete(name)
    storage.delete(f"{name}.json")
    storage.put_if_absent(name, path)
    storage.put_if_absent(f"{name}.json", json.dumps(meta).encode())
    state = load(storage, windows)
    assert state is not None
    return state


def _write(path: Path, buckets: Iterable[np.ndarray]) -> None:
    """One Arrow batch a bucket."""
    names = _ENTRY.names or ()
    schema = pa.schema([(n, pa.from_numpy_dtype(_ENTRY[n])) for n in names])
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, schema) as writer:
        for entries in buckets:
            columns = [pa.array(np.ascontiguousarray(entries[n])) for n in names]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def load(storage: LocalStorage, windows: Sequence[Sequence[int]]) -> RowsState | None:
    """The state of exactly these live windows, newest first; None where there is none, or it cannot be read."""
    suffix = f"-{digest_of(windows)}.arrow"
    names = [e.name for e in storage.list(FOLDER) if e.name.endswith(suffix)]
    for name in reversed(names):
        with contextlib.suppress(pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
            meta = json.loads(storage.read(f"{name}.json") or b"")
            whole = meta["crc32"] == _checksum(storage.root / name)
            if whole and meta["windows"] == [list(w) for w in windows]:
                return _opened(storage, name, meta)
    return None


def opened(storage: LocalStorage, name: str) -> RowsState | None:
    """A state by its name; None where it is not there any more."""
    with contextlib.suppress(pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError):
        return _opened(storage, name, json.loads(storage.read(f"{name}.json") or b""))
    return None


def drop_others(storage: LocalStorage, name: str | None) -> None:
    """Delete every state but this one."""
    for entry in storage.list(FOLDER):
        if name is None or entry.name not in (name, f"{name}.json"):
            storage.delete(entry.name)


def windows_of(records: Sequence[WindowRecord]) -> list[list[int]]:
    """What names the live windows, in order."""
    return [[r.key.generation, r.key.slice, r.key.window, r.revision] for r in records]


def digest_of(windows: Sequence[Sequence[int]]) -> str:
    """A short name for a set of live windows."""
    import hashlib

    return hashlib.blake2b(json.dumps([list(w) for w in windows]).encode(), digest_size=8).hexdigest()


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _opened(storage: LocalStorage, name: str, meta: Mapping[str, Any]) -> RowsState:
    reader = pa.ipc.open_file(pa.memory_map(str(storage.root / name)))
    buckets = []
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        if batch.num_rows or reader.num_record_batches == 1:
            buckets.append({n: batch.column(i).to_numpy() for i, n in enumerate(batch.schema.names)})
    return RowsState(
        name=name,
        windows=meta["windows"],
        uris=meta["uris"],
        buckets=buckets,
        starts=np.concatenate([[0], np.cumsum([len(b["high"]) for b in buckets])]).astype(np.int64),
        repeated=meta["repeated"],
        details=meta["details"],
    )


def _find(high: np.ndarray, low: np.ndarray, ids: np.ndarray) -> np.ndarray:
    if not len(high):
        return np.full(len(ids), -1, dtype=np.int64)
    places = np.searchsorted(high, ids[:, 0])
    inside = np.minimum(places, len(high) - 1)
    same = high[inside] == ids[:, 0]
    found = np.where(same & (low[inside] == ids[:, 1]), inside, -1)
    for i in np.flatnonzero(same & (found < 0)).tolist():  # 64 bits agree and 128 do not: a few rows at any size
        at = int(places[i])
        while at < len(high) and high[at] == ids[i, 0]:
            if low[at] == ids[i, 1]:
                found[i] = at
                break
            at += 1
    return found


def _sorted_buckets(storage: LocalStorage, blocks: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
    if count == 1:
        every = [b for b in blocks if len(b)]
        yield _sorted(np.concatenate(every) if every else np.empty(0, dtype=_ENTRY))
        return
    paths = [storage.scratch(f"rows-{number}") for number in range(count)]
    try:
        _spill(blocks, paths)
        for path in paths:
            yield _sorted(np.fromfile(path, dtype=_ENTRY))
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _spill(blocks: Iterable[np.ndarray], paths: Sequence[Path]) -> None:
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for entries in blocks:
            # By the first bits, so that buckets in order are rows in order.
            bucket = ((entries["high"] >> np.uint64(44)) * np.uint64(len(paths))) >> np.uint64(20)
            for number in np.unique(bucket).tolist():
                entries[bucket == number].tofile(files[number])


def _sorted(entries: np.ndarray) -> np.ndarray:
    """By id hash, then place and row. Mostly sorted runs come in, which a stable sort by the first word soon joins."""
    found: np.ndarray = entries[np.argsort(entries["high"], kind="stable")]
    same = found["high"][1:] == found["high"][:-1]
    if same.any():
        tied = np.concatenate([same, [False]]) | np.concatenate([[False], same])
        rows = found[tied]
        found[tied] = rows[np.lexsort((rows["row"], rows["place"], rows["low"], rows["high"]))]
    return found


def _first_of_each(entries: np.ndarray, repeated: list[list[int]]) -> np.ndarray:
    again = np.zeros(len(entries), dtype=bool)
    if len(entries):
        again[1:] = (entries["high"][1:] == entries["high"][:-1]) & (entries["low"][1:] == entries["low"][:-1])
    repeated += [[int(e["place"]), int(e["row"])] for e in entries[again]]
    found: np.ndarray = entries[~again]
    return found
