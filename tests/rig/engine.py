"""Collections of the embedded engine, spoken to in the client's own REST models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import qdrant_edge as edge
from qdrant_client import models


class Collection:
    """One shard and what the engine does not keep: the config a server would show."""

    def __init__(self, folder: Path, made: models.CreateCollection) -> None:
        self.folder, self.params = folder, made.vectors
        self.metadata = dict(made.metadata or {})
        self.threshold: int | None = None
        self.thresholds_seen: list[int | None] = []
        folder.mkdir(parents=True)
        datatype = made.vectors.datatype.value if made.vectors.datatype else "float32"
        config = edge.EdgeConfig(
            vectors=edge.EdgeVectorParams(
                size=made.vectors.size,
                distance=getattr(edge.Distance, made.vectors.distance.value),
                datatype=getattr(edge.VectorStorageDatatype, datatype.capitalize()),
            )
        )
        self.shard = edge.EdgeShard.create(str(folder), config)

    def reopen(self) -> None:
        self.shard.close()
        self.shard = edge.EdgeShard.load(str(self.folder))


class Engine:
    """What both fronts call. One call at a time, as in a shard's own queue."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.RLock()
        self.collections: dict[str, Collection] = {}

    def create(self, name: str, made: models.CreateCollection) -> bool:
        with self._lock:
            if name in self.collections:
                raise ValueError(f"Collection `{name}` already exists!")
            self.collections[name] = Collection(self._folder / name, made)
            return True

    def update(self, name: str, change: models.UpdateCollection) -> bool:
        with self._lock:
            one = self.collections[name]
            one.metadata |= change.metadata or {}
            if change.optimizers_config is not None:
                one.threshold = change.optimizers_config.indexing_threshold
                one.thresholds_seen.append(one.threshold)
            return True

    def info(self, name: str) -> models.CollectionInfo:
        with self._lock:
            one = self.collections[name]
            schema = {
                field: models.PayloadIndexInfo(data_type=str(found.data_type).rpartition(".")[2].lower(), points=0)
                for field, found in one.shard.info().payload_schema.items()
            }
            return models.CollectionInfo(
                status="green",
                optimizer_status="ok",
                segments_count=1,
                points_count=one.shard.info().points_count,
                indexed_vectors_count=0,
                payload_schema=schema,
                config=models.CollectionConfig(
                    params=models.CollectionParams(vectors=one.params),
                    hnsw_config=models.HnswConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
                    optimizer_config=models.OptimizersConfig(
                        deleted_threshold=0.2, vacuum_min_vector_number=1000, default_segment_number=0,
                        flush_interval_sec=5, indexing_threshold=one.threshold,
                    ),
                    wal_config=models.WalConfig(wal_capacity_mb=32, wal_segments_ahead=0),
                    metadata=one.metadata,
                ),
            )  # fmt: skip

    def index(self, name: str, field: str, kind: str) -> None:
        schema = getattr(edge.PayloadSchemaType, kind.capitalize())
        self._update(name, edge.UpdateOperation.create_field_index(field, schema))

    def upsert(self, name: str, points: Sequence[models.PointStruct], condition: models.Filter | None) -> None:
        made = [edge.Point(p.id, p.vector, p.payload) for p in points]
        self._update(name, edge.UpdateOperation.upsert_points(made, condition=filter_of(condition)))

    def delete(self, name: str, chosen: models.Filter) -> None:
        self._update(name, edge.UpdateOperation.delete_points_by_filter(filter_of(chosen)))

    def count(self, name: str, chosen: models.Filter | None) -> int:
        with self._lock:
            return self.collections[name].shard.count(edge.CountRequest(exact=True, filter=filter_of(chosen)))

    def points(self, name: str) -> list[edge.Record]:
        with self._lock:
            request = edge.ScrollRequest(limit=1_000_000, with_payload=True, with_vector=True)
            return self.collections[name].shard.scroll(request)[0]

    def restart(self) -> None:
        with self._lock:
            for one in self.collections.values():
                one.reopen()

    def _update(self, name: str, operation: edge.UpdateOperation) -> None:
        with self._lock:
            shard = self.collections[name].shard
            try:
                shard.update(operation)
                shard.flush()
            except Exception as exc:
                raise ValueError(str(exc)) from exc


def filter_of(found: models.Filter | None) -> edge.Filter | None:
    if found is None:
        return None
    return edge.Filter(
        must=[_condition(c) for c in found.must or []] or None,
        must_not=[_condition(c) for c in found.must_not or []] or None,
    )


def _condition(found: models.Condition) -> edge.FieldCondition | edge.HasIdCondition:
    if isinstance(found, models.HasIdCondition):
        return edge.HasIdCondition(set(found.has_id))
    if isinstance(found.match, models.MatchAny):
        return edge.FieldCondition(found.key, match=edge.MatchAny(found.match.any))
    if isinstance(found.match, models.MatchValue):
        return edge.FieldCondition(found.key, match=edge.MatchValue(found.match.value))
    return edge.FieldCondition(found.key, range=edge.RangeFloat(gte=found.range.gte))
