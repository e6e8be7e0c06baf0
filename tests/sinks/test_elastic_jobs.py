"""Whole jobs into Elasticsearch and OpenSearch through the command line, against the rig: faults, kills, a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("urllib3")
pytest.importorskip("orjson")

from embedctl.testing.resume import COMMIT_POINTS
from tests.rig.elastic_front import ElasticFront

ROWS, IDS = 700, 680
STORES = pytest.mark.parametrize("opensearch", [False, True], ids=["elasticsearch", "opensearch"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "in"
    folder.mkdir()
    rows = [{"id": f"r{i % IDS}", "text": f"row {i} " + "word " * (i % 9), "n": 2**60 + i} for i in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet", row_group_size=150)
    return folder


def start(corpus: Path, rig: ElasticFront, folder: Path, *more: str, **environ: str) -> subprocess.Popen[str]:
    small = ["--window-rows", "64", "--slice-bytes", "8192", "--model", "fake:dim=16", "--keep", "n", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "embedctl", "embed", str(corpus), *small, "--to", rig.uri("docs"), "--create", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(folder),
            "ELASTIC_TIMEOUT_S": "1",
            "OPENSEARCH_TIMEOUT_S": "1",
            **environ,
        },
    )


def embed(corpus: Path, rig: ElasticFront, folder: Path, *more: str, **environ: str) -> tuple[int, dict, str]:
    process = start(corpus, rig, folder, *more, **environ)
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, json.loads(stdout) if stdout else {}, stderr


def assert_whole(rig: ElasticFront) -> None:
    found = rig.sources("docs")
    assert sorted(int(id[1:]) for id in found) == list(range(IDS))
    assert all(s["n"] == 2**60 + int(id[1:]) for id, s in found.items()), "the first position must win"
    assert rig.indexes["docs"].settings["number_of_replicas"] == "1"
    assert "refresh_interval" not in rig.indexes["docs"].settings


@STORES
def test_a_whole_job_then_again(corpus: Path, tmp_path: Path, opensearch: bool) -> None:
    rig = ElasticFront(opensearch=opensearch)
    code, told, stderr = embed(corpus, rig, tmp_path)
    assert code == 0, stderr
    assert told["units"] == IDS
    assert_whole(rig)
    assert embed(corpus, rig, tmp_path)[1]["status"] == "already done"
    rig.stop()


def test_a_third_of_the_requests_fail(corpus: Path, tmp_path: Path) -> None:
    rig = ElasticFront()
    rig.share = 0.3
    code, _, stderr = embed(corpus, rig, tmp_path)
    assert code == 0, stderr
    assert sum(n for kind, n in rig.seen.items() if kind != "fine") >= 3
    assert_whole(rig)
    rig.stop()


@pytest.mark.parametrize("point", ["before-part:2", "after-part:3"])
def test_killed_and_run_again(corpus: Path, tmp_path: Path, point: str) -> None:
    rig = ElasticFront()
    assert embed(corpus, rig, tmp_path, EMBEDCTL_FAILPOINT=point)[0] == -9
    code, _, stderr = embed(corpus, rig, tmp_path)
    assert code == 0, stderr
    assert_whole(rig)
    rig.stop()


@pytest.mark.slow
@STORES
@pytest.mark.parametrize("point", COMMIT_POINTS)
@pytest.mark.parametrize("which", [1, 6])
def test_killed_at_every_commit_boundary(
    corpus: Path, tmp_path: Path, opensearch: bool, point: str, which: int
) -> None:
    rig = ElasticFront(opensearch=opensearch)
    assert embed(corpus, rig, tmp_path, EMBEDCTL_FAILPOINT=f"{point}:{which}")[0] == -9
    code, _, stderr = embed(corpus, rig, tmp_path)
    assert code == 0, stderr
    assert_whole(rig)
    rig.stop()


def test_the_server_restarts_mid_load(corpus: Path, tmp_path: Path) -> None:
    rig = ElasticFront()
    process = start(corpus, rig, tmp_path, "--max-points-per-s", "600")
    deadline = time.monotonic() + 60
    while "docs" not in rig.indexes or len(rig.indexes["docs"].documents) < 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rig.stop()
    time.sleep(0.5)
    rig.start()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert_whole(rig)
    rig.stop()
