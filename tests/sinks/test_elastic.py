"""The Elasticsearch and OpenSearch sink against a rig of our own, no real server: the wire format and faults."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("urllib3")
pytest.importorskip("orjson")

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec
from embedctl.records import WindowRecord
from embedctl.sinks import elastic_bulk, stores
from embedctl.sinks.base import Deletable
from embedctl.sinks.elastic import open_elastic
from embedctl.sinks.keyed import KeyedSink
from embedctl.sinks.keyed_records import POS
from embedctl.sinks.payload import payloads
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan
from embedctl.testing.sink_contract import SinkContract, chunked, output, plan
from tests.rig.elastic_front import ElasticFront

MADE = JobSpec(create=True)


@pytest.fixture(params=[False, True], ids=["elasticsearch", "opensearch"])
def rig(request: pytest.FixtureRequest) -> Iterator[ElasticFront]:
    one = ElasticFront(opensearch=request.param)
    yield one
    one.stop()


def opened(rig: ElasticFront, folder: Path, spec: JobSpec = MADE) -> KeyedSink:
    return open_elastic(rig.uri("docs"), LocalStorage(folder / "state"), spec)


@pytest.fixture
def sink(rig: ElasticFront, tmp_path: Path) -> Iterator[KeyedSink]:
    one = opened(rig, tmp_path)
    yield one
    one.close()


def rows_of(sink: KeyedSink) -> list[dict]:
    return [row for batch in sink.scan(3) for row in batch.to_pylist()]


class TestElastic(SinkContract):
    @pytest.fixture
    def sink(self, rig: ElasticFront, tmp_path: Path) -> Iterator[KeyedSink]:
        self.rig = rig
        one = opened(rig, tmp_path)
        yield one
        one.close()

    def held(self, sink: KeyedSink, record: WindowRecord) -> pa.Table:
        """As the documents say, in `payload`'s words."""
        first = stores.position_number(record.key, 0)
        mine = [s for s in self.rig.sources("docs").values() if first <= s[POS] < first + stores.MAX_ROWS]
        return pa.Table.from_pylist(sorted(mine, key=lambda s: (s[POS], s.get("chunk", 0))))

    def lose(self, sink: KeyedSink, record: WindowRecord) -> None:
        sink.delete(list(stores.rows_known(sink._storage, record).ids))

    def expected_kept(self, kept: pa.Table) -> pa.Table:
        return pa.Table.from_pylist(payloads(kept))

    def test_a_window_without_a_ledger_record_is_adopted(self, sink: KeyedSink) -> None:
        """A store cannot tell windows: it is written again, over itself."""
        sink.prepare(plan())
        known, unknown = sink.write(output(0)), sink.write(output(1))
        assert sink.reconcile([known]).adopted == ()
        assert sink.write(output(1)) == unknown
        assert sink.count([known, unknown]) == 8


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
def test_the_first_position_of_an_id_stands_in_any_order(
    sink: KeyedSink, rig: ElasticFront, order: tuple[int, ...]
) -> None:
    windows = [replace(output(n), ids=ids) for n, ids in enumerate(["abcd", "befg", "aghi"])]
    sink.prepare(plan())
    for n in (*order, order[0]):
        sink.write(windows[n])
    firsts = {id: n for n in (2, 1, 0) for id in windows[n].ids}
    record = windows[2].record
    for _ in range(2):  # before and after the losers are taken out
        assert {id: s[POS] >> stores.ROW_BITS & 3 for id, s in rig.sources("docs").items()} == firsts
        after = sink.drop_rows(record, replace(record, revision=1), [0, 1])
    assert (after.units, sink.count([])) == (2, 9)


def test_writers_that_race_for_the_same_ids(rig: ElasticFront, tmp_path: Path) -> None:
    windows = [replace(output(n), ids=list("abcd")) for n in range(8)]
    sinks = [opened(rig, tmp_path / str(n)) for n in range(8)]
    for sink in sinks:
        sink._check_owner = lambda plan: None  # each has a state folder of its own here
        sink.prepare(plan())
    threads = [threading.Thread(target=s.write, args=[w]) for s, w in zip(sinks, reversed(windows), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {s[POS] >> stores.ROW_BITS & 15 for s in rig.sources("docs").values()} == {0}
    for sink in sinks:
        sink.close()


def test_a_window_done_again_with_other_rows_and_delete(sink: KeyedSink) -> None:
    sink.prepare(plan(JobSpec(chunk="tokens:8")))
    sink.write(chunked(0, ids=["x", "y", "z"]))
    sink.write(chunked(0, ids=["z", "w", "v"]))
    told = [(row["id"], row["chunk"]) for row in rows_of(sink)]
    assert told == [("z", 0), ("w", 0), ("w", 1), ("v", 0), ("v", 1), ("v", 2)]
    assert isinstance(sink, Deletable)
    assert sink.delete(["v", "nobody", "z"]) == 4
    assert [(row["id"], row["chunk"]) for row in rows_of(sink)] == [("w", 0), ("w", 1)]
    assert sink.total() == 2


def test_settings_are_put_off_while_it_loads_and_come_back(rig: ElasticFront, tmp_path: Path) -> None:
    sink = opened(rig, tmp_path)
    sink.prepare(plan())
    index = rig.indexes["docs"]
    index.settings |= {"refresh_interval": "7s", "number_of_replicas": "2"}
    sink.write(output(0))
    off = {"refresh_interval": "-1", "number_of_replicas": "0"}
    assert {k: index.settings[k] for k in off} == off
    # killed here: another run finds them noted, and puts them back when it fails
    again = opened(rig, tmp_path)
    again.prepare(plan())
    again.write(output(1))
    again.close()
    assert {k: index.settings[k] for k in off} == {"refresh_interval": "7s", "number_of_replicas": "2"}
    last = opened(rig, tmp_path)
    last.prepare(plan())
    last.write(output(2))
    assert index.settings["refresh_interval"] == "-1"
    last.finish(plan(), [])
    assert {k: index.settings[k] for k in off} == {"refresh_interval": "7s", "number_of_replicas": "2"}
    seen = len(index.settings_seen)
    last.write(output(3))
    assert len(index.settings_seen) == seen, "an index that is searched keeps its settings"
    last.close()


def test_an_unset_refresh_interval_is_unset_again(sink: KeyedSink, rig: ElasticFront) -> None:
    sink.prepare(plan())
    sink.write(output(0))
    sink.finish(plan(), [])
    assert "refresh_interval" not in rig.indexes["docs"].settings
    assert rig.indexes["docs"].settings["number_of_replicas"] == "1"
    assert rig.indexes["docs"].mappings["_meta"] == {"embedctl": {"job": plan().job, "built": True}}


@pytest.mark.parametrize("share_of", ["items", "lost", "reset", "429", "503"])
def test_faults_of_each_kind(
    sink: KeyedSink, rig: ElasticFront, monkeypatch: pytest.MonkeyPatch, share_of: str
) -> None:
    monkeypatch.setattr(elastic_bulk, "FIRST_S", 0.01)
    monkeypatch.setattr("embedctl.sinks.elastic_http.FIRST_S", 0.01)
    sink.prepare(plan())
    rig.share, rig.kinds = 0.5, (share_of,)
    records = [sink.write(output(n)) for n in range(8)]
    assert rig.seen[share_of] >= 2
    assert sink.count(records) == 32
    assert sorted(rig.sources("docs")) == sorted(id for n in range(8) for id in output(n).ids)


def test_only_the_items_turned_away_are_sent_again(sink: KeyedSink, rig: ElasticFront) -> None:
    sink.prepare(plan())
    rig.share, rig.kinds = 0.7, ("items",)
    sink.write(output(0))
    counts = [count for count, _ in rig.bulks]
    assert counts[0] == 4
    assert counts[-1] < 4
    assert all(d.version == 1 for d in rig.indexes["docs"].documents.values())


def test_a_refused_item_is_named_and_the_rest_is_there(sink: KeyedSink, rig: ElasticFront) -> None:
    sink.prepare(plan())
    rig.indexes["docs"].properties["name"] = {"type": "long"}
    with pytest.raises(
        SinkError, match=r"row '0-0' was refused: 400: document_parsing_exception: failed to parse field"
    ):
        sink.write(output(0))


def test_bodies_are_cut_by_bytes_and_when_they_are_too_large(
    sink: KeyedSink, rig: ElasticFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.prepare(plan())
    monkeypatch.setattr(elastic_bulk, "MAX_BODY_BYTES", 500)
    sink.write(output(0))
    assert [count for count, _ in rig.bulks] == [1, 1, 1, 1]
    monkeypatch.setattr(elastic_bulk, "MAX_BODY_BYTES", 8 << 20)
    rig.bulks.clear()
    rig.max_body = 1000
    sink.write(output(1))
    assert [count for count, _ in rig.bulks] == [2, 2]


def test_a_quota_that_stays_full_stops(sink: KeyedSink, rig: ElasticFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedctl.sinks.elastic_http.PATIENCE_S", 0.0)
    sink.prepare(plan())
    monkeypatch.setattr(elastic_bulk, "PATIENCE_S", -1.0)
    rig.share, rig.kinds = 1.0, ("items",)
    monkeypatch.setattr(rig.chance, "random", lambda: 0.0)
    with pytest.raises(SinkError, match="rejected execution") as caught:
        sink.write(output(0))
    assert "see that the server has room" in str(caught.value.hint)


def test_an_index_taken_away_while_it_loads_is_noticed(sink: KeyedSink, rig: ElasticFront) -> None:
    sink.prepare(plan())
    sink.write(output(0))
    del rig.indexes["docs"]
    with pytest.raises(SinkError, match="was taken away while it was loaded"):
        sink.write(output(1))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (OutputSpec(name="embedding", kind="dense", dim=4, vector_type="uint8"), "no place for uint8 vectors"),
        (OutputSpec(name="late", kind="multivector", dim=4), "no place for multivector outputs"),
        (OutputSpec(name="bm25", kind="sparse", dim=9, modifier="idf"), "weighed by idf"),
        (OutputSpec(name="embedding", kind="dense", dim=4, similarity="manhattan"), "no similarity 'manhattan'"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_by_name(sink: KeyedSink, spec: OutputSpec, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sink.prepare(hand_plan(outputs=[spec]))


@pytest.mark.parametrize("name", ["_id", "_source", "a..b", "id.x", "tags.more", "_job", "embedding"])
def test_columns_that_cannot_be_fields_are_refused_by_name(sink: KeyedSink, rig: ElasticFront, name: str) -> None:
    schema = pa.schema([("tags", pa.string()), (name, pa.string())])
    with pytest.raises(UsageError, match="--keep"):
        sink.prepare(hand_plan(schema=schema, keep=["tags", name]))
    assert not rig.indexes


def test_an_index_of_ones_own_is_checked_and_completed(rig: ElasticFront, tmp_path: Path) -> None:
    first = opened(rig, tmp_path, JobSpec())
    with pytest.raises(UsageError, match="no such index") as caught:
        first.prepare(plan())
    assert caught.value.hint == "make it with --create"
    opened(rig, tmp_path).prepare(hand_plan(outputs=[OutputSpec(name="embedding", kind="dense", dim=5)]))
    with pytest.raises(UsageError, match=r"embedding: (dims|dimension) 5, needed 4"):
        first.prepare(plan())
    index = rig.indexes["docs"]
    index.mappings.pop("_meta")
    del index.properties["embedding"]
    with pytest.raises(UsageError, match=r"has no field .*embedding"):
        first.prepare(plan())
    opened(rig, tmp_path).prepare(plan())
    assert {"embedding", "at", "_pos"} <= index.properties.keys()
    assert first.prepare(plan()) is None
    index.mappings["_meta"] = {"theirs": 1}
    index.act("index", {"_id": "x"}, {"t": 1})
    with pytest.raises(UsageError, match="1 records there were not made by embedctl"):
        first.prepare(plan())


def test_another_server_an_old_one_and_a_missing_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more, words in (({"opensearch": True}, "that is OpenSearch"), ({"version": "8.10.4"}, "at least 8.11")):
        rig = ElasticFront(**more)
        sink = open_elastic(f"elasticsearch://127.0.0.1:{rig.port}/docs", LocalStorage(tmp_path), MADE)
        with pytest.raises(UsageError, match=words):
            sink.prepare(plan())
        rig.stop()
    rig = ElasticFront(key="ApiKey c2VjcmV0")
    with pytest.raises(SinkError, match="401") as caught:
        opened(rig, tmp_path).prepare(plan())
    assert "ELASTIC_API_KEY" in str(caught.value.hint)
    monkeypatch.setenv("ELASTIC_API_KEY", "c2VjcmV0")
    sink = opened(rig, tmp_path)
    sink.prepare(plan())
    sink.close()
    rig.stop()


def test_addresses_that_are_refused(tmp_path: Path) -> None:
    for target in ("elasticsearch://host", "opensearch://host/a/b", "elasticsearch+https://me:secret@host/a"):
        with pytest.raises(UsageError) as caught:
            open_elastic(target, LocalStorage(tmp_path), JobSpec())
        assert "secret" not in f"{caught.value}{caught.value.hint}"
