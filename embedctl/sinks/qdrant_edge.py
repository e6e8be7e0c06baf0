"""The embedded Qdrant engine: `qdrant-edge:///folder` or `qdrant-edge://./folder`, a collection without a server.

Enters: the URI. Leaves: a `QdrantSink`. The folder appears whole, its tag beside the engine's own files. Refused: a
folder that holds something else, and a second opener: the engine lets in one process at a time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embedctl.errors import Locked, SinkError, UsageError
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_engine import JOB, POS, Making, Points, Shape
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage, sink_error

if TYPE_CHECKING:
    import qdrant_edge as edge

_TAG, _CONFIG, _DEFAULT = "embedctl.json", "edge_config.json", ""
_T = TypeVar("_T")


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

    def shape(self) -> Shape | None:
        if not (self._folder / _CONFIG).exists():
            if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
                raise UsageError(
                    f"--to: {self._folder} is there and holds no Qdrant shard", hint="choose a new folder with --to"
                )
            return None
        vectors = self._json(_CONFIG).get("vectors")
        if not isinstance(vectors, dict) or list(vectors) != [_DEFAULT] or vectors[_DEFAULT].get("multivector_config"):
            raise UsageError(
                f"{self.name}: its vectors are {json.dumps(vectors)[:200]}, this job needs one unnamed dense vector",
                hint="choose a new folder with --to",
            )
        one = vectors[_DEFAULT]
        return Shape(size=one["size"], distance=one["distance"], datatype=one.get("datatype") or "float32")

    def tag(self) -> str | None:
        if not (self._folder / _TAG).exists():
            return None
        return str(self._json(_TAG)["job"])

    def set_tag(self, job: str) -> None:
        _put(self._folder, job)

    def make(self, making: Making) -> None:
        import qdrant_edge as edge

        parent = self._folder.resolve().parent
        fresh = parent / f".{self._folder.name}.{os.urandom(4).hex()}"
        try:
            fresh.mkdir(parents=True)
            shard = _told(self.name, lambda: edge.EdgeShard.create(str(fresh), _config(making)))
            _told(self.name, shard.flush)
            shard.close()
            _put(fresh, making.job)
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

    def upsert(self, batches: Iterator[Points], gate: int) -> None:
        import qdrant_edge as edge

        shard = self._opened()
        condition = edge.Filter(must=[edge.FieldCondition(POS, range=edge.RangeFloat(gte=float(gate)))])
        for batch in batches:
            rows = zip(batch.ids, batch.vectors, batch.payloads, strict=True)
            points = [edge.Point(id, vector.tolist(), payload) for id, vector, payload in rows]
            _told(self.name, lambda p=points: shard.update(edge.UpdateOperation.upsert_points(p, condition=condition)))  # type: ignore[misc]

    def delete(self, ids: Sequence[PointId], positions: Sequence[int]) -> None:
        import qdrant_edge as edge

        own = edge.FieldCondition(POS, match=edge.MatchAny(list(positions)))
        gone = edge.Filter(must=[edge.HasIdCondition(set(ids)), own])
        _told(self.name, lambda: self._opened().update(edge.UpdateOperation.delete_points_by_filter(gone)))

    def flush(self) -> None:
        _told(self.name, self._opened().flush)

    def count(self, job: str | None) -> int:
        import qdrant_edge as edge

        chosen = None if job is None else edge.Filter(must=[_is_job(job)])
        return _told(self.name, lambda: self._opened().count(edge.CountRequest(exact=True, filter=chosen)))

    def count_others(self, job: str) -> int:
        import qdrant_edge as edge

        others = edge.Filter(must_not=[_is_job(job)])
        return _told(self.name, lambda: self._opened().count(edge.CountRequest(exact=True, filter=others)))

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

    def _json(self, name: str) -> dict[str, object] | dict[str, dict[str, dict[str, object]]]:
        try:
            return json.loads((self._folder / name).read_bytes())  # type: ignore[no-any-return]
        except (OSError, ValueError) as exc:
            raise SinkError(f"{self._folder / name}: not readable ({exc})") from exc


def _config(making: Making) -> edge.EdgeConfig:
    import qdrant_edge as edge

    quantized: dict[str, Callable[[], edge.QuantizationConfigType]] = {
        "scalar": lambda: edge.ScalarQuantizationConfig(edge.ScalarType.Int8, quantile=0.99),
        "binary": edge.BinaryQuantizationConfig,
        "product": lambda: edge.ProductQuantizationConfig(edge.CompressionRatio.X16),
    }
    shape = making.shape
    vectors = edge.EdgeVectorParams(
        size=shape.size,
        distance=getattr(edge.Distance, shape.distance),
        datatype=getattr(edge.VectorStorageDatatype, shape.datatype.capitalize()),
    )
    hnsw = edge.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000, max_indexing_threads=making.threads)
    quantization = quantized[making.quantization]() if making.quantization else None
    return edge.EdgeConfig(vectors=vectors, hnsw_config=hnsw, quantization_config=quantization)


def _is_job(job: str) -> edge.FieldCondition:
    import qdrant_edge as edge

    return edge.FieldCondition(JOB, match=edge.MatchValue(job))


def _told(name: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except Exception as exc:  # the engine raises nothing narrower
        raise SinkError(f"{name}: the engine refused: {exc}") from exc


def _put(folder: Path, job: str) -> None:
    """The tag, durable and whole."""
    staged = folder / f"{_TAG}.{os.urandom(4).hex()}"
    try:
        with staged.open("x") as file:
            file.write(json.dumps({"job": job}))
            file.flush()
            os.fsync(file.fileno())
        staged.rename(folder / _TAG)
        _sync(folder)
    except OSError as exc:
        raise sink_error(folder / _TAG, exc) from exc


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
