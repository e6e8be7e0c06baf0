"""A state that is lost, made again from the store or the folder; and a store brought to Parquet."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedctl.sinks.stores import place_of, point_id, position_number
from embedctl.testing.resume import run
from tests.job.stores import FAKE, cli, corpus, folder, parts, place, points, rows, write

edge = pytest.importorskip("qdrant_edge")

__all__ = ["cli", "corpus", "folder", "place"]

EDGE = "qdrant-edge://./store"


def lose_points(ids: list[str]) -> None:
    shard = edge.EdgeShard.load("store")
    shard.update(edge.UpdateOperation.delete_points([point_id(i) for i in ids]))
    shard.flush()
    shard.close()


def test_a_finished_state_comes_back_whole(cli, corpus, place):
    job = ("embed", corpus, *FAKE, "--to", EDGE)
    before = cli(*job)
    (place / "gone.txt").write_text("r3\nr100")
    cli("delete", EDGE, "--ids", "gone.txt")
    books = cli("status", EDGE)["rows"]
    shutil.rmtree("state")
    told = cli("status", EDGE, code=2)
    assert "its state is not in" in told
    assert cli("delete", EDGE, "--ids", "gone.txt", code=2) == told, "a store of ours is no one else's"
    assert "embedctl state rebuild qdrant-edge://" in told
    assert "embedctl state rebuild" in cli(*job, code=2)
    done = cli("state", "rebuild", EDGE)
    assert (done["finished"], done["windows_to_do"], done["vectors"]) == (True, 0, before["units"] - 2)
    again = cli(*job)
    assert (again["status"], again["rows"]) == ("already done", books)
    assert cli("verify", EDGE)["ok"]
    assert cli("search", EDGE, "row 30 says", "-k", "1")["queries"][0]["hits"]
    (place / "gone.txt").write_text("r4")
    assert cli("delete", EDGE, "--ids", "gone.txt")["rows"] == 1, "lists of ids are there again"
    assert "its state is in" in cli("state", "rebuild", EDGE, code=2)


def test_windows_with_a_vector_missing_are_done_anew(cli, corpus):
    job = ("embed", corpus, *FAKE, "--to", EDGE)
    before = cli(*job)
    whole = points("store")
    lose_points(["r5", "r150"])
    shutil.rmtree("state")
    done = cli("state", "rebuild", EDGE)
    assert (done["finished"], done["windows_to_do"]) == (False, 2)
    again = cli(*job)
    assert (again["status"], again["rows"], again["units"]) == ("done", before["rows"], before["units"])
    held = points("store")
    assert held.keys() == whole.keys()
    assert all(held[i].payload == whole[i].payload for i in whole)


def test_chunks_come_back(cli, place):
    write(place / "c.parquet", rows(60))
    job = ("embed", "c.parquet", *FAKE, "--chunk", "tokens:8", "--to", EDGE)
    units = cli(*job)["units"]
    shutil.rmtree("state")
    assert cli("state", "rebuild", EDGE)["vectors"] == units
    assert cli(*job)["status"] == "already done"
    (place / "gone.txt").write_text("r9")
    assert cli("delete", EDGE, "--ids", "gone.txt")["vectors"] > 1


def test_an_unfinished_load_has_no_manifest(cli, corpus):
    job = ["embed", corpus, *FAKE, "--to", EDGE]
    assert run(job, failpoint="after-ledger:3").returncode == -9
    shutil.rmtree("state")
    assert "keeps no manifest of a finished job" in cli("state", "rebuild", EDGE, code=5)


def test_a_folder_without_its_ledger_or_all_its_state(cli, corpus, folder):
    whole, job = parts(folder), ("embed", corpus, *FAKE, "--to", folder)
    shutil.rmtree(f"{folder}/.embedctl/ledger")
    done = cli("state", "rebuild", folder)
    assert (done["adopted"], done["finished"]) == (done["windows"], False)
    tokens = cli(*job)["run_tokens"]  # a window of which all rows were duplicates has no part
    assert tokens < 200
    shutil.rmtree(f"{folder}/.embedctl")
    assert cli("state", "rebuild", folder)["parts"] == len(list(Path(folder).glob("*.parquet")))
    assert cli(*job)["run_tokens"] == tokens, "the parts are taken over"
    assert parts(folder) == whole
    Path("empty").mkdir()
    assert "no embeddings made by embedctl there" in cli("state", "rebuild", "empty", code=2)


def test_a_place_is_told_from_its_number():
    from embedctl.records import WindowKey

    for key, row in (
        (WindowKey(generation=1, slice=0, window=0), 0),
        (WindowKey(generation=7, slice=99, window=1234), 8191),
    ):
        assert place_of(position_number(key, row)) == (key, row)


def test_an_export_is_the_store_and_goes_on_after_a_kill(cli, folder, monkeypatch):
    cli("load", folder, "--to", EDGE)
    assert run(["export", EDGE, "--to", "ex"], failpoint="after-part:1").returncode == -9
    done = cli("export", EDGE, "--to", "ex")
    assert (done["status"], done["rows"], done["outputs"]) == ("done", 189, {"embedding": "dense"})
    assert cli("export", EDGE, "--to", "ex")["status"] == "already done"
    here, there = parts(folder), parts("ex")
    assert there.keys() == here.keys()
    for name, row in here.items():
        assert {k: there[name][k] for k in ("id", "n", "lang")} == {k: row[k] for k in ("id", "n", "lang")}
        np.testing.assert_allclose(there[name]["embedding"], row["embedding"], atol=1e-6)
    file = pq.ParquetFile("ex/part-00000.parquet")
    assert file.metadata.row_group(0).num_rows <= 25_000
    back = cli("load", "ex", "--to", "back")
    assert (back["rows"]["written"], back["model"]) == (189, "fake:dim=16")
    assert parts("back").keys() == here.keys()


def test_an_export_in_many_parts_and_of_a_store_that_changed(cli, folder, monkeypatch):
    from embedctl.job import export

    monkeypatch.setattr(export, "PART_BYTES", 1)
    real = export.open_source

    def small(spec):
        found = real(spec)
        scan = found.sink.scan
        monkeypatch.setattr(found.sink, "scan", lambda: scan(40), raising=False)
        return found

    monkeypatch.setattr(export, "open_source", small)
    cli("load", folder, "--to", EDGE)
    assert cli("export", EDGE, "--to", "ex")["parts"] == 5
    assert len(parts("ex")) == 189
    (Path("ex") / ".embedctl" / "export-done.json").unlink()
    (Path("ex") / "part-00004.parquet").unlink()
    lose_points([pq.read_table("ex/part-00001.parquet").column("id")[7].as_py()])
    assert "changed since ex/part-00001.parquet was exported" in cli("export", EDGE, "--to", "ex", code=4)


def test_what_cannot_be_exported_is_refused(cli, folder):
    assert "out: is no store" in cli("export", folder, "--to", "ex", code=2)
    cli("load", folder, "--to", EDGE)
    assert "--to: out is not empty and holds no export" in cli("export", EDGE, "--to", folder, code=2)


def test_an_export_that_could_not_begin_leaves_the_folder_free(cli, folder):
    cli("export", "qdrant-edge://./nothing", "--to", "ex", code=2)
    assert not Path("ex").exists()
    Path("ex", ".embedctl", "tmp").mkdir(parents=True)  # as a kill before the header leaves it
    cli("load", folder, "--to", EDGE)
    assert cli("export", EDGE, "--to", "ex")["rows"]
    assert "holds no export" in cli("export", EDGE, "--to", folder, code=2)
