"""The ledger: immutable, checksummed segments, one writer's commits each; read as a set.

A segment is a text object: one record a line, `crc32 JSON`. A torn or damaged tail is dropped (its windows are found
again in the sink, or done again). Every `FOLD` commits a writer folds its small segments into one; `compact` folds all.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from embedctl import failpoints
from embedctl.codec import Json, record_from_json, record_to_json
from embedctl.records import WindowKey, WindowRecord
from embedctl.storage import STATE, Storage

FOLDER = f"{STATE}/ledger"
FOLD = 64
LOST = "lost"
"""Kind of the event that a revised window's part is gone, so that its first revision counts again."""
RETIRED = "retired"
"""Kind of the event that windows are no part of the destination any more: all `before` a generation, or `keys`."""


@dataclass(slots=True)
class Contents:
    """What the segments say together. windows: newest revision of each. events: other records, in no order."""

    windows: dict[WindowKey, WindowRecord] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    _revised: dict[WindowKey, dict[int, WindowRecord]] = field(default_factory=dict)
    _lost: dict[WindowKey, int] = field(default_factory=dict)
    _retired: set[WindowKey] = field(default_factory=set)
    _retired_before: int = 0

    def add(self, obj: Json) -> None:
        """Take one record in; the order does not matter, nor how often."""
        if obj.get("kind") == "window":
            record = record_from_json(obj)
            self._revised.setdefault(record.key, {})[record.revision] = record
            self._choose(record.key)
            return
        if obj not in self.events:
            self.events.append(obj)
        if obj.get("kind") == LOST:
            key = WindowKey(generation=obj["key"][0], slice=obj["key"][1], window=obj["key"][2])
            self._lost[key] = max(obj["revision"], self._lost.get(key, 0))
            self._choose(key)
        elif obj.get("kind") == RETIRED:
            self._retired_before = max(self._retired_before, obj.get("before", 0))
            self._retired |= {WindowKey(generation=g, slice=s, window=w) for g, s, w in obj.get("keys", ())}
            for key in list(self.windows):
                self._choose(key)

    def is_retired(self, key: WindowKey) -> bool:
        """Whether an event took the window out of the destination for good."""
        return key in self._retired or key.generation < self._retired_before

    def drop(self, key: WindowKey) -> None:
        """Forget a window, until its record is added again."""
        self._revised.pop(key, None)
        self.windows.pop(key, None)

    def next_revision(self, key: WindowKey) -> int:
        """A revision that no record of this window, kept or lost, has had."""
        return 1 + max([self._lost.get(key, 0), *self._revised.get(key, {})])

    def _choose(self, key: WindowKey) -> None:
        standing = [r for n, r in self._revised.get(key, {}).items() if n == 0 or n > self._lost.get(key, 0)]
        if standing and not self.is_retired(key):
            self.windows[key] = max(standing, key=lambda r: r.revision)
        else:
            self.windows.pop(key, None)

    def of_generation(self, generation: int) -> list[WindowRecord]:
        return sorted((r for k, r in self.windows.items() if k.generation == generation), key=lambda r: r.key)


class Ledger:
    """Open on a destination's storage. `contents` is what was there, plus what this writer adds."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._small: list[tuple[str, bytes]] = []
        self._next = 0
        self.contents, self._found = _read_all(storage)
        self._read = set(self._found)

    def append(self, *objects: Json | WindowRecord) -> None:
        """Make the records durable, together. :raises SinkError: they are not in the ledger."""
        jsons = [record_to_json(o) if isinstance(o, WindowRecord) else o for o in objects]
        content = _encode(jsons)
        failpoints.hit("before-ledger")
        name = self._publish(content)
        failpoints.hit("after-ledger")
        self._small.append((name, content))
        for obj in jsons:
            self.contents.add(obj)
        if len(self._small) >= FOLD:
            self._fold()

    def refresh(self) -> None:
        """Take in what other writers have committed since. For a ledger that only reads."""
        while True:
            new = [e.name for e in self._storage.list(FOLDER) if e.name.endswith(".seg") and e.name not in self._read]
            found = [(name, self._storage.read(name)) for name in new]
            for name, content in found:
                if content is not None:
                    self._read.add(name)
                    for obj in _decode(content):
                        self.contents.add(obj)
            if all(content is not None for _, content in found):
                return  # else a writer has just folded what was listed into another segment

    def forget(self, records: Iterable[WindowRecord]) -> None:
        """What the destination has lost is no longer committed."""
        revised = [r for r in records if r.revision]
        if revised:
            keys = [(r.key, r.revision) for r in revised]
            self.append(*({"kind": LOST, "key": [k.generation, k.slice, k.window], "revision": n} for k, n in keys))
        for record in records:
            self.contents.drop(record.key)

    def compact(self) -> None:
        """Fold every segment found at opening, and this writer's own, into one. The caller holds the destination."""
        names = [*self._found, *(name for name, _ in self._small)]
        if len(names) <= 1:
            return
        windows = [record_to_json(self.contents.windows[k]) for k in sorted(self.contents.windows)]
        content = _encode([*windows, *_still_needed(self.contents.events)])
        name = f"{FOLDER}/all-{hashlib.blake2b(content, digest_size=12).hexdigest()}.seg"
        self._storage.put_if_absent(name, content)
        for old in names:
            if old != name:
                self._storage.delete(old)
        self._found, self._small = [name], []

    def _fold(self) -> None:
        name = self._publish(b"".join(content for _, content in self._small))
        for old, _ in self._small:
            self._storage.delete(old)
        self._found.append(name)
        self._small = []

    def _publish(self, content: bytes) -> str:
        while True:
            name = f"{FOLDER}/{self._storage.owner}-{self._next:08d}.seg"
            self._next += 1
            if self._storage.put_if_absent(name, content):
                return name


def _still_needed(events: list[Json]) -> list[Json]:
    """All but the books that two later generations have taken over: they name every file, night after night."""
    newest = sorted((e["generation"] for e in events if e["kind"] == "base"), reverse=True)[:2]
    return [e for e in events if e["kind"] != "base" or e["generation"] in newest]


def _encode(objects: Iterable[Json]) -> bytes:
    lines = (json.dumps(obj, separators=(",", ":"), sort_keys=True).encode() for obj in objects)
    return b"".join(b"%08x %b\n" % (zlib.crc32(line), line) for line in lines)


def _decode(content: bytes) -> Iterator[Json]:
    for line in content.splitlines(keepends=True):
        checksum, _, body = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
            return
        obj: Any = json.loads(body)
        yield obj


def _read_all(storage: Storage) -> tuple[Contents, list[str]]:
    """Read until no segment vanished under us: another writer may fold while we read."""
    while True:
        contents = Contents()
        names = [e.name for e in storage.list(FOLDER) if e.name.endswith(".seg")]
        found = [(name, storage.read(name)) for name in names]
        if all(content is not None for _, content in found):
            for _, content in found:
                for obj in _decode(content or b""):
                    contents.add(obj)
            return contents, names
