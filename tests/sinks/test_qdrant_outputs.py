"""Named, sparse and multivector outputs over the embedded engine, and over the rig by gRPC and REST."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("qdrant_edge")
pytest.importorskip("qdrant_client")

from embedctl.errors import UsageError
from embedctl.outputs import Multivector, OutputSpec, Sparse, Values, take
from embedctl.sinks.base import Countable, Deletable, Remembering, Scannable, Searchable
from embedctl.sinks.qdrant import QdrantSink
from tests.sinks.qdrant_kit import ALL, DIM, KINDS, MANY, SPARSE, Place, held, kept, place, plan, window

COUNT = 60
IDS = [f"r{i}" for i in range(COUNT)]


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place(request.param, tmp_path) as found:
        yield found


def loaded(there: Place, **asked: object) -> QdrantSink:
    sink = there.sink(**asked)
    sink.prepare(plan())
    record = sink.write(window(1, IDS))
    sink.finish(plan(), [record])
    assert sink.count([record]) == sink.total() == COUNT
    return sink


def test_the_sink_is_all_that_a_store_can_be(there: Place) -> None:
    sink = there.sink()
    for protocol in (Searchable, Scannable, Deletable, Countable, Remembering):
        assert isinstance(sink, protocol)


def test_each_output_comes_back_as_it_was(there: Place) -> None:
    sink, written = loaded(there), window(1, IDS)
    found = held(sink)
    assert found.keys() == set(IDS)
    dense, sparse, many = (written.outputs[o.name] for o in ALL)
    assert isinstance(dense, np.ndarray)
    assert isinstance(sparse, Sparse)
    assert isinstance(many, Multivector)
    for i, id in enumerate(IDS):
        vectors, payload = found[id].vectors, found[id].payload
        np.testing.assert_array_equal(np.float32(vectors["dense"]), dense[i])
        begin, end = sparse.offsets[i : i + 2]
        assert list(vectors["sparse"][0]) == sparse.indices[begin:end].tolist()
        np.testing.assert_array_equal(np.float32(vectors["sparse"][1]), sparse.values[begin:end])
        begin, end = many.offsets[i : i + 2]
        np.testing.assert_array_equal(np.float16(vectors["tokens"]), many.vectors[begin:end])
        assert payload["_hash"] == f"{2 * i:016x}{2 * i + 1:016x}"


def test_a_search_by_each_output_finds_the_row_itself(there: Place) -> None:
    sink, written = loaded(there), window(1, IDS)
    rows = np.array([3, 41, 7])
    for one in ALL:
        query = {one.name: take(written.outputs[one.name], rows)}
        hits = sink.search(query, limit=5, where=None, exact=True)
        assert all(hits)
        scores = [[h.score for h in found] for found in hits]
        assert all(found == sorted(found, reverse=True) for found in scores)
        if one.kind != "sparse":  # whose weights depend on how often an index occurs
            best = np.argsort(-similarities(written.outputs[one.name])[rows], axis=1)[:, :5]
            assert [[h.id for h in found] for found in hits] == [[f"r{i}" for i in row] for row in best.tolist()]
        else:
            assert [found[0].id for found in hits] == ["r3", "r41", "r7"]


def similarities(values: Values) -> np.ndarray:
    """All against all: dot products, or for multivectors the sum of each token's greatest (MaxSim)."""
    if isinstance(values, np.ndarray):
        return values @ values.T
    assert isinstance(values, Multivector)
    texts = [take(values, np.array([i])).vectors.astype(np.float32) for i in range(len(values))]
    return np.array([[(a @ b.T).max(axis=1).sum() for b in texts] for a in texts])


def test_several_outputs_are_fused_by_reciprocal_rank(there: Place) -> None:
    sink, written = loaded(there), window(1, IDS)
    row = np.array([11])
    query = {o.name: take(written.outputs[o.name], row) for o in ALL}
    alone = [[h.id for h in sink.search({n: v}, limit=COUNT, where=None, exact=True)[0]] for n, v in query.items()]
    assert len(alone[1]) < COUNT, "a sparse query finds only what shares an index"
    expected: dict[str, float] = {}
    for ranking in alone:
        for rank, id in enumerate(ranking):
            expected[id] = expected.get(id, 0.0) + 1 / (60 + rank)
    found = sink.search(query, limit=10, where=None, exact=True)[0]
    assert found[0].id == "r11"
    scores = [h.score for h in found]
    assert scores == sorted(scores, reverse=True)
    assert [round(s, 3) for s in scores] == [round(s, 3) for s in sorted(expected.values(), reverse=True)[:10]]


WHERE = [
    "lang = 'en'", "lang <> 'en'", "lang IS NULL", "lang IS NOT NULL AND n < 20", "n IN (1, 2, 3)",
    "n = 1152921504606846976 + 7", "n BETWEEN 5 AND 9 OR lang = 'de'", "NOT (lang = 'en' OR n > 30)",
    "list_contains(tags, 't2')", '"at" >= TIMESTAMPTZ \'2023-12-01 00:00:00+00\'', "n NOT IN (4, 5) AND lang = 'de'",
    "5 < n AND n <= 12.5", "id = 'r9'", "NOT (n BETWEEN 5 AND 1000)", "lang NOT IN ('en')",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["edge", "grpc"])
def test_sql_means_what_it_means_elsewhere(kind: str, tmp_path: Path) -> None:
    table = kept(COUNT).append_column("id", pa.array(IDS))
    with place(kind, tmp_path) as there, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", table)
        sink = loaded(there)
        query = {"dense": np.ones((1, DIM), dtype=np.float32)}
        for where in WHERE:
            expected = {r[0] for r in connection.execute(f"SELECT id FROM rows WHERE {where}").fetchall()}
            found = {h.id for h in sink.search(query, limit=COUNT, where=where)[0]}
            assert found == expected, where
        own = '{"must": [{"key": "lang", "match": {"any": ["de"]}}]}'
        assert {h.kept["lang"] for h in sink.search(query, limit=COUNT, where=own)[0]} == {"de"}
        if kind != "edge":
            return
        for where, words in (
            ("lang < 'x'", "text has no order"),
            ("lang LIKE 'e%'", "is not known to this filter"),
            ('{"must": [{"bad": 1}]}', "not a"),
            ("lang =", "syntax error"),
            ("NOT ok", "the embedded engine cannot compare with false"),
        ):
            with pytest.raises(UsageError, match=words):
                sink.search(query, limit=1, where=where)


def test_a_query_for_what_is_not_there(there: Place) -> None:
    sink = loaded(there)
    with pytest.raises(UsageError, match="has no vector 'colour'; it has dense, sparse, tokens"):
        sink.search({"colour": np.ones((1, DIM), np.float32)}, limit=1, where=None)


def test_hits_say_what_was_kept(there: Place) -> None:
    sink = loaded(there)
    hit = sink.search({"dense": np.asarray(window(1, IDS).outputs["dense"])[:1]}, limit=1, where="id = 'r7'")[0][0]
    assert (hit.id, hit.chunk) == ("r7", None)
    assert hit.kept == {
        "n": 2**60 + 7,
        "lang": "de",
        "tags": ["t3", "all"],
        "at": "2023-11-21T22:13:20.000000Z",
        "ok": False,
    }


def test_everything_is_read_back_in_columns(there: Place) -> None:
    sink, written = loaded(there), window(1, IDS)
    assert list(sink.contents()) == list(ALL)
    batches = list(sink.scan(batch_rows=7))
    assert len(batches) == 9
    table = pa.Table.from_batches(batches)
    assert table.column_names == [
        "id",
        "at",
        "lang",
        "n",
        "ok",
        "tags",
        "_job",
        "_pos",
        "_hash",
        *(o.name for o in ALL),
    ]
    order = pa.array([IDS.index(i) for i in table["id"].to_pylist()])
    assert sorted(order.to_pylist()) == list(range(COUNT))
    assert table["n"].to_pylist() == kept(COUNT)["n"].take(order).to_pylist()
    assert table["tags"].to_pylist() == kept(COUNT)["tags"].take(order).to_pylist()
    assert table.schema.field("dense").type == pa.list_(pa.float32(), DIM)
    assert table.schema.field("sparse").type == pa.struct(
        [("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32()))]
    )
    assert table.schema.field("tokens").type == pa.list_(pa.list_(pa.float16(), MANY.dim))
    flat = table["dense"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
    np.testing.assert_array_equal(flat, np.asarray(written.outputs["dense"])[order.to_numpy()])


def test_rows_are_taken_out_by_id(there: Place) -> None:
    sink = loaded(there)
    assert sink.delete(["r3", "r5", "nobody", "r59"]) == 3
    assert sink.delete(["r3"]) == 0
    assert held(sink).keys() == set(IDS) - {"r3", "r5", "r59"}


def test_units_are_told_without_their_vectors(there: Place) -> None:
    units = pa.Table.from_batches(loaded(there).units_there())
    assert units.schema == pa.schema(
        [("id", pa.string()), ("chunk", pa.int32()), ("_pos", pa.int64()), ("_hash", pa.string())]
    )
    units = units.sort_by("_pos")
    assert units["id"].to_pylist() == IDS
    assert units["_hash"][1].as_py() == f"{2:016x}{3:016x}"
    assert units["chunk"].null_count == COUNT


def test_what_is_remembered_stays(there: Place) -> None:
    sink = loaded(there)
    assert sink.remembered() is None
    sink.remember("a plan " * 1000)
    sink.remember("another \u00e9\udcff")
    again = there.sink()
    if there.kind != "edge":
        assert again.remembered() == "another \u00e9\udcff"
    assert sink.remembered() == "another \u00e9\udcff"
    assert sink._engine.metadata()["embedctl_job"] == plan().job


def test_one_sparse_output_is_named(there: Place) -> None:
    alone = (replace(SPARSE, name="embedding"),)
    sink = there.sink()
    sink.prepare(plan(alone))
    sink.write(window(1, IDS, alone))
    assert set(held(sink)["r1"].vectors) == {"embedding"}
    assert (
        sink.search(
            {"embedding": take(window(1, IDS, alone).outputs["embedding"], np.array([9]))}, limit=1, where=None
        )[0][0].id
        == "r9"
    )


@pytest.mark.parametrize("kind", ["scalar", "binary", "product"])
def test_quantized_collections_rescore(there: Place, kind: str) -> None:
    outputs = (OutputSpec(name="embedding", kind="dense", dim=64),)
    sink = there.sink(quantization=kind, on_disk=False)
    sink.prepare(plan(outputs))
    record = sink.write(window(1, IDS, outputs))
    sink.finish(plan(), [record])
    layout = sink._engine.layout()
    assert layout is not None
    assert layout[""].quantization == kind
    wanted = np.asarray(window(1, IDS, outputs).outputs["embedding"])
    found = sink.search({"embedding": wanted}, limit=1, where=None)
    assert [h[0].id for h in found] == IDS
    sink.close()
    other = there.sink(quantization="scalar" if kind != "scalar" else "binary")
    with pytest.raises(UsageError, match=f"quantization {kind}, asked for"):
        other.prepare(plan(outputs))


def test_eight_bit_vectors_are_held_as_they_are(there: Place) -> None:
    outputs = (OutputSpec(name="embedding", kind="dense", dim=DIM, vector_type="uint8"),)
    ranges = [[-1.0] * DIM, [1.0] * DIM]
    made = replace(plan(outputs, vector_type="uint8"), int8_ranges={"embedding": ranges})
    sink = there.sink(vector_type="uint8")
    sink.prepare(made)
    levels = np.random.default_rng(3).integers(0, 256, (COUNT, DIM)).astype(np.uint8)
    sink.write(replace(window(1, IDS, outputs), outputs={"embedding": levels}))
    assert sink._engine.layout()[""].datatype == "uint8"
    np.testing.assert_array_equal([held(sink)[i].vectors[""] for i in IDS], levels)
    asked = (levels + 0.5) * 2 / 255 - 1
    assert [h[0].id for h in sink.search({"embedding": asked.astype(np.float32)}, limit=1, where=None)] == IDS
    column = pa.Table.from_batches(sink.scan())["embedding"]
    assert column.type == pa.list_(pa.uint8(), DIM)
