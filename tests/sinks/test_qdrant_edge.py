"""The embedded engine through the command line: killed anywhere and run again, every row is there once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.errors import SinkError
from embedctl.sinks import qdrant_edge
from embedctl.sinks.stores import point_id
from embedctl.testing.resume import moments, run, run_and_kill

edge = pytest.importorskip("qdrant_edge")

ROWS, IDS = 600, 590
LATE = {f"r{i}" for i in range(IDS, ROWS)}
POINTS = ("before-part", "staged", "after-part", "before-ledger", "after-ledger")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten ids stand twice, far apart; the second time with another `n`."""
    folder = tmp_path_factory.mktemp("corpus") / "in"
    folder.mkdir()
    rows = [
        {
            "id": f"r{i % IDS}",
            "text": f"row {i} says " + "word " * (i * 7 % 23),
            "n": 2**60 + i,
            "lang": [None, "en"][i % 2],
        }
        for i in range(ROWS)
    ]
    for f in range(2):
        pq.write_table(pa.Table.from_pylist(rows[f * 300 : f * 300 + 300]), folder / f"{f}.parquet", row_group_size=75)
    return folder


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def embed(corpus: Path, store: Path, *more: str) -> list[str]:
    small = ["--window-rows", "64", "--slice-bytes", "16384", "--model", "fake:dim=16", "--keep", "n,lang"]
    return ["embed", str(corpus), *small, "--to", f"qdrant-edge://{store}", "--json", *more]


def points(store: Path) -> dict[str, edge.Record]:
    shard = edge.EdgeShard.load(str(store))
    found, _ = shard.scroll(edge.ScrollRequest(limit=10_000, with_payload=True, with_vector=True))
    shard.close()
    return {str(p.id): p for p in found}


def assert_whole(store: Path) -> None:
    found = points(store)
    assert found.keys() == {str(point_id(f"r{i}")) for i in range(IDS)}
    for p in found.values():
        i = int(p.payload["id"][1:])
        assert p.payload["n"] == 2**60 + i, "the first position of an id must win"
        assert p.payload["lang"] == [None, "en"][i % 2]
        assert len(p.vector) == 16


def test_unbroken_then_again(corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = run(embed(corpus, store))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == {"read": 600, "written": 590, "unchanged": 0, "skipped": 0, "duplicates": 10, "dead": 0}
    assert told["units"] == 590
    assert_whole(store)
    assert json.loads(run(embed(corpus, store)).stdout)["status"] == "already done"
    status = run(["status", f"qdrant-edge://{store}", "--json"])
    assert json.loads(status.stdout)["units"] == 590
    report = json.loads(run(["verify", f"qdrant-edge://{store}", "--json"]).stdout)
    assert [(c["name"], c["ok"]) for c in report["checks"]] == [
        ("finished", True), ("store", True), ("books", True), ("ids", True), ("vectors", None), ("sample", None)
    ]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("which", [1, 7])
def test_killed_at_a_commit_boundary(corpus: Path, tmp_path: Path, point: str, which: int) -> None:
    store = tmp_path / "store"
    assert run(embed(corpus, store), failpoint=f"{point}:{which}").returncode == -9
    done = run(embed(corpus, store))
    assert done.returncode == 0, done.stderr
    assert_whole(store)


@pytest.mark.slow
def test_killed_at_random_moments(corpus: Path, tmp_path: Path) -> None:
    after_s, kills = moments(embed(corpus, tmp_path / "unbroken"), seed=1), 0
    for attempt in range(20):
        store = tmp_path / f"store{attempt}"
        while run_and_kill(embed(corpus, store), next(after_s)) == -9:
            kills += 1
        assert_whole(store)
        if kills >= 8:
            break
    assert kills >= 8


def test_chunks_each_have_a_point(corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    more = ["--chunk", "tokens:8", "--token-count", "--truncated", "--vector-type", "float16"]
    assert run(embed(corpus, store, *more), failpoint="after-part:3").returncode == -9
    done = run(embed(corpus, store, *more))
    assert done.returncode == 0, done.stderr
    found = points(store)
    assert len(found) == json.loads(done.stdout)["units"] > IDS
    for p in found.values():
        assert str(p.id) == point_id(p.payload["id"], p.payload["chunk"])
        assert p.payload["n"] == 2**60 + int(p.payload["id"][1:])
        assert p.payload["char_end"] > p.payload["char_start"]
        assert 0 < p.payload["token_count"] <= 8


def test_three_outputs_killed_and_run_again_are_as_unbroken(corpus: Path, tmp_path: Path) -> None:
    every = ["--output", "dense,sparse,multivector"]
    model = {"fake:dim=16": "fake:dim=8,sparse=1,multivector=1"}
    arguments = {
        name: [model.get(a, a) for a in embed(corpus, tmp_path / name, *every)] for name in ("whole", "killed")
    }
    assert run(arguments["whole"]).returncode == 0
    assert run(arguments["killed"], failpoint="after-part:4").returncode == -9
    done = run(arguments["killed"])
    assert done.returncode == 0, done.stderr
    whole, killed = points(tmp_path / "whole"), points(tmp_path / "killed")
    assert whole.keys() == killed.keys() == {str(point_id(f"r{i}")) for i in range(IDS)}
    for name, point in whole.items():
        assert set(point.vector) == {"dense", "sparse", "multivector"}
        assert told(point) == told(killed[name])


def told(point: edge.Record) -> tuple[object, ...]:
    sparse = point.vector["sparse"]
    return point.vector["dense"], point.vector["multivector"], list(sparse.indices), list(sparse.values), point.payload


def test_duplicates_as_dead_letters(corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = run(embed(corpus, store, "--on-duplicate", "dead-letter"))
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["rows"]["dead"] == 10
    assert_whole(store)


def test_a_retry_killed_and_run_again_mends_the_dead(tmp_path: Path) -> None:
    corpus, store = tmp_path / "in.jsonl", tmp_path / "store"
    rows = [{"id": f"r{i}", "text": None if i in (7, 90) else f"hello {i}"} for i in range(200)]
    corpus.write_text("".join(json.dumps(r) + "\n" for r in rows))
    arguments = [
        "embed",
        str(corpus),
        "--model",
        "fake:dim=16",
        "--window-rows",
        "32",
        "--to",
        f"qdrant-edge://{store}",
    ]
    assert run(arguments).returncode == 3
    corpus.write_text("".join(json.dumps({**r, "text": r["text"] or "mended"}) + "\n" for r in rows))
    retry = ["retry", f"qdrant-edge://{store}", "--json"]
    assert run(retry, failpoint="after-part:1").returncode == -9
    done = run(retry)
    assert done.returncode == 0, done.stderr
    assert sorted(int(p.payload["id"][1:]) for p in points(store).values()) == list(range(200))
    assert run(["verify", f"qdrant-edge://{store}"]).returncode == 0


def test_a_store_that_is_gone_is_told(corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run(embed(corpus, store)).returncode == 0
    store.rename(tmp_path / "away")
    gone = run(embed(corpus, store))
    assert (gone.returncode, "says what was written there" in gone.stderr) == (5, True)
    assert run(["verify", f"qdrant-edge://{store}"]).returncode == 11


def test_refusals(corpus: Path, tmp_path: Path, state: Path) -> None:
    store = tmp_path / "store"
    for more, words in (
        (["--vector-type", "int8"], "int8 would be misread"),
        (["--on-duplicate", "keep"], "one point an id"),
        (["--workers", "2"], "one process at a time"),
        (["--index-field", "lang"], "is not NAME:KIND"),
    ):
        refused = run(embed(corpus, store, *more))
        assert refused.returncode == 2, refused.stderr
        assert words in refused.stderr
        assert not store.exists()
        assert not state.exists(), "refused before anything is planned"
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("")
    assert "holds no Qdrant shard" in run(embed(corpus, full)).stderr


def test_another_job_and_a_lost_state_are_refused(corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run(embed(corpus, store)).returncode == 0
    other = run(embed(corpus, store, "--limit", "5", "--state", str(tmp_path / "s2")))
    assert (other.returncode, "another job" in other.stderr) == (2, True)
    lost = run(embed(corpus, store, "--state", str(tmp_path / "s3")))
    assert (lost.returncode, "its ledger is not in" in lost.stderr) == (2, True)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    vectors = edge.EdgeVectorParams(size=16, distance=edge.Distance.Cosine)
    shard = edge.EdgeShard.create(str(foreign), edge.EdgeConfig(vectors=vectors))
    shard.update(edge.UpdateOperation.upsert_points([edge.Point(1, [1.0] * 16, {})]))
    shard.close()
    assert "1 points there were not made by embedctl" in run(embed(corpus, foreign)).stderr


def test_a_store_in_use_is_locked(corpus: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run(embed(corpus, store)).returncode == 0
    shard = edge.EdgeShard.load(str(store))
    locked = run(embed(corpus, store))
    shard.close()
    assert (locked.returncode, "another process has it open" in locked.stderr) == (7, True)


def test_a_disk_without_room_stops_the_run_before_the_engine_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.sinks.qdrant_kit import place, plan, window

    with place("edge", tmp_path) as there:
        sink = there.sink()
        sink.prepare(plan())
        monkeypatch.setattr(qdrant_edge, "ROOM_BYTES", 1 << 62)
        with pytest.raises(SinkError, match=r"the disk is nearly full: \d+ MiB are free"):
            sink.write(window(0, ["a", "b"]))
        monkeypatch.undo()
        assert sink.write(window(0, ["a", "b"])).units == 2
