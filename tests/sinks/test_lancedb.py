"""LanceDB, the real engine: the contract, kills, types, search, versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

lancedb = pytest.importorskip("lancedb")

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec, take
from embedctl.records import WindowRecord
from embedctl.sinks.lancedb import LanceSink, _of_window, open_lancedb
from embedctl.sinks.parts import output_array
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.resume import moments, run, run_and_kill
from embedctl.testing.sink_contract import SinkContract, output, plan
from tests.sinks import duplicated
from tests.sinks.duplicated import assert_whole, embed
from tests.sinks.whole import whole


def opened(folder: Path, **more: Any) -> LanceSink:
    return open_lancedb(f"lancedb://{folder}/db/docs", LocalStorage(folder / "state"), JobSpec(**more))


class TestLanceSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[LanceSink]:
        sink = opened(tmp_path)
        yield sink
        sink.close()

    def held(self, sink: LanceSink, record: WindowRecord) -> pa.Table:
        return sink._table.ask(lambda t: t.search().where(_of_window(record.key)).to_arrow()).replace_schema_metadata()

    def lose(self, sink: LanceSink, record: WindowRecord) -> None:
        sink._table.change(lambda t: t.delete(_of_window(record.key)))

    def test_a_window_without_a_ledger_record_is_adopted(self, sink: LanceSink) -> None:  # type: ignore[override]
        """It is written again in its own place instead."""
        sink.prepare(plan())
        known, unknown = sink.write(output(0)), sink.write(output(1))
        assert sink.reconcile([known]).adopted == ()
        assert sink.write(output(1)) == unknown
        assert sink.count([known, unknown]) == sink.total() == 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return duplicated.write(tmp_path_factory.mktemp("corpus") / "in")


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    return f"lancedb://{tmp_path}/db/docs"


def rows_of(uri: str, version: str | None = None) -> list[dict[str, Any]]:
    folder, _, table = uri.removeprefix("lancedb://").rpartition("/")
    opened = lancedb.connect(folder).open_table(table)
    if version is not None:
        opened.checkout(version)
    return opened.to_arrow().to_pylist()


@pytest.mark.parametrize(("point", "which"), duplicated.KILLS)
def test_killed_at_a_commit_boundary(corpus: Path, uri: str, point: str, which: int) -> None:
    assert run(embed(corpus, uri), failpoint=f"{point}:{which}").returncode == -9
    done = run(embed(corpus, uri))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["duplicates"] == 10
    assert_whole(rows_of(uri))


def test_unbroken_then_again(corpus: Path, uri: str) -> None:
    assert run(embed(corpus, uri)).returncode == 0
    assert_whole(rows_of(uri, "current"))
    assert json.loads(run(embed(corpus, uri)).stdout)["status"] == "already done"
    assert json.loads(run(["status", uri, "--json"]).stdout)["units"] == duplicated.IDS
    assert run(["verify", uri]).returncode == 0


@pytest.mark.slow
def test_killed_at_random_moments(corpus: Path, uri: str) -> None:
    after_s, kills = moments(embed(corpus, f"{uri}unbroken"), seed=2), 0
    for attempt in range(20):
        while run_and_kill(embed(corpus, f"{uri}{attempt}"), next(after_s)) == -9:
            kills += 1
        assert_whole(rows_of(f"{uri}{attempt}"))
        if kills >= 6:
            break
    assert kills >= 6


@pytest.mark.slow
def test_several_workers(corpus: Path, uri: str) -> None:
    done = run(embed(corpus, uri, "--workers", "2"))
    assert done.returncode == 0, done.stderr
    assert_whole(rows_of(uri))


def test_readers_of_current_see_no_half(corpus: Path, uri: str) -> None:
    """A retry adds rows; who checked out `current` sees them all or none."""
    lines = [{"id": f"r{i}", "text": None if i % 50 == 7 else f"hello {i}"} for i in range(300)]
    source = corpus.parent / "dead.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["embed", str(source), "--model", "fake:dim=16", "--window-rows", "32", "--to", uri]
    assert run(arguments).returncode == 3
    source.write_text("".join(json.dumps({**line, "text": line["text"] or "mended"}) + "\n" for line in lines))
    assert run(["retry", uri], failpoint="after-part:2").returncode == -9
    assert len(rows_of(uri, "current")) == 294 < len(rows_of(uri))
    assert run(["retry", uri]).returncode == 0
    assert len(rows_of(uri, "current")) == len(rows_of(uri)) == 300


def test_chunks_have_a_row_each(corpus: Path, uri: str) -> None:
    more = ["--chunk", "tokens:8", "--token-count", "--truncated", "--vector-type", "float16"]
    assert run(embed(corpus, uri, *more), failpoint="after-part:3").returncode == -9
    done = run(embed(corpus, uri, *more))
    assert done.returncode == 0, done.stderr
    rows = rows_of(uri)
    assert len(rows) == json.loads(done.stdout)["units"] > duplicated.IDS
    assert len({(row["id"], row["chunk"]) for row in rows}) == len(rows)
    assert all(row["char_end"] > row["char_start"] and 0 < row["token_count"] <= 8 for row in rows)


def test_refusals(tmp_path: Path) -> None:
    for more, words in (
        ({"vector_type": "int8"}, "int8 would be misread"),
        ({"on_duplicate": "keep"}, "one record an id"),
        ({"distance": "manhattan"}, "no manhattan"),
        ({"index_field": ("lang",)}, "is not NAME:KIND"),
    ):
        with pytest.raises(UsageError, match=words):
            opened(tmp_path, **more)
    with pytest.raises(UsageError, match="has no column 'nope'"):
        opened(tmp_path, index_field=("nope:keyword",)).prepare(plan())
    with pytest.raises(UsageError, match=r"is not lancedb://FOLDER/TABLE"):
        open_lancedb("lancedb://docs", LocalStorage(tmp_path), JobSpec())
    lancedb.connect(str(tmp_path / "db")).create_table("docs", data=[{"id": "a", "vector": [1.0, 2.0]}])
    with pytest.raises(UsageError, match=r"column name \(string\) is missing.*column embedding"):
        opened(tmp_path).prepare(plan())


def test_a_sync_killed_and_run_again(tmp_path: Path, uri: str) -> None:
    duplicated.check_sync(tmp_path / "c.jsonl", uri, lambda: rows_of(uri))


def test_odd_names(tmp_path: Path, uri: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": f"{i}", "text": f"t {i}", "m": {"a b": i}}) + "\n" for i in range(9)))
    load = ["embed", str(source), "--model", "fake:dim=16", "--keep", "m.a b"]
    done = run([*load, "--to", uri, "--index-field", "m.a b:integer"])
    assert done.returncode == 0, done.stderr
    assert {row["m_a b"] for row in rows_of(uri)} == set(range(9))
    assert "takes letters, digits" in run([*load, "--to", f"{uri} x"]).stderr


def outputs() -> tuple[OutputSpec, ...]:
    return (
        OutputSpec(name="dense", kind="dense", dim=4),
        OutputSpec(name="bits", kind="dense", dim=12, vector_type="ubinary"),
        OutputSpec(name="sparse", kind="sparse", dim=100, similarity="dot"),
        OutputSpec(name="tokens", kind="multivector", dim=4, vector_type="float16"),
    )


def test_every_kind_of_output_comes_back_and_is_found(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    made = whole(outputs(), rows=40)
    sink.prepare(made.plan)
    sink.write(made.output)
    assert sink.contents() == outputs()
    table = pa.Table.from_batches(list(sink.scan(7)))
    for name, values in made.output.outputs.items():
        assert table[name].to_pylist() == output_array(values).to_pylist(), name
    for name in made.queries:
        for row in (0, 17):
            query = {name: take(made.queries[name], np.array([row]))}
            (hits,) = sink.search(query, limit=3, where=None)
            assert hits[0].id == f"d{row}", name
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    both = {name: take(made.queries[name], np.array([5, 6])) for name in ("dense", "sparse")}
    assert [hits[0].id for hits in sink.search(both, limit=2, where=None)] == ["d5", "d6"]
    (hits,) = sink.search({"dense": take(made.queries["dense"], np.array([3]))}, limit=5, where="n >= 20", exact=True)
    assert len(hits) == 5
    assert all(hit.kept["n"] >= 20 for hit in hits)
    with pytest.raises(UsageError, match="--where"):
        sink.search({"dense": take(made.queries["dense"], np.array([3]))}, limit=5, where="nope = 1")
    assert sink.delete(["d3", "d5", "it's not there"]) == 2
    assert sink.total() == 38
    sink.remember("as it was")
    assert opened(tmp_path).remembered() == "as it was"
    sink.close()
