"""Elasticsearch (8.11 and later) and OpenSearch (2.9 and later): `elasticsearch://host:9200/index`, `opensearch://...`,
and the same with `+https`.

Enters: the URI; the key in ELASTIC_API_KEY, or ELASTIC_USER and ELASTIC_PASSWORD, which are stored nowhere; a
certificate authority in ELASTIC_CA_CERTS, the seconds of a request in ELASTIC_TIMEOUT_S (for OpenSearch the same with
OPENSEARCH_, without a key). Leaves: a `KeyedSink`. Refused: an index that is not there without `--create`, outputs
without a field for them.

The mapping. `_id`: the row's id where it has 1 to 512 bytes, else its uuid5; of a chunk the uuid5 of `[id, n]`. Kept
columns, null and lists of them alike: whole numbers and durations `long`, uint64 `unsigned_long`, floats `float` or
`double`, booleans `boolean`, timestamps and dates `date` (what is no date for the store is kept and not indexed),
strings `text` with a `keyword` below, decimals and times `keyword`, binary `binary`, structs and maps kept as they are
and not indexed. `--index-field NAME:KIND` says otherwise. Values are `payload`'s, exact in `_source`. Outputs: dense
`dense_vector` of `float`, `byte` (int8) or `bit` (binary, ubinary), or `knn_vector`; sparse `sparse_vector`, or
`rank_features`, tokens by their number. Multivectors, scores and uint8 are refused.

While an index is loaded for the first time it is not refreshed and has no replicas; its own settings are noted in its
`_meta` and come back at the end, on failure, or by the run that goes on after a kill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.sinks import elastic_bulk as bulk
from embedctl.sinks import elastic_read as reading
from embedctl.sinks import stores
from embedctl.sinks.base import Hit
from embedctl.sinks.elastic_http import PATIENCE_S, BadRequest, Link, place_of, version_of
from embedctl.sinks.elastic_mapping import Properties, differences, outputs_of, properties_of
from embedctl.sinks.keyed import KeyedSink
from embedctl.sinks.keyed_records import JOB, POS, Gate, Records
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

STREAMS = 4
MAX_ID_BYTES = 512
_ELSEWHERE = "choose another index with --to; one that does not exist is made with --create"
_PUT_OFF = {"refresh_interval": "-1", "number_of_replicas": "0"}


def open_elastic(target: str, storage: LocalStorage, spec: JobSpec) -> KeyedSink:
    """:raises UsageError: not such a URI, or what speaks to the server is not installed."""
    place = place_of(target)
    try:
        import orjson  # noqa: F401
        import urllib3  # noqa: F401
    except ImportError as exc:
        raise UsageError("urllib3 and orjson are not installed", hint="pip install 'embedctl[elasticsearch]'") from exc
    return KeyedSink(ElasticEngine(Link(place), spec), storage, spec)


class ElasticEngine:
    """One index. Connects at the first question."""

    max_records, max_bytes = 1000, 2 << 20

    def __init__(self, link: Link, spec: JobSpec) -> None:
        self.name = link.place.name
        self._link, self._spec = link, spec
        self._opensearch = link.place.opensearch
        self._version: tuple[int, ...] = ()
        self._packed: frozenset[str] = frozenset()
        self._put_off = self._durable = self._checked = False

    def exists(self) -> bool:
        return self._index(missing_ok=True) is not None

    def make(self, plan: Plan) -> None:
        properties = self._properties(plan)
        if not self._spec.create:
            raise UsageError(f"{self.name}: no such index", hint="make it with --create")
        settings: dict[str, Any] = {"index.knn": True} if self._opensearch else {}
        if not self._opensearch and self._version >= (9, 2):
            settings["index.mapping.exclude_source_vectors"] = False
        mappings = {"dynamic": False, "_meta": {"embedctl": {"job": plan.job}}, "properties": properties}
        try:
            self._link.index("PUT", "", {"settings": settings, "mappings": mappings})
        except BadRequest as exc:
            if "resource_already_exists" not in str(exc):  # by another shard of this run, or a try whose reply was lost
                raise
        self._settle(plan)

    def check(self, plan: Plan) -> None:
        wanted, mappings = self._properties(plan), self._mappings()
        found = mappings.get("properties", {})
        told = differences(found, self._chosen(wanted, found) if self.tag() == plan.job else wanted)
        if mappings.get("_source", {}).get("enabled") is False:
            told.append("_source is off, so that nothing could be told of what is there")
        if told:
            raise UsageError(f"{self.name}: {'; '.join(told)}", hint=_ELSEWHERE)
        missing = {name: kind for name, kind in wanted.items() if name not in found}
        if missing:
            if not self._spec.create:
                raise UsageError(
                    f"{self.name}: has no field {', '.join(missing)}", hint=f"add them with --create, or {_ELSEWHERE}"
                )
            self._link.index("PUT", "/_mapping", {"properties": missing})
        self._settle(plan)

    def tag(self) -> str | None:
        tag = self._meta().get("job")
        return None if tag is None else str(tag)

    def set_tag(self, job: str) -> None:
        self._set_meta({"job": job})

    def note(self, text: str) -> None:
        self._set_meta({**self._meta(), "manifest": text})

    def noted(self) -> str | None:
        text = self._meta().get("manifest")
        return None if text is None else str(text)

    def key(self, id: str, chunk: int | None) -> PointId:
        if chunk is None and 0 < len(id.encode("utf-8", "surrogatepass")) <= MAX_ID_BYTES:
            return id
        return str(stores.point_id(id, chunk))

    def begin(self) -> None:
        """Only an index that was never finished: one that is searched keeps its replicas and its refreshes."""
        if self._put_off:
            return
        meta = self._meta()
        if not meta.get("built"):
            if "before" not in meta:  # else put off by an earlier run, which noted what it was
                now = self._settings()
                self._set_meta({**meta, "before": {name: now.get(name) for name in _PUT_OFF}})
            try:
                self._change(_PUT_OFF)
            except BadRequest:  # a service that sees to both itself
                self._set_meta({name: value for name, value in meta.items() if name != "before"})
        self._put_off = True

    def upsert(self, batches: Iterator[Records], gate: Gate) -> None:
        stores.in_streams(lambda batch: bulk.put(self._link, batch, gate, self._packed), batches, STREAMS)

    def delete(self, keys: Sequence[PointId], positions: Sequence[int] | None) -> int:
        return bulk.delete(self._link, keys, positions)

    def present(self, keys: Sequence[PointId]) -> set[PointId]:
        return set(bulk.look(self._link, keys))

    def flush(self) -> None:
        """What was answered is in the translog on disk, unless the index says that this may wait. An index that was
        deleted meanwhile is made again by the next bulk, without our mapping: that is seen here."""
        if self._checked and self.tag() is None:
            raise SinkError(
                f"{self.name}: the index was taken away while it was loaded", hint="delete it, and begin anew"
            )
        if not self._durable:
            self._link.index("POST", "/_flush")

    def count(self, job: str | None, span: tuple[int, int] | None = None) -> int:
        must: list[dict[str, Any]] = [] if job is None else [{"term": {JOB: job}}]
        must += [{"range": {POS: {"gte": span[0], "lt": span[1]}}}] if span else []
        return self._count({"bool": {"filter": must}})

    def count_others(self, job: str) -> int:
        return self._count({"bool": {"must_not": [{"term": {JOB: job}}]}})

    def build(self) -> None:
        self._restore()
        self._set_meta({**self._meta(), "built": True})
        self._refresh()

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool
    ) -> Sequence[Sequence[Hit]]:
        self._hello()
        properties = self._mappings().get("properties", {})
        return reading.search(self._link, properties, query, limit=limit, where=where, exact=exact)

    def contents(self) -> Sequence[OutputSpec]:
        return outputs_of(self._mappings().get("properties", {}))

    def scan(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        return reading.scan(self._link, self._readable(), batch_rows, vectors_hidden=self._vectors_hidden)

    def fetch(self, keys: Sequence[PointId]) -> tuple[list[PointId], pa.RecordBatch]:
        found, batch = reading.fetch(
            self._link, self._readable(), [str(key) for key in keys], vectors_hidden=self._vectors_hidden
        )
        return [*found], batch

    def _readable(self) -> dict[str, Any]:
        """The fields, once all that was written can be found."""
        self._hello()
        self._refresh()
        properties: dict[str, Any] = self._mappings().get("properties", {})
        return properties

    @property
    def _vectors_hidden(self) -> bool:
        return not self._opensearch and self._version >= (9, 2)

    def close(self) -> None:
        """Settings are never left put off by a run that could end in order, though the server may be what failed."""
        try:
            if self._put_off:
                self._restore(patience_s=0.0)
        except (SinkError, UsageError):
            pass  # the run that goes on from here puts it right
        finally:
            self._link.close()

    def _restore(self, patience_s: float = PATIENCE_S) -> None:
        meta = self._meta(patience_s)
        before = meta.pop("before", None)
        if before is not None:
            self._change(before, patience_s)
            self._set_meta(meta, patience_s)
        self._put_off = False

    def _settle(self, plan: Plan) -> None:
        packed = (o.name for o in plan.outputs if o.vector_type in ("binary", "ubinary"))
        self._packed, self._checked = frozenset(packed), True
        self._durable = str(self._settings().get("translog.durability", "request")).lower() == "request"

    def _properties(self, plan: Plan) -> Properties:
        self._hello()
        return properties_of(plan, self._spec, opensearch=self._opensearch)

    def _chosen(self, wanted: Properties, found: Mapping[str, Any]) -> Properties:
        """The job's own index: its similarity was chosen when it was made, unless it is asked for again."""
        if self._spec.distance is not None:
            return wanted
        return {
            name: {
                **kind,
                **{w: found[name][w] for w in ("similarity", "method", "space_type") if w in found.get(name, {})},
            }
            for name, kind in wanted.items()
        }

    def _hello(self) -> None:
        if not self._version:
            self._version = version_of(self._link)

    def _index(self, *, missing_ok: bool = False, patience_s: float = PATIENCE_S) -> dict[str, Any] | None:
        self._hello()
        found = self._link.index("GET", missing_ok=missing_ok, patience_s=patience_s)
        if found is None:
            return None
        if len(found) != 1:
            raise UsageError(
                f"{self.name}: names {len(found)} indexes ({', '.join(sorted(found)[:3])})", hint=_ELSEWHERE
            )
        one: dict[str, Any] = next(iter(found.values()))
        return one

    def _mappings(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        found = self._index(patience_s=patience_s)
        return dict(found.get("mappings") or {}) if found else {}

    def _meta(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        return dict(self._mappings(patience_s).get("_meta", {}).get("embedctl", {}))

    def _set_meta(self, meta: Mapping[str, Any], patience_s: float = PATIENCE_S) -> None:
        """What others noted there stays."""
        others = self._mappings(patience_s).get("_meta", {})
        body = {"_meta": {**others, "embedctl": dict(meta)}}
        self._link.index("PUT", "/_mapping", body, patience_s=patience_s)

    def _settings(self) -> dict[str, Any]:
        """Names without `index.` -> values."""
        found = self._link.index("GET", "/_settings", params={"flat_settings": "true"})
        one = next(iter(found.values()))["settings"]
        return {name.removeprefix("index."): value for name, value in one.items()}

    def _change(self, settings: Mapping[str, Any], patience_s: float = PATIENCE_S) -> None:
        self._link.index("PUT", "/_settings", {"index": dict(settings)}, patience_s=patience_s)

    def _refresh(self) -> None:
        _whole(self.name, self._link.index("POST", "/_refresh"))

    def _count(self, chosen: Mapping[str, Any]) -> int:
        self._refresh()
        answer = self._link.index("POST", "/_count", {"query": dict(chosen)})
        _whole(self.name, answer)
        return int(answer["count"])


def _whole(name: str, answer: Mapping[str, Any]) -> None:
    failed = answer.get("_shards", {}).get("failed", 0)
    if failed:
        raise SinkError(f"{name}: {failed} shards did not answer", hint="see the health of the index, then run again")
