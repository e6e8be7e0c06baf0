"""Sinks over each engine, windows of several outputs, and what a collection holds: shared by the Qdrant tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.outputs import Multivector, OutputSpec, Sparse, Values
from embedctl.plan import Plan
from embedctl.records import Cursor, WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import qdrant_server
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_address import parse
from embedctl.sinks.qdrant_edge import EdgeEngine
from embedctl.sinks.qdrant_engine import Record
from embedctl.sinks.qdrant_server import ServerEngine
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan
from tests.rig.engine import Engine
from tests.rig.faults import Faults
from tests.rig.grpc_front import GrpcFront
from tests.rig.rest_front import RestFront

DIM, TOKEN_DIM = 8, 4
DENSE = OutputSpec(name="dense", kind="dense", dim=DIM, similarity="dot")
SPARSE = OutputSpec(name="sparse", kind="sparse", dim=1000, similarity="dot", modifier="idf")
MANY = OutputSpec(name="tokens", kind="multivector", dim=TOKEN_DIM, vector_type="float16", similarity="dot")
ALL = (DENSE, SPARSE, MANY)
KINDS = ("edge", "grpc", "rest")


@dataclass(slots=True)
class Place:
    """Where collections are made: a folder for the embedded engine, a rig for a server."""

    kind: str
    folder: Path
    rig: Engine | None = None
    faults: Faults = field(default_factory=Faults)
    uri_of: Callable[[str], str] = lambda name: name
    made: list[QdrantSink] = field(default_factory=list)

    def sink(self, name: str = "docs", state: str = "state", **asked: Any) -> QdrantSink:
        spec = JobSpec(create=True, **asked)
        storage = LocalStorage(self.folder / state)
        engine = EdgeEngine(self.folder / name) if self.kind == "edge" else ServerEngine(parse(self.uri_of(name)))
        self.made.append(QdrantSink(engine, storage, spec))
        return self.made[-1]


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Place]:
    if kind == "edge":
        found, stop = Place(kind=kind, folder=folder), lambda: None
    else:
        faults = Faults()
        rig = Engine(folder / "server")
        front = (GrpcFront if kind == "grpc" else RestFront)(rig, faults)
        found, stop = Place(kind=kind, folder=folder, rig=rig, faults=faults, uri_of=front.uri), front.stop
    before, qdrant_server.POLL_S = qdrant_server.POLL_S, 0.01
    try:
        yield found
    finally:
        qdrant_server.POLL_S = before
        for sink in found.made:
            sink.close()
        stop()


def plan(outputs: Sequence[OutputSpec] = ALL, **spec: Any) -> Plan:
    keep = ("n", "lang", "tags", "at", "ok")
    return hand_plan(JobSpec(**spec), id_column="id", keep=keep, resolved={"threads": 1}, outputs=outputs)


def values(outputs: Sequence[OutputSpec], count: int, seed: int) -> dict[str, Values]:
    chance = np.random.default_rng(seed)
    made: dict[str, Values] = {}
    for one in outputs:
        if one.kind == "sparse":
            indices = [np.sort(chance.choice(one.dim, 5, replace=False)).astype(np.uint32) for _ in range(count)]
            made[one.name] = Sparse(
                offsets=np.arange(count + 1, dtype=np.int64) * 5,
                indices=np.concatenate(indices or [np.zeros(0, np.uint32)]),
                values=chance.uniform(0.1, 2.0, 5 * count).astype(np.float32),
            )
        elif one.kind == "multivector":
            lengths = chance.integers(1, 6, count)
            vectors = chance.standard_normal((int(lengths.sum()), one.dim)).astype(np.float16)
            offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            made[one.name] = Multivector(offsets=offsets, vectors=vectors)
        else:
            made[one.name] = chance.standard_normal((count, one.dim)).astype(one.vector_type)
    return made


def kept(count: int, first: int = 0) -> pa.Table:
    rows = range(first, first + count)
    return pa.table(
        {
            "n": pa.array([2**60 + i if i % 7 == 0 else i for i in rows], pa.int64()),
            "lang": pa.array([("en", "de", None)[i % 3] for i in rows], pa.string()),
            "tags": pa.array([[f"t{i % 4}", "all"] if i % 5 else None for i in rows], pa.list_(pa.string())),
            "at": pa.array([1_700_000_000_000_000 + i * 86_400_000_000 for i in rows], pa.timestamp("us", "UTC")),
            "ok": pa.array([(True, False, None)[i % 3] for i in rows], pa.bool_()),
        }
    )


def window(
    number: int, ids: Sequence[str], outputs: Sequence[OutputSpec] = ALL, *, generation: int = 1, first: int = 0
) -> WindowOutput:
    """A window of whole documents. Vectors are drawn from its number, kept cells from `first` on."""
    cursor = Cursor(segment=0, position=0)
    record = WindowRecord(
        key=WindowKey(generation=generation, slice=0, window=number), begin=cursor, end=cursor, last=False, books=(),
        units=len(ids), tokens=0, padded_tokens=0, truncated=0,
    )  # fmt: skip
    return WindowOutput(
        record=record,
        ids=list(ids),
        positions=np.arange(len(ids), dtype=np.int64),
        outputs=values(outputs, len(ids), number),
        kept=kept(len(ids), first),
        token_count=np.ones(len(ids), dtype=np.int64),
        truncated=np.zeros(len(ids), dtype=bool),
        chunk=None,
        char_start=None,
        char_end=None,
        dead=(),
        hashes=np.arange(2 * len(ids), dtype=np.uint64).reshape(-1, 2),
    )


def held(sink: QdrantSink) -> dict[str, Record]:
    """All points, by the `id` in their payload."""
    records, after = sink._engine.scroll(None, 10_000, vectors=True)
    assert after is None
    return {r.payload["id"]: r for r in records}
