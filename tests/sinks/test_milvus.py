"""Milvus Lite, a real engine, through the client that a server gets; killed anywhere, every row is there once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("milvus_lite")


from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Sparse
from embedctl.records import WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.base import Deletable, Scannable, Searchable
from embedctl.sinks.keyed import KeyedSink
from embedctl.sinks.keyed_records import POS, Records
from embedctl.sinks.milvus import open_lite, open_milvus
from embedctl.sinks.milvus_fields import fields_of_plan, milvus_rows
from embedctl.sinks.payload import payloads
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan
from embedctl.testing.sink_contract import KEPT, SinkContract, chunked, output, plan


def opened(folder: Path, spec: JobSpec | None = None) -> KeyedSink:
    return open_lite(f"milvus-lite://{folder}/store.db/docs", LocalStorage(folder / "state"), spec or JobSpec())


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[KeyedSink]:
    one = opened(tmp_path)
    yield one
    one.close()


def rows_of(sink: KeyedSink) -> list[dict]:
    """Everything there, by position and chunk."""
    found = [row for batch in sink.scan(3) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row[POS], row.get("chunk") or 0))


class TestMilvusLite(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[KeyedSink]:
        one = opened(tmp_path)
        yield one
        one.close()

    def held(self, sink: KeyedSink, record: WindowRecord) -> pa.Table:
        first = stores.position_number(record.key, 0)
        mine = [row for row in rows_of(sink) if first <= row[POS] < first + stores.MAX_ROWS]
        table = pa.Table.from_pylist(mine, pa.unify_schemas([b.schema for b in sink.scan()]))
        return table.drop_columns(["nothing"]).append_column("nothing", pa.nulls(len(mine)))

    def lose(self, sink: KeyedSink, record: WindowRecord) -> None:
        sink.delete(list(stores.rows_known(sink._storage, record).ids))

    def expected_kept(self, kept: pa.Table) -> pa.Table:
        """`payload`'s words, lists and structs as JSON text."""
        made = pa.Table.from_pylist(payloads(kept))
        columns = {}
        for name in kept.column_names:
            values = made.column(name).to_pylist()
            if pa.types.is_nested(kept.schema.field(name).type):
                values = [None if v is None else json.dumps(v) for v in [p[name] for p in payloads(kept)]]
            columns[name] = pa.array(values, pa.null() if name == "nothing" else None)
        return pa.table(columns)

    def test_a_window_without_a_ledger_record_is_adopted(self, sink: KeyedSink) -> None:
        """A store cannot tell windows: it is written again, over itself."""
        sink.prepare(plan())
        known, unknown = sink.write(output(0)), sink.write(output(1))
        assert sink.reconcile([known]).adopted == ()
        assert sink.write(output(1)) == unknown
        assert sink.count([known, unknown]) == 8


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
def test_the_first_position_of_an_id_stands_in_any_order(sink: KeyedSink, order: tuple[int, ...]) -> None:
    windows = [replace(output(n), ids=ids) for n, ids in enumerate(["abcd", "befg", "aghi"])]
    sink.prepare(plan())
    for n in (*order, order[0]):
        sink.write(windows[n])
    firsts = {id: n for n in (2, 1, 0) for id in windows[n].ids}
    assert {row["id"]: row[POS] >> stores.ROW_BITS & 3 for row in rows_of(sink)} == firsts
    record = windows[2].record
    after = sink.drop_rows(record, replace(record, revision=1), [0, 1])
    assert (after.units, sink.count([])) == (2, 9)
    assert {row["id"]: row[POS] >> stores.ROW_BITS & 3 for row in rows_of(sink)} == firsts


def test_a_window_done_again_with_other_rows_leaves_nothing_behind(sink: KeyedSink) -> None:
    sink.prepare(plan(JobSpec(chunk="tokens:8")))
    sink.write(chunked(0, ids=["x", "y", "z"]))
    sink.write(chunked(0, ids=["z", "w"]))
    assert [(row["id"], row["chunk"]) for row in rows_of(sink)] == [("z", 0), ("w", 0), ("w", 1)]


def test_delete_takes_all_chunks_of_an_id(sink: KeyedSink) -> None:
    sink.prepare(plan(JobSpec(chunk="tokens:8")))
    sink.write(chunked(0, ids=["x", "y", "z"]))
    assert isinstance(sink, Deletable)
    assert sink.delete(["z", "nobody", "x"]) == 4
    assert [(row["id"], row["chunk"]) for row in rows_of(sink)] == [("y", 0), ("y", 1)]
    assert sink.delete(["z"]) == 0


def test_several_outputs_are_fields_and_are_searched_and_fused(sink: KeyedSink) -> None:
    both = (OutputSpec(name="dense", kind="dense", dim=4), OutputSpec(name="sparse", kind="sparse", dim=30522))
    made = hand_plan(schema=plan().schema, keep=KEPT.column_names, id_column="id", outputs=both)
    sink.prepare(made)
    dense = np.eye(4, dtype=np.float32)
    offsets = np.array([0, 1, 2, 3, 5], dtype=np.int64)
    sparse = Sparse(
        offsets=offsets,
        indices=np.array([7, 9, 8, 7, 30521], np.uint32),
        values=np.array([1, 2, 1, 3, 0.1], np.float32),
    )
    nothing = Sparse(offsets=np.zeros(5, np.int64), indices=sparse.indices[:0], values=sparse.values[:0])
    with pytest.raises(SinkError, match="row '0-0': sparse has no entries"):
        sink.write(replace(output(0), outputs={"dense": dense, "sparse": nothing}))
    hashes = np.array([[1, 2**64 - 1]] * 4, dtype=np.uint64)
    sink.write(replace(output(0), outputs={"dense": dense, "sparse": sparse}, hashes=hashes))
    assert isinstance(sink, Searchable)
    assert isinstance(sink, Scannable)
    asked = Sparse(offsets=np.array([0, 1]), indices=np.array([7], np.uint32), values=np.array([2], np.float32))
    for _ in range(2):  # before and after the index is built
        [hits] = sink.search({"dense": dense[2:3]}, limit=2, where=None)
        assert (hits[0].id, hits[0].chunk, hits[0].score) == ("0-2", None, pytest.approx(1.0, abs=1e-6))
        assert hits[0].kept["name"] == ""
        [hits] = sink.search({"sparse": asked}, limit=9, where=None)
        assert [(h.id, h.score) for h in hits] == [("0-3", pytest.approx(6)), ("0-0", pytest.approx(2))]
        [hits] = sink.search({"dense": dense[:1], "sparse": asked}, limit=1, where=None)
        assert hits[0].id == "0-0"
        [hits] = sink.search({"dense": dense[2:3]}, limit=4, where="flag == true")
        assert {h.id for h in hits} == {"0-0", "0-3"}
        sink.finish(made, [])
    with pytest.raises(UsageError, match="--where"):
        sink.search({"dense": dense[2:3]}, limit=4, where="flag ==== true")
    assert [(o.name, o.kind, o.similarity) for o in sink.contents()] == [
        ("dense", "dense", "cosine"), ("sparse", "sparse", "dot")
    ]  # fmt: skip
    [row] = [r for r in rows_of(sink) if r["id"] == "0-3"]
    assert row["sparse"] == {"indices": [7, 30521], "values": [3, pytest.approx(0.1)]}
    assert row["_hash"] == "0000000000000001ffffffffffffffff"


def test_columns_with_names_that_milvus_does_not_take(sink: KeyedSink) -> None:
    kept = pa.table({"my col": [1, 2, 3, 4], "my_col": ["a", "b", "c", "d"], "größe": [0.5] * 4, "_key": [True] * 4})
    schema = pa.schema([("id", pa.string()), *kept.schema])
    sink.prepare(hand_plan(schema=schema, keep=kept.column_names, id_column="id"))
    sink.write(replace(output(0), kept=kept))
    found = rows_of(sink)
    assert [{name: row[name] for name in kept.column_names} for row in found] == kept.to_pylist()
    [hits] = sink.search({"embedding": np.ones((1, 4), np.float32)}, limit=1, where=None)
    assert hits[0].kept.keys() >= {"my col", "größe"}


def test_nothing_kept(sink: KeyedSink) -> None:
    sink.prepare(hand_plan(id_column="id"))
    sink.write(replace(output(0), kept=KEPT.select([])))
    assert [row["id"] for row in rows_of(sink)] == [f"0-{i}" for i in range(4)]


def test_whole_numbers_are_keys_themselves(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    schema = pa.schema([("id", pa.int64()), *KEPT.schema])
    sink.prepare(hand_plan(schema=schema, keep=KEPT.column_names, id_column="id", resolved={"id_type": "int64"}))
    ids = ["-5", "-1", str(2**63 - 1), "7"]
    sink.write(replace(output(0), ids=ids))
    assert [row["id"] for row in rows_of(sink)] == [int(i) for i in ids]
    assert sink._engine.present([-5, 7, 8]) == {-5, 7}
    assert sink.delete(["-5", "x", "9", str(2**63)]) == 1
    sink.close()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (OutputSpec(name="embedding", kind="dense", dim=4, vector_type="float16"), "Milvus Lite holds float32 only"),
        (OutputSpec(name="embedding", kind="dense", dim=4, vector_type="uint8"), "no place for uint8 vectors"),
        (OutputSpec(name="late", kind="multivector", dim=4), "no place for multivector outputs"),
        (OutputSpec(name="bm25", kind="sparse", dim=9, modifier="idf"), "weighed by idf"),
        (OutputSpec(name="embedding", kind="dense", dim=4, similarity="manhattan"), "no similarity 'manhattan'"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_by_name(sink: KeyedSink, spec: OutputSpec, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sink.prepare(hand_plan(outputs=[spec]))


def test_quantization_is_refused_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--quantization: embedctl makes no quantized index in Milvus"):
        opened(tmp_path, JobSpec(quantization="scalar")).prepare(plan())


def test_another_shape_another_job_and_a_lost_state_are_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.prepare(plan())
    first.write(output(0))
    first.close()
    again = opened(tmp_path)
    wider = hand_plan(outputs=[OutputSpec(name="embedding", kind="dense", dim=5)])
    with pytest.raises(UsageError, match="dim of field embedding is 4, this job needs 5"):
        again.prepare(replace(wider, job="other"))
    with pytest.raises(UsageError, match="holds the vectors of another job"):
        again.prepare(replace(plan(), job="other"))
    with pytest.raises(UsageError, match="its ledger is not in"):
        KeyedSink(again._engine, LocalStorage(tmp_path / "elsewhere"), JobSpec()).prepare(plan())
    again._engine._call("drop_collection")
    with pytest.raises(SinkError, match=r"gone, yet .* says what was written there"):
        again.prepare(plan())
    again.close()


def test_text_past_the_limit_is_named(sink: KeyedSink) -> None:
    sink.prepare(plan())
    name = pa.array(["a", "é" * 40000, "c", "d"])
    kept = KEPT.set_column(KEPT.column_names.index("name"), "name", name)
    with pytest.raises(SinkError, match="row '0-1': 'name' has 80000 bytes, 65535 fit"):
        sink.write(replace(output(0), kept=kept))


def test_addresses_that_are_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for target, words in (
        ("milvus://host", "is not milvus://HOST"),
        ("milvus://host/a/b", "is not milvus://HOST"),
        ("milvus://me:secret@host/a", "MILVUS_TOKEN"),
    ):
        with pytest.raises(UsageError) as caught:
            open_milvus(target, storage, JobSpec())
        assert words in f"{caught.value} {caught.value.hint}"
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="FOLDER/COLLECTION"):
        open_lite("milvus-lite://docs", storage, JobSpec())
    with pytest.raises(UsageError, match="one process at a time"):
        open_lite("milvus-lite:///a/b", storage, JobSpec(workers=2))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="is no Milvus Lite folder"):
        open_lite(f"milvus-lite://{tmp_path}/full/docs", storage, JobSpec()).prepare(plan())


@pytest.mark.parametrize(
    ("kind", "field", "dim"),
    [("float16", "FLOAT16_VECTOR", 12), ("int8", "INT8_VECTOR", 12), ("binary", "BINARY_VECTOR", 16),
     ("ubinary", "BINARY_VECTOR", 16)],
)  # fmt: skip
def test_types_that_only_a_server_holds(kind: str, field: str, dim: int) -> None:
    """Not sent anywhere: what the client is given, and what it makes of it."""
    from pymilvus.client.entity_helper import pack_field_value_to_field_data
    from pymilvus.grpc_gen import schema_pb2

    made = hand_plan(outputs=[OutputSpec(name="embedding", kind="dense", dim=12, vector_type=kind)])
    one = next(f for f in fields_of_plan(made, JobSpec(), lite=False) if f.spec)
    assert (one.kind, one.dim, one.params) == (field, dim, {"dim": dim})
    floats = np.random.default_rng(1).standard_normal((1, 12), dtype=np.float32)
    packed = np.packbits(floats > 0, axis=1)
    stored = {
        "float16": floats.astype(np.float16), "int8": (floats * 30).astype(np.int8), "ubinary": packed,
        "binary": (packed ^ 0x80).view(np.int8),
    }[kind]  # fmt: skip
    records = Records(keys=["k"], fields=[{"id": "k"}], outputs={"embedding": stored})
    [row] = milvus_rows(records, [one], "name")
    cache: dict = {}
    data = schema_pb2.FieldData(type=one.type, field_name="embedding")
    pack_field_value_to_field_data(row["embedding"], data, {"name": "embedding", "params": {"dim": dim}}, cache)
    assert next(iter(cache.values())) == [(packed if "binary" in kind else stored).tobytes()]
