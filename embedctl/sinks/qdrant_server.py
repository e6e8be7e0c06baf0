"""A Qdrant server as the sink's engine, over gRPC or REST (see `qdrant_address`).

Enters: the URI. Leaves: a `QdrantSink`. Every write waits until it is applied; `acknowledged` and `wait_timeout` are
not success. Refused: a server too old to keep what is promised, a collection that is not there without `--create`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import Values, take
from embedctl.sinks import qdrant_wire as wire
from embedctl.sinks import stores
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_address import Address, connect, parse, timeout_s
from embedctl.sinks.qdrant_engine import Ask, Found, Layout, Making, Points, Record
from embedctl.sinks.qdrant_trouble import BadRequest, TooSlow, patiently
from embedctl.sinks.qdrant_where import Filter
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

STREAMS = 4
FIRST_PATIENCE_S, PATIENCE_S, BUILD_S = 10.0, 300.0, 6 * 3600.0
POLL_S, CALM_POLLS = 0.25, 4
DEFAULT_THRESHOLD = 10_000
OLDEST = (1, 16)
"""The first version with conditional upserts and metadata; an older one ignores both without a word."""
MIN_POINTS = 16
_THRESHOLD = "embedctl_indexing_threshold"
_T = TypeVar("_T")


def open_server(target: str, storage: LocalStorage, spec: JobSpec) -> QdrantSink:
    """:raises UsageError: not such a URI, or the client is not installed."""
    try:
        import qdrant_client  # noqa: F401
    except ImportError as exc:
        raise UsageError("the Qdrant client is not installed", hint="pip install 'embedctl[qdrant]'") from exc
    address = parse(target)
    return QdrantSink(ServerEngine(address), storage, spec)


class ServerEngine:
    """One collection of a server. Connects at the first question."""

    def __init__(self, address: Address) -> None:
        self.name = address.name
        self.max_points, self.max_bytes = 256, 8 << 20
        self._address, self._collection = address, address.collection
        self._connected: QdrantClient | None = None
        self._put_off = False

    def layout(self) -> Layout | None:
        self._check_version()
        if not self._try(lambda c: c.collection_exists(self._collection), FIRST_PATIENCE_S):
            return None
        return wire.layout_from(self._info().config)

    def metadata(self) -> Mapping[str, Any]:
        return self._info().config.metadata or {}

    def annotate(self, metadata: Mapping[str, str]) -> None:
        self._try(lambda c: c.update_collection(self._collection, metadata=dict(metadata)))

    def make(self, making: Making) -> None:
        if not making.create:
            raise UsageError(f"{self.name}: no such collection", hint="make it with --create")
        asked = wire.creation_of(making)
        try:
            self._try(lambda c: c.create_collection(self._collection, **asked))
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

    def upsert(self, batches: Iterator[Points], where: Filter) -> None:
        only = wire.condition_of(where) if self._address.grpc else wire.filter_of(where)
        stores.in_streams(lambda batch: self._put(batch, only), batches, STREAMS)

    def delete(self, where: Filter) -> None:
        from qdrant_client import models

        gone = wire.filter_of(where)
        assert gone is not None
        chosen = models.FilterSelector(filter=gone)
        self._try(lambda c: _applied(c.delete(self._collection, chosen, wait=True).status.value))

    def flush(self) -> None:
        """What a server says is completed is in its log."""

    def count(self, where: Filter | None = None) -> int:
        chosen = wire.filter_of(where)
        return self._try(lambda c: c.count(self._collection, count_filter=chosen, exact=True)).count

    def scroll(self, after: PointId | None, limit: int, *, vectors: bool) -> tuple[list[Record], PointId | None]:
        found, following = self._try(
            lambda c: c.scroll(self._collection, limit=limit, offset=after, with_payload=True, with_vectors=vectors)
        )
        return [_record(p) for p in found], None if following is None else _id(following)

    def retrieve(self, ids: Sequence[PointId]) -> list[Record]:
        chosen = wire.filter_of({"must": [{"has_id": list(ids)}]})
        found, _ = self._try(
            lambda c: c.scroll(
                self._collection, scroll_filter=chosen, limit=len(ids), with_payload=True, with_vectors=True
            )
        )
        return [_record(p) for p in found]

    def query(self, asks: Sequence[Ask]) -> list[list[Found]]:
        requests = [wire.query_of(ask) for ask in asks]
        answers = self._try(lambda c: c.query_batch_points(self._collection, requests))
        return [[Found(id=_id(p.id), score=p.score, payload=p.payload or {}) for p in one.points] for one in answers]

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

    def _put(self, batch: Points, only: Any) -> None:
        """Halves what is too much at once, and what the server calls bad, until the row that it is shows."""
        alone = len(batch.ids) == 1
        try:
            self._try(self._upserting(batch, only), divisible=not alone)
        except (BadRequest, TooSlow) as exc:
            if alone:
                raise SinkError(f"{self.name}: row {batch.payloads[0]['id']!r} was refused: {exc}") from exc
            if isinstance(exc, TooSlow):
                self.max_points = max(MIN_POINTS, min(self.max_points, len(batch.ids) // 2))
            middle = len(batch.ids) // 2
            self._put(_part(batch, 0, middle), only)
            self._put(_part(batch, middle, len(batch.ids)), only)

    def _upserting(self, batch: Points, only: Any) -> Callable[[QdrantClient], None]:
        """On gRPC past the client, whose own call knows no messages made from numpy."""
        if not self._address.grpc:
            points = wire.rest_points(batch)
            return lambda c: _applied(c.upsert(self._collection, points, wait=True, update_filter=only).status.value)
        request = wire.upsert_of(self._collection, batch, only)
        return lambda c: _applied(wire.status_of(c.grpc_points.Upsert(request, timeout=timeout_s())))

    def _info(self) -> models.CollectionInfo:
        return self._try(lambda c: c.get_collection(self._collection))

    def _check_version(self) -> None:
        found = self._try(lambda c: c.info(), FIRST_PATIENCE_S).version
        match = re.match(r"(\d+)\.(\d+)", found)
        if match and (int(match[1]), int(match[2])) < OLDEST:
            raise UsageError(
                f"{self.name}: the server is Qdrant {found}, which cannot keep what embedctl promises",
                hint=f"upgrade it to {OLDEST[0]}.{OLDEST[1]} or newer",
            )

    def _try(
        self, call: Callable[[QdrantClient], _T], patience_s: float = PATIENCE_S, *, divisible: bool = False
    ) -> _T:
        if self._connected is None:
            self._connected = connect(self._address)
        client = self._connected
        return patiently(self.name, lambda: call(client), patience_s, divisible=divisible)


def _applied(status: str) -> None:
    if status != "completed":
        raise TimeoutError(f"the server answered {status}, not completed")


def _part(batch: Points, begin: int, end: int) -> Points:
    rows = np.arange(begin, end, dtype=np.int64)
    vectors: dict[str, Values] = {name: take(values, rows) for name, values in batch.vectors.items()}
    return Points(ids=batch.ids[begin:end], vectors=vectors, payloads=batch.payloads[begin:end])


def _id(found: object) -> PointId:
    return found if isinstance(found, int) else str(found)


def _record(point: Any) -> Record:
    return Record(id=_id(point.id), payload=point.payload or {}, vectors=wire.plain_vectors(point.vector))
