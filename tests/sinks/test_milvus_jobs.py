"""Whole jobs into Milvus through the command line: Lite killed anywhere, and met over the network, restarted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("milvus_lite")

from milvus_lite.adapter.grpc.server import start_server_in_thread

from embedctl.sinks.keyed import KeyedSink
from embedctl.sinks.keyed_records import JOB
from embedctl.sinks.milvus import open_lite, open_milvus
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.resume import COMMIT_POINTS, run
from embedctl.testing.sink_contract import plan

ROWS, IDS = 300, 290


def opened(folder: Path) -> KeyedSink:
    return open_lite(f"milvus-lite://{folder}/store.db/docs", LocalStorage(folder / "state"), JobSpec())


def rows_of(sink: KeyedSink) -> list[dict]:
    return [row for batch in sink.scan() for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten ids stand twice, far apart; the second time with another `n`."""
    folder = tmp_path_factory.mktemp("corpus") / "in"
    folder.mkdir()
    rows = [
        {"id": f"r{i % IDS}", "text": f"row {i} " + "word " * (i * 7 % 23), "n": 2**60 + i, "tags": [None, "a"]}
        for i in range(ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet", row_group_size=75)
    return folder


def embed(corpus: Path, folder: Path, *more: str) -> list[str]:
    small = ["--window-rows", "64", "--slice-bytes", "16384", "--model", "fake:dim=16", "--keep", "n,tags"]
    to = ["--to", f"milvus-lite://{folder}/store.db/docs", "--state", str(folder / "state")]
    return ["embed", str(corpus), *small, *to, "--json", *more]


def assert_whole(folder: Path) -> None:
    sink = opened(folder)
    found = rows_of(sink)
    sink.close()
    assert sorted(int(row["id"][1:]) for row in found) == list(range(IDS))
    assert all(row["n"] == 2**60 + int(row["id"][1:]) for row in found), "the first position must win"
    assert all(len(row["embedding"]) == 16 and row["tags"] == '[null, "a"]' for row in found)
    assert len({row[JOB] for row in found}) == 1


def test_a_whole_job_then_again(corpus: Path, tmp_path: Path) -> None:
    done = run(embed(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["units"] == IDS
    assert_whole(tmp_path)
    assert json.loads(run(embed(corpus, tmp_path)).stdout)["status"] == "already done"


@pytest.mark.slow
@pytest.mark.parametrize("point", COMMIT_POINTS)
@pytest.mark.parametrize("which", [1, 4])
def test_killed_at_a_commit_boundary(corpus: Path, tmp_path: Path, point: str, which: int) -> None:
    killed = run(embed(corpus, tmp_path), failpoint=f"{point}:{which}")
    assert killed.returncode == -9, killed.stderr
    done = run(embed(corpus, tmp_path))
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path)


def test_killed_once(corpus: Path, tmp_path: Path) -> None:
    assert run(embed(corpus, tmp_path), failpoint="after-part:3").returncode == -9
    assert run(embed(corpus, tmp_path)).returncode == 0
    assert_whole(tmp_path)


def test_a_lost_state_is_rebuilt_from_the_store(corpus: Path, tmp_path: Path) -> None:
    assert run(embed(corpus, tmp_path)).returncode == 0
    (tmp_path / "state").rename(tmp_path / "away")
    where = [f"milvus-lite://{tmp_path}/store.db/docs", "--state", str(tmp_path / "state")]
    done = run(["state", "rebuild", *where])
    assert done.returncode == 0, done.stderr
    assert json.loads(run(embed(corpus, tmp_path)).stdout)["status"] == "already done"


class Server:
    """Milvus Lite's own server, met over the network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        self._server, self._database, self.port = start_server_in_thread(str(self.folder), port=self.port)

    def stop(self) -> None:
        self._server.stop(grace=None).wait()
        self._database.close()

    def sink(self, state: Path, spec: JobSpec) -> KeyedSink:
        return open_milvus(f"milvus://127.0.0.1:{self.port}/docs", LocalStorage(state), spec)


def test_a_server_that_restarts_mid_load(corpus: Path, tmp_path: Path) -> None:
    server = Server(tmp_path / "server.db")
    to = ["--to", f"milvus://127.0.0.1:{server.port}/docs", "--state", str(tmp_path / "state")]
    refused = run([*embed(corpus, tmp_path), *to])
    assert (refused.returncode, "make it with --create" in refused.stderr) == (2, True), refused.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "embedctl", *embed(corpus, tmp_path), *to, "--create", "--max-points-per-s", "150"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    watch = server.sink(tmp_path / "watch", JobSpec(create=True))
    deadline = time.monotonic() + 60
    while not watch._engine.exists() or watch.total() < 70:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    watch.close()
    server.stop()
    time.sleep(0.5)
    server.start()
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["units"] == IDS
    found = rows_of(server.sink(tmp_path / "watch", JobSpec()))
    assert sorted(int(row["id"][1:]) for row in found) == list(range(IDS))
    assert all(row["n"] == 2**60 + int(row["id"][1:]) for row in found)
    server.stop()


def test_a_folder_in_use_is_locked(corpus: Path, tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.prepare(plan())
    locked = run(embed(corpus, tmp_path))
    sink.close()
    assert (locked.returncode, "another process has it open" in locked.stderr) == (7, True), locked.stderr


def test_an_index_that_a_kill_left_half_written_is_made_anew(corpus: Path, tmp_path: Path) -> None:
    assert run(embed(corpus, tmp_path)).returncode == 0
    indexes = sorted((tmp_path / "store.db").rglob("*.idx"))
    assert indexes
    for path in indexes:
        path.write_bytes(path.read_bytes()[:40])
    (tmp_path / ".store.db.in-use").touch()  # as a killed process leaves it
    done = run(
        ["search", f"milvus-lite://{tmp_path}/store.db/docs", "row 3", "--state", str(tmp_path / "state"), "--json"]
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / ".store.db.in-use").exists()
    assert_whole(tmp_path)
