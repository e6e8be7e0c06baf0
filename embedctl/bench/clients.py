"""The bulk loads that the stores' own clients offer: the bar for the sinks. Each gives the seconds it took.

They keep what they say as the sinks do: on the disk, or applied and answered, after each window; points are named by
their ids, so that a load may be done again. They do without what resuming needs: marks, their indexes, conditions.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from embedctl.outputs import SINGLE
from embedctl.records import WindowOutput

EDGE_BATCH = 1024


def lancedb(uri: str, windows: Sequence[WindowOutput]) -> float:
    """`table.add` of Arrow tables; each version's files flushed, which LanceDB leaves to the system."""
    import lancedb as client

    path = Path(uri.partition("://")[2])
    table = client.connect(str(path.parent)).create_table(path.name, schema=_table(windows[0]).schema)
    seen: set[Path] = set()
    began = time.perf_counter()
    for window in windows:
        table.add(_table(window))
        seen |= _flushed(path.parent, seen)
    return time.perf_counter() - began


def _table(window: WindowOutput) -> pa.Table:
    kept = dict(zip(window.kept.column_names, window.kept.columns, strict=True))
    return pa.table({"id": window.ids, **kept, SINGLE: _fixed(window)})


def _flushed(folder: Path, seen: Collection[Path]) -> set[Path]:
    """Files new since `seen`, now on the disk, as are their folders."""
    new = {path for path in folder.rglob("*") if path.is_file() and path not in seen}
    for path in [*new, *{path.parent for path in new}]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return new


def _fixed(window: WindowOutput) -> Any:
    vectors = window.outputs[SINGLE]
    assert isinstance(vectors, np.ndarray)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def postgresql(uri: str, windows: Sequence[WindowOutput]) -> float:
    """Binary COPY of a stream made beforehand, a transaction a window: the server's own pace."""
    import psycopg

    from embedctl.sinks.pgvector_wire import HEADER, TRAILER, row_bytes, sql_type, texts

    parts, table = urlsplit(uri), uri.partition("table=")[2]
    streams, width = [], 0
    for window in windows:
        vectors = window.outputs[SINGLE]
        assert isinstance(vectors, np.ndarray)
        kept = [sql_type(c.type).fields(c.combine_chunks()) for c in window.kept.columns]
        width = vectors.shape[1]
        streams.append(HEADER + row_bytes([texts(window.ids), *kept, _vectors(vectors)]) + TRAILER)
    with psycopg.connect(parts._replace(query="").geturl(), autocommit=True) as connection:
        columns = f"id text PRIMARY KEY, text text, n bigint, lang text, embedding vector({width})"
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f"CREATE TABLE {table} ({columns})")
        began = time.perf_counter()
        for stream in streams:
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(stream)
        return time.perf_counter() - began


def _vectors(vectors: np.ndarray) -> list[bytes]:
    from embedctl.outputs import OutputSpec
    from embedctl.sinks.pgvector_types import fields, typed

    return fields(vectors, typed(OutputSpec(name=SINGLE, kind="dense", dim=vectors.shape[1])), 0)


def edge(uri: str, windows: Sequence[WindowOutput]) -> float:
    """`EdgeShard.update` with points, flushed after each window."""
    import qdrant_edge as client

    folder = Path(uri.partition("://")[2])
    folder.mkdir(parents=True)
    first = windows[0].outputs[SINGLE]
    assert isinstance(first, np.ndarray)
    size = client.EdgeVectorParams(size=first.shape[1], distance=client.Distance.Cosine)
    shard = client.EdgeShard.create(str(folder), client.EdgeConfig(vectors=size))
    began = time.perf_counter()
    for window in windows:
        for begin in range(0, len(window.ids), EDGE_BATCH):
            rows = _payloads(window, begin, begin + EDGE_BATCH)
            points = [client.Point(id, vector.tolist(), payload) for id, vector, payload in rows]
            shard.update(client.UpdateOperation.upsert_points(points))
        shard.flush()
    seconds = time.perf_counter() - began
    shard.close()
    return seconds


def qdrant(uri: str, windows: Sequence[WindowOutput]) -> float:
    """`upload_points` over gRPC, waited for, in batches of 256 by four workers' streams of the client."""
    from qdrant_client import QdrantClient, models

    parts = urlsplit(uri)
    collection = parts.path.strip("/")
    first = windows[0].outputs[SINGLE]
    assert isinstance(first, np.ndarray)
    client = QdrantClient(
        host=parts.hostname, grpc_port=parts.port or 6334, prefer_grpc=True, check_compatibility=False, timeout=60
    )
    vectors = models.VectorParams(size=first.shape[1], distance=models.Distance.COSINE)
    client.create_collection(collection, vectors_config=vectors)
    began = time.perf_counter()
    for window in windows:
        rows = _payloads(window, 0, len(window.ids))
        points = [models.PointStruct(id=id, vector=vector.tolist(), payload=payload) for id, vector, payload in rows]
        client.upload_points(collection, points, batch_size=256, wait=True)
    seconds = time.perf_counter() - began
    client.close()
    return seconds


def _payloads(window: WindowOutput, begin: int, end: int) -> list[tuple[str, np.ndarray, dict[str, Any]]]:
    """Points are named by uuid5 of their ids, as Qdrant's own migration does where ids are text."""
    vectors = window.outputs[SINGLE]
    assert isinstance(vectors, np.ndarray)
    kept = window.kept.slice(begin, end - begin).to_pylist()
    return [
        (str(uuid.uuid5(uuid.NAMESPACE_URL, name)), v, {"id": name, **row})
        for v, name, row in zip(vectors[begin:end], window.ids[begin:end], kept, strict=True)
    ]
