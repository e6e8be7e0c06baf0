"""Rows taken out by id: books, verify, versions and the command that made them all agree; killed anywhere it ends."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import run
from tests.job.stores import FAKE, cli, corpus, folder, parts, place, points, rows, write

edge = pytest.importorskip("qdrant_edge")

__all__ = ["cli", "corpus", "folder", "place"]

EDGE = "qdrant-edge://./store"
GONE = {"r3#0", "r100#0", "r189#0"}
BOOKS = {"read": 200, "written": 186, "unchanged": 0, "skipped": 3, "duplicates": 10, "dead": 1}


@pytest.fixture
def gone(place: Path) -> str:
    (place / "gone.txt").write_text("r3\n r100 \n\nr189\nnever\nr3\n")
    return "gone.txt"


@pytest.mark.parametrize("destination", ["out", EDGE])
def test_rows_go_and_everything_agrees(cli, corpus, gone, destination):
    cli("embed", corpus, *FAKE, "--to", destination)
    told = cli("delete", destination, "--ids", gone, "--dry-run")
    assert (told["status"], told["rows"], told["not_found"]) == ("would delete", 3, 1)
    assert told["examples"] == ["r3", "r100", "r189"]
    held = parts if destination == "out" else points
    before = held(destination.rpartition("/")[2])
    done = cli("delete", destination, "--ids", gone)
    assert (done["rows"], done["vectors"], done["not_found"], done["generation"]) == (3, 3, 1, 2)
    assert held(destination.rpartition("/")[2]).keys() == before.keys() - GONE
    assert cli("status", destination)["rows"] == BOOKS
    assert cli("verify", destination)["ok"]
    assert cli("embed", corpus, *FAKE, "--to", destination)["status"] == "already done"
    again = cli("delete", destination, "--ids", gone)
    assert (again["rows"], again["not_found"]) == (0, 4)
    assert [x["id"] for x in cli("status", destination, "--dead")["dead_letters"]] == ["r17"]


def test_readers_of_current_see_one_version(cli, folder, gone):
    cli("delete", folder, "--ids", gone)
    assert parts(f"{folder}/.embedctl/current").keys() == parts(folder).keys()
    first = Path(folder) / ".embedctl" / "versions"
    assert len({p.name for p in first.iterdir()}) == 2
    old = next(p for p in first.iterdir() if p.name.endswith("_1"))
    assert parts(str(old)).keys() == parts(folder).keys() | GONE


@pytest.mark.parametrize("destination", ["out", pytest.param(EDGE, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "point",
    [
        "after-drop:1",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("before-delete:1", "after-drop:2", "before-ledger:2")),
    ],
)
def test_killed_it_is_finished_by_the_next(cli, corpus, gone, destination, point):
    cli("embed", corpus, *FAKE, "--to", destination)
    assert run(["delete", destination, "--ids", gone], failpoint=point).returncode == -9
    cli("delete", destination, "--ids", gone)
    held = parts if destination == "out" else points
    assert not held(destination.rpartition("/")[2]).keys() & GONE
    assert cli("status", destination)["rows"] == BOOKS
    assert cli("verify", destination)["ok"]


def test_all_chunks_of_a_row_go(cli, place):
    write(place / "c.parquet", rows(60))
    cli("embed", "c.parquet", *FAKE, "--chunk", "tokens:8", "--to", EDGE)
    before = points("store")
    mine = {name for name in before if name.startswith("r9#")}
    assert len(mine) > 1
    (place / "gone.txt").write_text("r9")
    done = cli("delete", EDGE, "--ids", "gone.txt")
    assert (done["rows"], done["vectors"]) == (1, len(mine))
    assert points("store").keys() == before.keys() - mine


def test_ids_come_from_tables_too(cli, folder, place):
    pq.write_table(pa.table({"n": [1, 2], "doc": ["r1", "r2"]}), place / "a.parquet")
    (place / "b.jsonl").write_text('{"id": "r4"}\n{"id": "r5"}\n')
    assert cli("delete", folder, "--ids", "a.parquet", "--column", "doc")["rows"] == 2
    assert cli("delete", folder, "--ids", "b.jsonl")["rows"] == 2
    assert "no column 'dok'; the corpus has n, doc" in cli(
        "delete", folder, "--ids", "a.parquet", "--column", "dok", code=2
    )
    (place / "none.txt").write_text("\n")
    assert "--ids: none.txt holds no id" in cli("delete", folder, "--ids", "none.txt", code=2)
    assert "nowhere.txt: no such file" in cli("delete", folder, "--ids", "nowhere.txt", code=4)


def test_an_unfinished_job_is_refused(cli, corpus, gone):
    cli("embed", corpus, *FAKE, "--to", "half", "--num-shards", "2", "--slice-bytes", "1")
    assert "half: the job there is not finished" in cli("delete", "half", "--ids", gone, code=6)
    assert "no embeddings made by embedctl there" in cli("delete", "nothing", "--ids", gone, code=2)


def test_a_store_of_anothers_making_loses_the_points(cli, place):
    shard = edge.EdgeShard.create(
        str(place / "foreign"), edge.EdgeConfig(vectors=edge.EdgeVectorParams(size=2, distance=edge.Distance.Dot))
    )
    shard.update(edge.UpdateOperation.upsert_points([edge.Point(i, [1.0, float(i)], {"a": i}) for i in range(1, 6)]))
    shard.flush()
    shard.close()
    (place / "gone.txt").write_text("2\n4\n9\n")
    assert cli("delete", "qdrant-edge://./foreign", "--ids", "gone.txt")["vectors"] == 2
    shard = edge.EdgeShard.load(str(place / "foreign"))
    assert shard.count(edge.CountRequest(exact=True)) == 3
    shard.close()
