"""The embedded Qdrant engine: `qdrant-edge:///folder` or `qdrant-edge://./folder`, a collection without a server.

Enters: the URI. Leaves: a `QdrantSink`. The folder appears whole, its tag beside the engine's own files. Refused: a
folder that holds something else, and a second opener: the engine lets in one process at a time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from embedctl.errors import Locked, SinkError, UsageError
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_engine import Ask, Found, Layout, Making, Points, Record
from embedctl.sinks.qdrant_manifest import TAG
from embedctl.sinks.qdrant_where import Filter
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage, sink_error

if TYPE_CHECKING:
    import qdrant_edge as edge

_TOLD, _CONFIG = "embedctl.json", "edge_config.json"
_T = TypeVar("_T")
ROOM_BYTES = 96 << 20
"""Room that must be left on the disk: the engine maps files of 32 MiB before it fills them, and a full disk then ends
the whole process with a bus error."""


def open_edge(target: str, storage: LocalStorage, spec: JobSpec) -> QdrantSink:
    """:raises UsageError: no folder in the URI, several workers, or the engine is not installed."""
    folder = target.partition("://")[2]
    if not folder.strip("/."):
        raise UsageError(f"--to: {target} names no folder", hint="--to qdrant-edge://./vectors.qdrant")
    if spec.workers is not None and spec.workers > 1:
        raise UsageError("--workers: the embedded engine lets in one process at a time", hint="--workers 1")
    try:
        import qdrant_edge  # noqa: F401
    except ImportError as exc:
        raise UsageError("the embedded Qdrant engine is not installed", hint="pip install 'embedctl[qdrant]'") from exc
    return QdrantSink(EdgeEngine(Path(folder)), storage, spec)


class EdgeEngine:
    """One shard. Opened at the first question, closed by `close`."""

    max_points, max_bytes = 1024, 16 << 20

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._shard: edge.EdgeShard | None = None

    def layout(self) -> Layout | None:
        from embedctl.sinks.qdrant_edge_words import layout_from

        if not (self._folder / _CONFIG).exists():
            if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
                raise UsageError(
                    f"--to: {self._folder} is there and holds no Qdrant shard", hint="choose a new folder with --to"
                )
            return None
        return layout_from(self._json(_CONFIG))

    def metadata(self) -> Mapping[str, Any]:
        told = self._json(_TOLD) if (self._folder / _TOLD).exists() else {}
        return {TAG: told.pop("job"), **told} if "job" in told else told  # as it was written up to version 0.1

    def annotate(self, metadata: Mapping[str, str]) -> None:
        _put(self._folder, {**self.metadata(), **metadata})

    def make(self, making: Making) -> None:
        import qdrant_edge as edge

        from embedctl.sinks.qdrant_edge_words import config_of

        if making.shards is not None:
            raise UsageError("--shards: the embedded engine is one shard", hint="leave --shards out")
        parent = self._folder.resolve().parent
        fresh = parent / f".{self._folder.name}.{os.urandom(4).hex()}"
        try:
            fresh.mkdir(parents=True)
            shard = _told(self.name, lambda: edge.EdgeShard.create(str(fresh), config_of(making)))
            _told(self.name, shard.flush)
            shard.close()
            _put(fresh, making.metadata)
            fresh.rename(self._folder.resolve())
            _sync(parent)
        except OSError as exc:
            raise sink_error(self._folder, exc) from exc
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def index(self, fields: Sequence[tuple[str, str]]) -> None:
        import qdrant_edge as edge

        shard = self._opened()
        missing = [(f, kind) for f, kind in fields if f not in shard.info().payload_schema]
        for field, kind in missing:
            schema = getattr(edge.PayloadSchemaType, kind.capitalize())
            _told(self.name, lambda f=field, s=schema: shard.update(edge.UpdateOperation.create_field_index(f, s)))  # type: ignore[misc]
        if missing:
            self.flush()

    def begin(self) -> None:
        """Nothing is indexed before `build`."""

    def upsert(self, batches: Iterator[Points], where: Filter) -> None:
        import qdrant_edge as edge

        from embedctl.sinks.qdrant_edge_words import filter_of, points_of

        shard, condition = self._opened(), filter_of(where)
        for batch in batches:
            _check_room(self._folder)
            points = points_of(batch)
            _told(self.name, lambda p=points: shard.update(edge.UpdateOperation.upsert_points(p, condition=condition)))  # type: ignore[misc]

    def delete(self, where: Filter) -> None:
        import qdrant_edge as edge

        from embedctl.sinks.qdrant_edge_words import filter_of

        gone = filter_of(where)
        assert gone is not None
        _told(self.name, lambda: self._opened().update(edge.UpdateOperation.delete_points_by_filter(gone)))

    def flush(self) -> None:
        _told(self.name, self._opened().flush)

    def count(self, where: Filter | None = None) -> int:
        import qdrant_edge as edge

        from embedctl.sinks.qdrant_edge_words import filter_of

        asked = edge.CountRequest(exact=True, filter=filter_of(where))
        return _told(self.name, lambda: self._opened().count(asked))

    def scroll(self, after: PointId | None, limit: int, *, vectors: bool) -> tuple[list[Record], PointId | None]:
        import qdrant_edge as edge

        asked = edge.ScrollRequest(offset=after, limit=limit, with_payload=True, with_vector=vectors)
        found, following = _told(self.name, lambda: self._opened().scroll(asked))
        return [_record(p, vectors=vectors) for p in found], None if following is None else _id(following)

    def retrieve(self, ids: Sequence[PointId]) -> list[Record]:
        found = _told(self.name, lambda: self._opened().retrieve(list(ids), True, True))
        return [_record(p, vectors=True) for p in found]

    def query(self, asks: Sequence[Ask]) -> list[list[Found]]:
        import qdrant_edge as edge

        from embedctl.sinks.qdrant_edge_words import query_of

        batch = edge.QueryBatchRequest([query_of(ask) for ask in asks])
        answers = _told(self.name, lambda: self._opened().query_batch(batch))
        return [[Found(id=_id(p.id), score=p.score, payload=p.payload or {}) for p in found] for found in answers]

    def build(self) -> None:
        _told(self.name, self._opened().optimize)
        self.flush()

    def close(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            _told(self.name, shard.close)

    def _opened(self) -> edge.EdgeShard:
        import qdrant_edge as edge

        if self._shard is None:
            try:
                self._shard = edge.EdgeShard.load(str(self._folder))
            except Exception as exc:  # the engine raises nothing narrower
                if "WouldBlock" in str(exc):
                    raise Locked(
                        f"{self.name}: another process has it open",
                        hint="close it there; --workers 1 where this run has several workers of its own",
                    ) from exc
                raise SinkError(f"{self.name}: the engine cannot open it: {exc}") from exc
        return self._shard

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder / name).read_bytes()))
        except (OSError, ValueError) as exc:
            raise SinkError(f"{self._folder / name}: not readable ({exc})") from exc


def _id(found: object) -> PointId:
    return found if isinstance(found, int) else str(found)


def _told(name: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except Exception as exc:  # the engine raises nothing narrower
        raise SinkError(f"{name}: the engine refused: {exc}") from exc


def _check_room(folder: Path) -> None:
    """:raises SinkError: the disk is nearly full."""
    free = shutil.disk_usage(folder).free
    if free < ROOM_BYTES:
        raise SinkError(
            f"{folder}: the disk is nearly full: {free >> 20} MiB are free, the engine needs {ROOM_BYTES >> 20}",
            hint="free some space, then run the same command again: it goes on where it stopped",
        )


def _put(folder: Path, metadata: Mapping[str, Any]) -> None:
    """What is told beside the points, durable and whole."""
    staged = folder / f"{_TOLD}.{os.urandom(4).hex()}"
    try:
        with staged.open("x") as file:
            file.write(json.dumps(dict(metadata)))
            file.flush()
            os.fsync(file.fileno())
        staged.rename(folder / _TOLD)
        _sync(folder)
    except OSError as exc:
        raise sink_error(folder / _TOLD, exc) from exc


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _record(point: Any, *, vectors: bool) -> Record:
    from embedctl.sinks.qdrant_edge_words import plain_vectors

    held = plain_vectors(point.vector) if vectors else {}
    return Record(id=_id(point.id), payload=point.payload or {}, vectors=held)
