"""What an index of Elasticsearch or OpenSearch gives back: by search, and whole. Against the rig."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("urllib3")
pytest.importorskip("orjson")

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec, Sparse
from embedctl.sinks import stores
from embedctl.sinks.base import Scannable, Searchable
from embedctl.sinks.elastic import open_elastic
from embedctl.sinks.keyed import KeyedSink
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan
from embedctl.testing.sink_contract import KEPT, output, plan
from tests.rig.elastic_front import ElasticFront


@pytest.fixture(params=[False, True], ids=["elasticsearch", "opensearch"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyedSink]:
    rig = ElasticFront(opensearch=request.param)
    one = open_elastic(rig.uri("docs"), LocalStorage(tmp_path / "state"), JobSpec(create=True))
    yield one
    one.close()
    rig.stop()


def rows_of(sink: KeyedSink) -> list[dict]:
    return [row for batch in sink.scan(3) for row in batch.to_pylist()]


def test_several_outputs_are_searched_and_fused(sink: KeyedSink) -> None:
    both = (OutputSpec(name="dense", kind="dense", dim=4), OutputSpec(name="sparse", kind="sparse", dim=30522))
    made = hand_plan(schema=plan().schema, keep=KEPT.column_names, id_column="id", outputs=both)
    sink.prepare(made)
    dense = np.eye(4, dtype=np.float32)
    sparse = Sparse(
        offsets=np.array([0, 1, 2, 2, 4]), indices=np.array([7, 9, 7, 30521], np.uint32),
        values=np.array([1, 2, 3, 0.1], np.float32),
    )  # fmt: skip
    hashes = np.array([[1, 2**64 - 1]] * 4, dtype=np.uint64)
    sink.write(replace(output(0), outputs={"dense": dense, "sparse": sparse}, hashes=hashes))
    sink.finish(made, [])
    assert isinstance(sink, Searchable)
    assert isinstance(sink, Scannable)
    asked = Sparse(offsets=np.array([0, 1]), indices=np.array([7], np.uint32), values=np.array([2], np.float32))
    [hits] = sink.search({"dense": dense[2:3]}, limit=2, where=None)
    assert (hits[0].id, hits[0].chunk, hits[0].score) == ("0-2", None, pytest.approx(1.0))
    assert hits[0].kept["meta"] == {"a": None, "b": []}
    assert not {"dense", "sparse", "_job"} & hits[0].kept.keys()
    [hits] = sink.search({"sparse": asked}, limit=9, where=None)
    assert [(h.id, h.score) for h in hits] == [("0-3", pytest.approx(6)), ("0-0", pytest.approx(2))]
    [hits] = sink.search({"dense": dense[:1], "sparse": asked}, limit=1, where=None)
    assert hits[0].id == "0-0"
    for where in ("flag:true", '{"term": {"flag": true}}'):
        [hits] = sink.search({"dense": dense[2:3]}, limit=4, where=where)
        assert {h.id for h in hits} == {"0-0", "0-3"}
    for where in ("flag:", '{"term"', '{"trem": {}}'):
        with pytest.raises(UsageError, match="--where"):
            sink.search({"dense": dense[2:3]}, limit=4, where=where)
    with pytest.raises(UsageError, match="no output 'late' there; it has: dense, sparse"):
        sink.search({"late": dense}, limit=4, where=None)
    assert [(o.name, o.kind) for o in sink.contents()] == [("dense", "dense"), ("sparse", "sparse")]
    row = rows_of(sink)[3]
    assert row["dense"] == [0, 0, 0, 1]
    assert row["sparse"] == {"indices": [7, 30521], "values": [3, pytest.approx(0.1)]}
    assert (row["big"], row["_hash"]) == (None, "0000000000000001ffffffffffffffff")


@pytest.mark.parametrize("kind", ["float16", "int8", "binary", "ubinary"])
def test_stored_types(sink: KeyedSink, kind: str) -> None:
    dim = 16
    made = hand_plan(id_column="id", outputs=[OutputSpec(name="embedding", kind="dense", dim=dim, vector_type=kind)])
    sink.prepare(made)
    floats = np.random.default_rng(1).standard_normal((4, dim), dtype=np.float32)
    packed = np.packbits(floats > 0, axis=1)
    stored = {
        "float16": floats.astype(np.float16), "int8": (floats * 30).astype(np.int8), "ubinary": packed,
        "binary": (packed ^ 0x80).view(np.int8),
    }[kind]  # fmt: skip
    sink.write(replace(output(0), kept=KEPT.select([]), outputs={"embedding": stored}))
    [batch] = sink.scan()
    found = np.stack(batch.column("embedding").to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(found, packed if kind == "binary" else stored)
    if kind == "int8":
        with pytest.raises(UsageError, match="int8 vectors cannot be searched"):
            sink.search({"embedding": floats}, limit=1, where=None)
    else:
        for exact in (False, True):
            hits = sink.search({"embedding": floats}, limit=1, where=None, exact=exact)
            assert [h[0].id for h in hits] == ["0-0", "0-1", "0-2", "0-3"]
            assert all(h[0].score == pytest.approx(1, abs=1e-3) for h in hits)


@pytest.mark.parametrize(
    ("similarity", "best", "other"), [("cosine", 1, 0), ("dot", 4, -2), ("euclidean", 0, -(5**0.5))]
)
@pytest.mark.parametrize("exact", [False, True])
def test_scores_are_the_similarity_itself(
    sink: KeyedSink, similarity: str, best: float, other: float, exact: bool
) -> None:
    spec = OutputSpec(name="embedding", kind="dense", dim=2, similarity=similarity)
    sink.prepare(hand_plan(id_column="id", outputs=[spec]))
    vectors = np.array([[2, 0], [-1, 0] if similarity == "dot" else [0, 1]], dtype=np.float32)
    sink.write(replace(output(0, rows=2), kept=KEPT.select([]), outputs={"embedding": vectors}))
    sink.finish(sink.plan, [])
    [hits] = sink.search({"embedding": vectors[:1]}, limit=2, where=None, exact=exact)
    assert [(h.id, h.score) for h in hits] == [("0-0", pytest.approx(best)), ("0-1", pytest.approx(other))]


def test_ids_of_every_kind(sink: KeyedSink) -> None:
    ids = ["", "é" * 300, "a\u2028b\u0000", "18446744073709551616"]
    sink.prepare(hand_plan(id_column="id"))
    sink.write(replace(output(0), ids=ids, kept=KEPT.select([])))
    keys = {ids[2], ids[3], str(stores.point_id("")), str(stores.point_id(ids[1]))}
    assert sink._engine.present([*keys, ids[1]]) == keys
    assert [row["id"] for row in rows_of(sink)] == ids
    sink._engine._durable = False  # as for an index that no plan was checked against
    assert sink.delete(ids) == 4
