"""A Qdrant server: `qdrant://host:6334/name` over gRPC, `qdrant+http://host:6333/name` and `qdrant+https://` over REST.

Enters: the URI (`?tls=true`: gRPC over TLS), the key in QDRANT_API_KEY, which is stored nowhere, and the seconds a
request may take in QDRANT_TIMEOUT_S. Leaves: a `QdrantSink`. Every write waits until it is applied; `acknowledged` and
`wait_timeout` are not success. Refused: a collection that is not there without `--create`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from embedctl.errors import SinkError, UsageError
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_engine import JOB, POS, Making, Points, Shape
from embedctl.sinks.qdrant_trouble import BadRequest, patiently
from embedctl.sinks.qdrant_wire import grpc_points, quantization, rest_points
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

STREAMS = 4
FIRST_PATIENCE_S, PATIENCE_S, BUILD_S = 10.0, 300.0, 6 * 3600.0
POLL_S, CALM_POLLS = 0.25, 4
DEFAULT_THRESHOLD = 10_000
_TAG, _THRESHOLD = "embedctl_job", "embedctl_indexing_threshold"
_T = TypeVar("_T")


def open_server(target: str, storage: LocalStorage, spec: JobSpec) -> QdrantSink:
    """:raises UsageError: not such a URI, or the client is not installed."""
    parts = urlsplit(target)
    collection = parts.path.strip("/")
    if not parts.hostname or not collection or "/" in collection:
        raise UsageError(
            f"--to: {target} is not {parts.scheme}://HOST[:PORT]/COLLECTION", hint="--to qdrant://localhost:6334/docs"
        )
    try:
        import qdrant_client  # noqa: F401
    except ImportError as exc:
        raise UsageError("the Qdrant client is not installed", hint="pip install 'embedctl[qdrant]'") from exc
    if parts.query not in ("", "tls=true"):
        raise UsageError(f"--to: {parts.query!r} is not known; only tls=true is", hint=target.partition("?")[0])
    timeout = os.environ.get("QDRANT_TIMEOUT_S", "60")
    if not timeout.isdecimal() or not int(timeout):
        raise UsageError(f"QDRANT_TIMEOUT_S: {timeout!r} is not a whole number of seconds")
    return QdrantSink(ServerEngine(target, collection, lambda: _client(target, int(timeout))), storage, spec)


def _client(target: str, timeout_s: int) -> QdrantClient:
    from qdrant_client import QdrantClient

    parts = urlsplit(target)
    grpc = parts.scheme == "qdrant"
    return QdrantClient(
        host=parts.hostname,
        port=(None if grpc else parts.port) or 6333,
        grpc_port=(parts.port if grpc else None) or 6334,
        prefer_grpc=grpc,
        https=parts.scheme.endswith("https") or parts.query == "tls=true",
        api_key=os.environ.get("QDRANT_API_KEY"),
        timeout=timeout_s,
        check_compatibility=False,
    )


class ServerEngine:
    """One collection of a server. Connects at the first question."""

    max_points, max_bytes = 256, 8 << 20

    def __init__(self, target: str, collection: str, connect: Callable[[], QdrantClient]) -> None:
        parts = urlsplit(target)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._grpc = parts.scheme == "qdrant"
        self._collection, self._connect = collection, connect
        self._connected: QdrantClient | None = None
        self._put_off = False

    def shape(self) -> Shape | None:
        found = self._try(lambda c: c.collection_exists(self._collection), FIRST_PATIENCE_S)
        if not found:
            return None
        vectors = self._info().config.params.vectors
        if vectors is None or isinstance(vectors, dict) or vectors.multivector_config is not None:
            raise UsageError(
                f"{self.name}: this job needs one unnamed dense vector, the collection has {str(vectors)[:200]}",
                hint="choose another collection with --to; one that does not exist is made with --create",
            )
        datatype = "float32" if vectors.datatype is None else str(vectors.datatype.value)
        return Shape(size=vectors.size, distance=str(vectors.distance.value), datatype=datatype)

    def tag(self) -> str | None:
        tag = (self._info().config.metadata or {}).get(_TAG)
        return None if tag is None else str(tag)

    def set_tag(self, job: str) -> None:
        self._try(lambda c: c.update_collection(self._collection, metadata={_TAG: job}))

    def make(self, making: Making) -> None:
        if not making.create:
            raise UsageError(f"{self.name}: no such collection", hint="make it with --create")
        from qdrant_client import models

        vectors = models.VectorParams(
            size=making.shape.size,
            distance=models.Distance(making.shape.distance),
            on_disk=True,
            datatype=models.Datatype(making.shape.datatype),
        )
        try:
            self._try(
                lambda c: c.create_collection(
                    self._collection,
                    vectors_config=vectors,
                    quantization_config=quantization(making.quantization),
                    metadata={_TAG: making.job},
                )
            )
        except SinkError as exc:
            if "already exists" not in str(exc):  # made by another shard of this run, or by a try whose reply was lost
                raise

    def index(self, fields: Sequence[tuple[str, str]]) -> None:
        from qdrant_client import models

        known = self._info().payload_schema
        for field, kind in fields:
            if field not in known:
                schema = models.PayloadSchemaType(kind)
                self._try(lambda c, f=field, s=schema: c.create_payload_index(self._collection, f, s, wait=True))  # type: ignore[misc]

    def begin(self) -> None:
        if self._put_off:
            return
        from qdrant_client import models

        now = self._info().config.optimizer_config.indexing_threshold
        if now != 0:  # 0: put off by an earlier run, which noted what it was
            before = DEFAULT_THRESHOLD if now is None else now
            self._try(lambda c: c.update_collection(self._collection, metadata={_THRESHOLD: before}))
            off = models.OptimizersConfigDiff(indexing_threshold=0)
            self._try(lambda c: c.update_collection(self._collection, optimizers_config=off))
        self._put_off = True

    def upsert(self, batches: Iterator[Points], gate: int) -> None:
        """Several at once. The first failure stops the rest and is raised when all have ended."""
        with ThreadPoolExecutor(STREAMS, thread_name_prefix="qdrant") as pool:
            flying: set[Future[None]] = set()
            try:
                for batch in batches:
                    flying.add(pool.submit(self._put, batch, gate))
                    if len(flying) >= 2 * STREAMS:
                        done, flying = wait(flying, return_when=FIRST_COMPLETED)
                        for one in done:
                            one.result()
                for one in flying:
                    one.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def delete(self, ids: Sequence[PointId], positions: Sequence[int]) -> None:
        from qdrant_client import models

        own = models.FieldCondition(key=POS, match=models.MatchAny(any=list(positions)))
        gone = models.FilterSelector(filter=models.Filter(must=[models.HasIdCondition(has_id=list(ids)), own]))
        self._try(lambda c: _applied(c.delete(self._collection, gone, wait=True)))

    def flush(self) -> None:
        """What a server says is completed is in its log."""

    def count(self, job: str | None) -> int:
        from qdrant_client import models

        chosen = None if job is None else models.Filter(must=[_is_job(job)])
        return self._try(lambda c: c.count(self._collection, count_filter=chosen, exact=True)).count

    def count_others(self, job: str) -> int:
        from qdrant_client import models

        others = models.Filter(must_not=[_is_job(job)])
        return self._try(lambda c: c.count(self._collection, count_filter=others, exact=True)).count

    def build(self) -> None:
        """Green may show for a moment before the work begins, so it must show a few times in a row."""
        self._restore()
        deadline, calm = time.monotonic() + BUILD_S, 0
        while calm < CALM_POLLS:
            info = self._info()
            if info.status.value == "red":
                raise SinkError(f"{self.name}: the server cannot index it: {info.optimizer_status}")
            if info.status.value == "grey":  # waits for any update, as after a restart
                self._restore(again=True)
            calm = calm + 1 if info.status.value == "green" else 0
            if time.monotonic() > deadline:
                raise SinkError(
                    f"{self.name}: still indexing after {BUILD_S / 3600:.0f} hours",
                    hint="run the same command again: it waits for the rest",
                )
            time.sleep(POLL_S)

    def close(self) -> None:
        """Indexing is never left put off by a run that could end in order, though the server may be what failed."""
        client, self._connected = self._connected, None
        if client is None:
            return
        try:
            self._connected = client
            self._restore(patience_s=0.0)
        except (SinkError, UsageError):
            pass  # the run that goes on from here puts it right
        finally:
            self._connected = None
            client.close()

    def _restore(self, *, again: bool = False, patience_s: float = PATIENCE_S) -> None:
        from qdrant_client import models

        if patience_s and not self._try(lambda c: c.collection_exists(self._collection), patience_s):
            raise SinkError(f"{self.name}: the collection is gone")
        config = self._try(lambda c: c.get_collection(self._collection), patience_s).config
        now, noted = config.optimizer_config.indexing_threshold, (config.metadata or {}).get(_THRESHOLD)
        if again or (now == 0 and noted is not None):
            threshold = int(noted) if now == 0 and noted is not None else now
            back = models.OptimizersConfigDiff(indexing_threshold=DEFAULT_THRESHOLD if threshold is None else threshold)
            self._try(lambda c: c.update_collection(self._collection, optimizers_config=back), patience_s)
        self._put_off = False

    def _put(self, batch: Points, gate: int) -> None:
        """Halves what the server calls bad, until the row that it is shows."""
        from qdrant_client import models

        own = models.Filter(must=[models.FieldCondition(key=POS, range=models.Range(gte=float(gate)))])
        points = grpc_points(batch) if self._grpc else rest_points(batch)
        try:
            self._try(lambda c: _applied(c.upsert(self._collection, points, wait=True, update_filter=own)))
        except BadRequest as exc:
            if len(batch.ids) == 1:
                raise SinkError(f"{self.name}: row {batch.payloads[0]['id']!r} was refused: {exc}") from exc
            middle = len(batch.ids) // 2
            for half in (slice(None, middle), slice(middle, None)):
                self._put(Points(ids=batch.ids[half], vectors=batch.vectors[half], payloads=batch.payloads[half]), gate)

    def _info(self) -> models.CollectionInfo:
        return self._try(lambda c: c.get_collection(self._collection))

    def _try(self, call: Callable[[QdrantClient], _T], patience_s: float = PATIENCE_S) -> _T:
        if self._connected is None:
            self._connected = self._connect()
        client = self._connected
        return patiently(self.name, lambda: call(client), patience_s)


def _applied(result: models.UpdateResult) -> models.UpdateResult:
    if result.status.value != "completed":
        raise TimeoutError(f"the server answered {result.status.value}, not completed")
    return result


def _is_job(job: str) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=JOB, match=models.MatchValue(value=job))
