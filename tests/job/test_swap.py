"""Blue and green: what is served is never touched by a run that fails, and moves in one step when one ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedctl.testing.resume import run
from tests.job.stores import FAKE, cli, corpus, folder, place, points, rows, write
from tests.rig.engine import Engine
from tests.rig.faults import Faults
from tests.rig.grpc_front import GrpcFront

edge = pytest.importorskip("qdrant_edge")

__all__ = ["cli", "corpus", "folder", "place"]

SWAP = (*FAKE, "--to", "qdrant-edge://./db/docs", "--swap-alias", "docs")


def changed(place: Path, *, without: int) -> None:
    write(place / "corpus.parquet", [r for i, r in enumerate(rows()) if i != without])


def test_each_new_corpus_is_a_new_collection(cli, corpus, place):
    first = cli("embed", corpus, *SWAP)
    assert first["collection"] == f"docs__{first['recipe'][:8]}_1"
    assert (first["served_before"], first["dropped"]) == (None, [])
    assert os.readlink("db/docs") == first["collection"]
    again = cli("embed", corpus, *SWAP)
    assert (again["status"], again["collection"]) == ("already done", first["collection"])
    changed(place, without=50)
    second = cli("embed", corpus, *SWAP)
    assert second["collection"].endswith("_2")
    assert (second["served_before"], second["dropped"]) == (first["collection"], [])
    assert "r50#0" not in points("db/docs")
    changed(place, without=60)
    third = cli("embed", corpus, *SWAP)
    assert third["dropped"] == [first["collection"]]
    assert sorted(p.name for p in Path("db").iterdir()) == ["docs", second["collection"], third["collection"]]
    assert len(list(Path("state/embedctl").iterdir())) == 3, "the state of a dropped collection goes with it"
    changed(place, without=70)
    assert cli("embed", corpus, *SWAP, "--keep-old", "0")["dropped"] == [second["collection"], third["collection"]]
    assert cli("search", "qdrant-edge://./db/docs", "row 30 says", "-k", "1")["queries"][0]["hits"]
    assert cli("verify", "qdrant-edge://./db/docs")["ok"]


@pytest.mark.parametrize(
    "point",
    [
        "before-ledger:2",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("after-part:1", "before-swap:1", "after-swap:1")),
    ],
)
def test_a_killed_run_leaves_what_is_served_and_finds_its_own_again(cli, corpus, place, point):
    first = cli("embed", corpus, *SWAP)
    served = points("db/docs").keys()
    changed(place, without=50)
    assert run(["embed", corpus, *SWAP], failpoint=point).returncode == -9
    if point != "after-swap:1":
        assert os.readlink("db/docs") == first["collection"]
    assert points(f"db/{first['collection']}").keys() == served
    second = cli("embed", corpus, *SWAP)
    assert second["collection"].endswith("_2")
    assert os.readlink("db/docs") == second["collection"]
    assert "r50#0" not in points("db/docs")


def test_a_run_that_fails_swaps_nothing(cli, corpus, place):
    first = cli("embed", corpus, *SWAP)
    made = rows()
    made[30]["text"] = None
    write(place / "corpus.parquet", made)
    assert "more than --max-dead 1" in cli("embed", corpus, *SWAP, "--max-dead", "1", code=8)
    assert os.readlink("db/docs") == first["collection"]
    done = cli("embed", corpus, *SWAP, "--max-dead", "2")
    assert done["collection"].endswith("_2")
    assert os.readlink("db/docs") == done["collection"]


def test_load_swaps_too(cli, folder):
    to = ("--to", "qdrant-edge://./db/docs", "--swap-alias", "docs")
    first = cli("load", folder, *to)
    assert cli("load", folder, *to)["status"] == "already done"
    Path("gone.txt").write_text("r5")
    cli("delete", folder, "--ids", "gone.txt")
    second = cli("load", folder, *to)
    assert (second["served_before"], second["units"]) == (first["collection"], first["units"] - 1)
    assert "r5#0" not in points("db/docs")


def test_what_cannot_be_swapped_is_refused(cli, corpus, place):
    told = cli("embed", corpus, *FAKE, "--to", "elasticsearch://me:s3@cret@host/docs", "--swap-alias", "docs", code=2)
    assert "--swap-alias: elasticsearch://host/docs is no store with aliases" in told
    assert "cret" not in told
    assert "--swap-alias: out is no store with aliases" in cli(
        "embed", corpus, *FAKE, "--to", "out", "--swap-alias", "docs", code=2
    )
    assert "'other' is not 'docs'" in cli(
        "embed", corpus, *FAKE, "--to", "qdrant-edge://./db/other", "--swap-alias", "docs", code=2
    )
    cli("embed", corpus, *FAKE, "--to", "qdrant-edge://./db/docs")
    assert "is a collection of its own, so it cannot be an alias" in cli("embed", corpus, *SWAP, code=2)


def test_a_server_is_swapped_by_its_own_aliases(cli, corpus, place):
    front = GrpcFront(Engine(place / "server"), Faults())
    try:
        server = front.uri("docs").removesuffix("/docs")
        to = (*FAKE, "--to", server, "--swap-alias", "docs", "--keep-old", "0")
        first = cli("embed", corpus, *to)
        assert first["destination"].endswith(f"/{first['collection']}")
        changed(place, without=50)
        second = cli("embed", corpus, *to)
        assert (second["served_before"], second["dropped"]) == (first["collection"], [first["collection"]])
        status = cli("status", f"{server}/docs")
        assert (status["destination"], status["status"]) == (f"{server}/{second['collection']}", "done")
        hits = cli("search", f"{server}/docs", "row 30 says", "-k", "2")["queries"][0]["hits"]
        assert len(hits) == 2
        assert cli("export", f"{server}/docs", "--to", "ex")["rows"] == second["units"]
    finally:
        front.stop()
