"""A real process, killed by SIGKILL at the places that only a sync passes, then run again; and the command itself."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from embedctl import job
from embedctl.events import Silent
from embedctl.testing.resume import run
from tests.sync.world import World, fresh_rows, rows_in, spec_of

_RARER = ("before-plan", "before-part:2", "after-ledger:2", "before-drop")
POINTS = ("changes-whole", "after-plan", "after-drop:2", *(pytest.param(p, marks=pytest.mark.slow) for p in _RARER))


def arguments(world: World, out: Path, *more: str) -> list[str]:
    return [
        "sync", str(world.folder), "--to", str(out), "--model", "fake:dim=4", "--keep", "lang,n", "--id-column", "id",
        "--text-column", "text", "--window-rows", "8", "--slice-bytes", "600", "--max-delete", "100%", "--json", *more,
    ]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "corpus", random.Random(3))
    made.split([made.row() for _ in range(40)], 4)
    return made


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_run_again(world: World, tmp_path: Path, point: str) -> None:
    out = tmp_path / "out"
    job.sync(spec_of(world, out), Silent())
    for edit in ("change", "payload", "add", "delete", "shuffle", "change", "add"):
        world.edit(edit)
    killed = run(arguments(world, out), failpoint=point)
    assert killed.returncode == -9, killed.stderr
    done = run(arguments(world, out))
    assert done.returncode == 0, done.stderr
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")
    assert json.loads(done.stdout)["units"] == len(rows_in(out))


def test_the_command_from_the_first_night_on(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = json.loads(run(arguments(world, out)).stdout)
    assert (first["rows"]["written"], first["exit_code"]) == (40, 0)
    world.edit("change")
    world.files["s000.jsonl"].pop()
    world.write("s000.jsonl")
    dry = run(arguments(world, out, "--dry-run"))
    told = json.loads(dry.stdout)
    assert told["changes"]["deleted"] == 1
    assert len(told["examples"]["deleted"]) == 1
    refused = run(arguments(world, out, "--max-delete", "0"))
    assert (refused.returncode, json.loads(refused.stdout)["exit_code"]) == (8, 8)
    assert "error: 1 of 40 rows are not in the corpus any more, above --max-delete 0" in refused.stderr
    second = json.loads(run(arguments(world, out)).stdout)
    assert second["changes"]["deleted"] == 1
    assert second["rows"]["unchanged"] == 38
    listed = json.loads(run(["versions", str(out), "--json"]).stdout)["versions"]
    assert [v["generation"] for v in listed] == [1, 2]
    assert run(["versions", str(out), "--rollback", listed[0]["name"], "--quiet"]).returncode == 0
    assert len(rows_in(out)) == 40
    assert run(["compact", str(out), "--json"]).returncode == 0
    status = json.loads(run(["status", str(out), "--json"]).stdout)
    assert status["status"] == "done"
    assert run(["verify", str(out)]).returncode == 0


def test_readers_that_resolve_current_once_see_one_version(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    current = out / ".embedctl" / "current"
    job.sync(spec_of(world, out), Silent())
    world.edit("change")
    job.sync(spec_of(world, out, keep_versions=50), Silent())
    whole = {frozenset((k, r["n"], tuple(r["embedding"])) for k, r in rows_in(current.resolve()).items())}
    seen: list[frozenset[object]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            folder = current.resolve()
            if len(seen) % 2:
                rows = pq.read_table(folder).to_pylist()
            else:
                rows = duckdb.connect().sql(f"select * from '{folder}/*.parquet'").to_arrow_table().to_pylist()
            seen.append(frozenset((f"{r['id']}#0", r["n"], tuple(r["embedding"])) for r in rows))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(4):
            for edit in ("change", "add", "delete", "shuffle"):
                world.edit(edit)
            job.sync(spec_of(world, out, keep_versions=50), Silent())
            whole.add(frozenset((k, r["n"], tuple(r["embedding"])) for k, r in rows_in(current.resolve()).items()))
    finally:
        over.set()
        reader.join()
    assert seen
    assert set(seen) <= whole
