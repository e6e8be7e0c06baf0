"""Milvus: a server as `milvus://host:19530/collection` (`milvus+https://` over TLS), or the embedded Milvus Lite as
`milvus-lite:///folder.db/collection`. One client speaks to both.

Enters: the URI; for a server the key, or `user:password`, in MILVUS_TOKEN, which is stored nowhere, and the seconds
that a request may take in MILVUS_TIMEOUT_S. Leaves: a `KeyedSink`. Refused: a server's collection that is not there
without `--create`, outputs that Milvus cannot hold, more than one process at Milvus Lite.

The mapping. `_key`, the primary key: the row's number where ids are whole numbers and rows one unit, else text: the
id of `stores.point_id`. `id`: INT64 or VARCHAR. Kept columns, all nullable: whole numbers and durations INT64, floats
FLOAT or DOUBLE, booleans BOOL, lists, structs and maps JSON, all else VARCHAR in the words of `payload`, uint64 too. A
column whose name Milvus does not take gets one that it does, noted in the collection's properties. Outputs: float32
FLOAT_VECTOR, float16 FLOAT16_VECTOR, int8 INT8_VECTOR, binary and ubinary BINARY_VECTOR (both as ubinary), sparse
SPARSE_FLOAT_VECTOR; multivectors and scores are refused, and all but float32 and sparse by Milvus Lite.

Milvus has no conditional write. So processes that share a state folder write in turn, each after reading which of its
keys an earlier row holds. Dense vectors are searched flat until the load is over, then get an HNSW index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.sinks import milvus_read, stores
from embedctl.sinks.base import Hit
from embedctl.sinks.keyed import KeyedSink
from embedctl.sinks.keyed_records import JOB, POS, Gate, Records
from embedctl.sinks.milvus_fields import (
    KEY,
    Field,
    fields_of_collection,
    fields_of_plan,
    milvus_rows,
    named_columns,
)
from embedctl.sinks.milvus_link import LiteLink, NotLoaded, ServerLink, alone
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

_TAG, _COLUMNS, _NOTE = "embedctl_job", "embedctl_columns", "embedctl_manifest"
_FLAT = {"FLOAT_VECTOR": "FLAT", "FLOAT16_VECTOR": "FLAT", "BINARY_VECTOR": "BIN_FLAT", "INT8_VECTOR": "HNSW",
         "SPARSE_FLOAT_VECTOR": "SPARSE_INVERTED_INDEX"}  # fmt: skip
_HNSW = {"M": 16, "efConstruction": 100}
_WHOLE, MAX = re.compile(r"-?[0-9]{1,19}"), 1 << 63
_LOCK = ".embedctl/milvus.lock"


def open_milvus(target: str, storage: LocalStorage, spec: JobSpec) -> KeyedSink:
    """:raises UsageError: not such a URI, or the client is not installed."""
    parts = urlsplit(target)
    collection = parts.path.strip("/")
    if not parts.hostname or not collection or "/" in collection or parts.query:
        raise UsageError(
            f"--to: {parts.scheme}://{parts.hostname}{parts.path} is not {parts.scheme}://HOST[:PORT]/COLLECTION",
            hint="--to milvus://localhost:19530/docs",
        )
    if "@" in parts.netloc:
        raise UsageError(
            "--to: a password in the address would be seen by others", hint="set MILVUS_TOKEN=user:password"
        )
    _installed()
    return KeyedSink(MilvusEngine(ServerLink(target), collection, storage, spec, lite=False), storage, spec)


def open_lite(target: str, storage: LocalStorage, spec: JobSpec) -> KeyedSink:
    """:raises UsageError: no folder or collection in the URI, several workers, or the engine is not installed."""
    folder, _, collection = target.partition("://")[2].rstrip("/").rpartition("/")
    if not folder.strip("/.") or not collection:
        raise UsageError(f"--to: {target} is not FOLDER/COLLECTION", hint="--to milvus-lite://./vectors.db/docs")
    if spec.workers is not None and spec.workers > 1:
        raise UsageError("--workers: Milvus Lite lets in one process at a time", hint="--workers 1")
    _installed()
    return KeyedSink(MilvusEngine(LiteLink(Path(folder)), collection, storage, spec, lite=True), storage, spec)


def _installed() -> None:
    try:
        import milvus_lite  # type: ignore[import-untyped]  # noqa: F401
        import pymilvus  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as exc:
        raise UsageError("the Milvus client is not installed", hint="pip install 'embedctl[milvus]'") from exc


class MilvusEngine:
    """One collection. Connects, or opens the folder, at the first question."""

    max_records, max_bytes = 1024, 8 << 20

    def __init__(
        self, link: ServerLink | LiteLink, collection: str, storage: LocalStorage, spec: JobSpec, *, lite: bool
    ) -> None:
        self.name = f"{link.name}/{collection}"
        self._link, self._collection, self._spec, self._lite = link, collection, spec, lite
        self._lock = Path(storage.root) / _LOCK
        self._fields: list[Field] = []

    def exists(self) -> bool:
        return bool(self._call("has_collection"))

    def make(self, plan: Plan) -> None:
        fields = fields_of_plan(plan, self._spec, lite=self._lite)
        if not self._lite and not self._spec.create:
            raise UsageError(f"{self.name}: no such collection", hint="make it with --create")
        client = self._link.client()
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        indexes = client.prepare_index_params()
        for field in fields:
            schema.add_field(field.name, field.type, **field.params)
            if field.metric is not None:
                params = _HNSW if _FLAT[field.kind] == "HNSW" else {}
                kind, name = _FLAT[field.kind], _index(field)
                indexes.add_index(field.name, index_type=kind, index_name=name, metric_type=field.metric, params=params)
        for column in self._indexed(fields):
            indexes.add_index(column, index_type="INVERTED", index_name=f"{column}_idx")
        asked = {"properties": {_TAG: plan.job, _COLUMNS: named_columns(fields)}, "consistency_level": "Strong"}
        try:
            self._call("create_collection", schema=schema, index_params=indexes, **asked)
        except SinkError:
            if not self.exists():  # else by another shard of this run, or a try whose reply was lost
                raise
        self._fields = fields

    def check(self, plan: Plan) -> None:
        wanted = fields_of_plan(plan, self._spec, lite=self._lite)
        found = {f.name: f for f in self._described()}
        keep_metric = self.tag() == plan.job and self._spec.distance is None  # chosen when it was made
        for field in wanted:
            there = found.get(field.name)
            for what in ("kind", "dim", "metric"):
                has, needs = getattr(there, what, None), getattr(field, what)
                if has != needs and not (what == "metric" and keep_metric and there is not None):
                    raise UsageError(
                        f"{self.name}: {what} of field {field.name} is {has}, this job needs {needs}",
                        hint="choose another collection with --to; one that does not exist is made with --create",
                    )
        self._fields = wanted
        self._call("load_collection")

    def tag(self) -> str | None:
        return self._properties().get(_TAG)

    def set_tag(self, job: str) -> None:
        self._call("alter_collection_properties", properties={_TAG: job})

    def note(self, text: str) -> None:
        self._call("alter_collection_properties", properties={_NOTE: text})

    def noted(self) -> str | None:
        return self._properties().get(_NOTE)

    def key(self, id: str, chunk: int | None) -> PointId:
        if not self._fields:
            self._fields = self._described()
        if self._primary.kind == "INT64" and chunk is None and _WHOLE.fullmatch(id) and -MAX <= int(id) < MAX:
            return int(id)
        return str(stores.point_id(id, chunk))

    def begin(self) -> None:
        """Nothing but a flat index is there before `build`."""

    def upsert(self, batches: Iterator[Records], gate: Gate) -> None:
        with alone(self._lock):
            for batch in batches:
                before = self._read(batch.keys, [POS])
                late = {row[KEY] for row in before if not gate.lets(row[POS])}
                free = batch.without(late)
                if free.keys:
                    self._call("upsert", data=milvus_rows(free, self._fields, self.name))

    def delete(self, keys: Sequence[PointId], positions: Sequence[int] | None) -> int:
        primary = self._primary.name
        there = self._read(keys, [POS] if positions is not None else [])
        allowed = None if positions is None else set(positions)
        gone = [row[primary] for row in there if allowed is None or row[POS] in allowed]
        if gone:
            own = "" if positions is None else f" and {POS} in {json.dumps(sorted(set(positions)))}"
            self._call("delete", filter=f"{primary} in {json.dumps(gone, ensure_ascii=False)}{own}")
        return len(gone)

    def present(self, keys: Sequence[PointId]) -> set[PointId]:
        return {row[self._primary.name] for row in self._read(keys, [])}

    def fetch(self, keys: Sequence[PointId]) -> tuple[list[PointId], pa.RecordBatch]:
        rows = self._read(keys, ["*"])
        return [row[self._primary.name] for row in rows], milvus_read.batch(rows, self._described())

    def flush(self) -> None:
        """What a server acknowledges is in its log; Milvus Lite is made to write it to disk."""
        if self._lite:
            self._call("flush")
            self._link.sync()

    def count(self, job: str | None, span: tuple[int, int] | None = None) -> int:
        chosen = [] if job is None else [f"{JOB} == {json.dumps(job)}"]
        chosen += [f"{POS} >= {span[0]} and {POS} < {span[1]}"] if span else []
        return self._count(" and ".join(chosen))

    def count_others(self, job: str) -> int:
        return self._count(f"{JOB} != {json.dumps(job)}")

    def build(self) -> None:
        """Flush, then an HNSW index for every vector that is still searched flat. Waits until it is built."""
        self._call("flush")
        flat = [f for f in self._fields if f.metric and _FLAT[f.kind] == "FLAT" and self._index_type(f) != "HNSW"]
        if flat:
            self._call("release_collection")
        for field in flat:
            if self._index_type(field) is not None:
                self._call("drop_index", index_name=_index(field))
            indexes = self._link.client().prepare_index_params()
            indexes.add_index(
                field.name, index_type="HNSW", index_name=_index(field), metric_type=field.metric, params=_HNSW
            )
            self._call("create_index", index_params=indexes)
        self._call("load_collection")

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool
    ) -> Sequence[Sequence[Hit]]:
        if exact:
            raise UsageError(f"{self.name}: Milvus answers by its index only", hint="leave out --exact")
        self._call("load_collection")
        return milvus_read.search(self._call, self._described(), query, limit=limit, where=where)

    def contents(self) -> Sequence[OutputSpec]:
        return [f.spec for f in self._described() if f.spec is not None]

    def scan(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        self._call("load_collection")
        return milvus_read.scan(self._call, self._described(), batch_rows)

    def close(self) -> None:
        self._link.close()

    @property
    def _primary(self) -> Field:
        return self._fields[0]

    def _indexed(self, fields: Sequence[Field]) -> list[str]:
        """:raises UsageError: `--index-field` names no kept column."""
        names = {f.column: f.name for f in fields}
        asked = [text.rpartition(":")[0] for text in self._spec.index_field]
        missing = next((a for a in asked if a not in names), None)
        if missing is not None:
            raise UsageError(
                f"--index-field: no kept column {missing!r}", hint="--index-field lang:keyword --keep lang"
            )
        return [names[a] for a in asked]

    def _read(self, keys: Sequence[PointId], fields: Sequence[str]) -> list[dict[str, Any]]:
        """The records of these keys, the primary key and `fields` of each."""
        kind = int if self._primary.kind == "INT64" else str  # of another kind no key is there
        asked = [key for key in keys if isinstance(key, kind)]
        names = [self._primary.name, *fields]
        return list(self._call("query", ids=asked, output_fields=names, consistency_level="Strong")) if asked else []

    def _count(self, chosen: str) -> int:
        if self._lite:  # it would build every row whole to count it
            return len(self._call("query", filter=chosen or f"{POS} >= 0", output_fields=[POS]))
        counted = self._call("query", filter=chosen, output_fields=["count(*)"], consistency_level="Strong")
        return int(counted[0]["count(*)"])

    def _properties(self) -> dict[str, str]:
        return dict(self._call("describe_collection")["properties"])

    def _described(self) -> list[Field]:
        """The collection's fields, its primary key first."""
        described = self._call("describe_collection")
        indexes = [self._call("describe_index", index_name=n) for n in self._call("list_indexes")]
        metrics = {i["field_name"]: i["metric_type"] for i in indexes if i and "metric_type" in i}
        columns = described["properties"].get(_COLUMNS, "{}")
        fields = fields_of_collection(described, metrics, columns)
        primary = next(f["name"] for f in described["fields"] if f.get("is_primary"))
        return sorted(fields, key=lambda f: f.name != primary)

    def _index_type(self, field: Field) -> str | None:
        found = self._call("describe_index", index_name=_index(field))
        return str(found["index_type"]) if found else None

    def _call(self, method: str, **arguments: Any) -> Any:
        try:
            return self._link.call(method, self._collection, **arguments)
        except NotLoaded:
            self._link.call("load_collection", self._collection)
            return self._link.call(method, self._collection, **arguments)


def _index(field: Field) -> str:
    return f"{field.name}_idx"
