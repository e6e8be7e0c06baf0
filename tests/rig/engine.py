"""Collections of the embedded engine, spoken to in the client's own REST models."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qdrant_edge as edge
from qdrant_client import models

from tests.rig import words

VERSION = "1.19.0"


class Collection:
    """One shard and what the engine does not keep: the config a server would show."""

    def __init__(self, folder: Path, made: models.CreateCollection) -> None:
        self.folder, self.made = folder, made
        self.metadata = dict(made.metadata or {})
        self.threshold: int | None = None
        self.thresholds_seen: list[int | None] = []
        folder.mkdir(parents=True)
        self.shard = edge.EdgeShard.create(str(folder), words.config(made))

    def reopen(self) -> None:
        self.shard.close()
        self.shard = edge.EdgeShard.load(str(self.folder))

    def info(self) -> models.CollectionInfo:
        seen = self.shard.info()
        schema = {
            field: models.PayloadIndexInfo(data_type=str(found.data_type).rpartition(".")[2].lower(), points=0)
            for field, found in seen.payload_schema.items()
        }
        return models.CollectionInfo(
            status="green",
            optimizer_status="ok",
            segments_count=1,
            points_count=seen.points_count,
            indexed_vectors_count=0,
            payload_schema=schema,
            config=models.CollectionConfig(
                params=models.CollectionParams(
                    vectors=self.made.vectors,
                    sparse_vectors=self.made.sparse_vectors,
                    shard_number=self.made.shard_number or 1,
                ),
                hnsw_config=models.HnswConfig(m=16, ef_construct=100, full_scan_threshold=10_000),
                optimizer_config=models.OptimizersConfig(
                    deleted_threshold=0.2, vacuum_min_vector_number=1000, default_segment_number=0,
                    flush_interval_sec=5, indexing_threshold=self.threshold,
                ),
                wal_config=models.WalConfig(wal_capacity_mb=32, wal_segments_ahead=0),
                metadata=self.metadata,
            ),
        )  # fmt: skip


class Engine:
    """What both fronts call. One call at a time, as in a shard's own queue. Aliases stand for collections."""

    def __init__(self, folder: Path, version: str = VERSION) -> None:
        self._folder, self._lock, self.version = folder, threading.RLock(), version
        self.collections: dict[str, Collection] = {}
        self.aliases: dict[str, str] = {}
        self.alias_calls: list[list[str]] = []
        self.max_points: int | None = None

    def exists(self, name: str) -> bool:
        return self.aliases.get(name, name) in self.collections

    def create(self, name: str, made: models.CreateCollection) -> bool:
        with self._lock:
            if name in self.collections:
                raise ValueError(f"Collection `{name}` already exists!")
            self.collections[name] = Collection(self._folder / name, made)
            return True

    def drop(self, name: str) -> bool:
        with self._lock:
            one = self.collections.pop(name, None)
            if one is not None:
                one.shard.close()
                shutil.rmtree(one.folder)
                self.aliases = {a: c for a, c in self.aliases.items() if c != name}
            return one is not None

    def change_aliases(self, actions: Sequence[models.AliasOperations]) -> bool:
        """All or none, as the server promises."""
        with self._lock:
            after, told = dict(self.aliases), []
            for one in actions:
                if isinstance(one, models.CreateAliasOperation):
                    asked = one.create_alias
                    if asked.collection_name not in self.collections:
                        raise ValueError(f"Collection `{asked.collection_name}` doesn't exist!")
                    if asked.alias_name in self.collections:
                        raise ValueError(f"Collection `{asked.alias_name}` already exists!")
                    after[asked.alias_name] = asked.collection_name
                    told.append(f"create {asked.alias_name}")
                else:
                    del after[one.delete_alias.alias_name]
                    told.append(f"delete {one.delete_alias.alias_name}")
            self.aliases = after
            self.alias_calls.append(told)
            return True

    def update(self, name: str, change: models.UpdateCollection) -> bool:
        with self._lock:
            one = self._one(name)
            one.metadata |= change.metadata or {}
            if change.optimizers_config is not None:
                one.threshold = change.optimizers_config.indexing_threshold
                one.thresholds_seen.append(one.threshold)
            return True

    def info(self, name: str) -> models.CollectionInfo:
        with self._lock:
            return self._one(name).info()

    def index(self, name: str, field: str, kind: str) -> None:
        schema = getattr(edge.PayloadSchemaType, kind.capitalize())
        self._update(name, edge.UpdateOperation.create_field_index(field, schema))

    def upsert(self, name: str, points: Sequence[models.PointStruct], condition: models.Filter | None) -> None:
        if self.max_points is not None and len(points) > self.max_points:
            raise ValueError(f"Limit exceeded {len(points)} > {self.max_points} for upsert limit")
        made = [edge.Point(p.id, words.vectors(p.vector), p.payload) for p in points]
        self._update(name, edge.UpdateOperation.upsert_points(made, condition=words.filter_of(condition)))

    def delete(self, name: str, chosen: models.Filter) -> None:
        self._update(name, edge.UpdateOperation.delete_points_by_filter(words.filter_of(chosen)))

    def count(self, name: str, chosen: models.Filter | None) -> int:
        with self._lock:
            return self._one(name).shard.count(edge.CountRequest(exact=True, filter=words.filter_of(chosen)))

    def scroll(self, name: str, asked: models.ScrollRequest) -> tuple[list[models.Record], Any]:
        with self._lock:
            found, following = self._one(name).shard.scroll(
                edge.ScrollRequest(
                    offset=asked.offset,
                    limit=asked.limit,
                    filter=words.filter_of(asked.filter),
                    with_payload=bool(asked.with_payload),
                    with_vector=bool(asked.with_vector),
                )
            )
        return [words.record(p) for p in found], following

    def query(self, name: str, asked: models.QueryRequest) -> list[models.ScoredPoint]:
        with self._lock:
            return [words.scored(p) for p in self._one(name).shard.query(words.query(asked))]

    def points(self, name: str) -> list[edge.Record]:
        with self._lock:
            request = edge.ScrollRequest(limit=1_000_000, with_payload=True, with_vector=True)
            return self._one(name).shard.scroll(request)[0]

    def restart(self) -> None:
        with self._lock:
            for one in self.collections.values():
                one.reopen()

    def _one(self, name: str) -> Collection:
        return self.collections[self.aliases.get(name, name)]

    def _update(self, name: str, operation: edge.UpdateOperation) -> None:
        with self._lock:
            shard = self._one(name).shard
            try:
                shard.update(operation)
                shard.flush()
            except Exception as exc:
                raise ValueError(str(exc)) from exc
