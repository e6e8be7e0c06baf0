"""The network client against the rig: the real engine behind real gRPC and REST, with a fault injector between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("qdrant_edge")
pytest.importorskip("qdrant_client")

from tests.rig.engine import Engine
from tests.rig.faults import Faults
from tests.rig.grpc_front import GrpcFront
from tests.rig.rest_front import RestFront

ROWS, IDS = 900, 880


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "in"
    folder.mkdir()
    rows = [{"id": f"r{i % IDS}", "text": f"row {i} " + "word " * (i % 9), "n": 2**60 + i} for i in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "c.parquet", row_group_size=150)
    return folder


class Rig:
    def __init__(self, front: str, folder: Path) -> None:
        self.engine, self.faults = Engine(folder / "server"), Faults()
        self.front = (GrpcFront if front == "grpc" else RestFront)(self.engine, self.faults)
        self.uri = self.front.uri("docs")


@pytest.fixture(params=["grpc", "rest"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(request.param, tmp_path)
    yield rig
    rig.front.stop()


def start(corpus: Path, uri: str, tmp_path: Path, *more: str, **environ: str) -> subprocess.Popen[str]:
    small = ["--window-rows", "64", "--slice-bytes", "8192", "--model", "fake:dim=16", "--keep", "n", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "embedctl", "embed", str(corpus), *small, "--to", uri, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "QDRANT_TIMEOUT_S": "1", **environ},
    )


def embed(corpus: Path, uri: str, tmp_path: Path, *more: str, **environ: str) -> tuple[int, dict, str]:
    process = start(corpus, uri, tmp_path, *more, **environ)
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, json.loads(stdout) if stdout else {}, stderr


def assert_whole(rig: Rig) -> None:
    found = rig.engine.points("docs")
    assert sorted(int(p.payload["id"][1:]) for p in found) == list(range(IDS))
    assert all(p.payload["n"] == 2**60 + int(p.payload["id"][1:]) for p in found), "the first position must win"
    assert rig.engine.collections["docs"].threshold == 10_000, "indexing must be restored"


def test_create_load_and_again(rig: Rig, corpus: Path, tmp_path: Path) -> None:
    code, _, stderr = embed(corpus, rig.uri, tmp_path, "--limit", "3")
    assert (code, "make it with --create" in stderr) == (2, True)
    assert not list((tmp_path / "state").rglob("plan-*.json")), "refused before anything is planned"
    code, told, stderr = embed(corpus, rig.uri, tmp_path, "--create", "--index-field", "n:integer")
    assert code == 0, stderr
    assert told["units"] == IDS
    assert_whole(rig)
    assert rig.engine.collections["docs"].thresholds_seen == [0, 10_000]
    assert {"n", "_job", "_pos"} <= rig.engine.info("docs").payload_schema.keys()
    assert embed(corpus, rig.uri, tmp_path)[1]["status"] == "already done"


def test_a_third_of_the_requests_fail(rig: Rig, corpus: Path, tmp_path: Path) -> None:
    rig.faults.share = 0.3
    code, _, stderr = embed(corpus, rig.uri, tmp_path, "--create")
    assert code == 0, stderr
    assert sum(n for kind, n in rig.faults.seen.items() if kind != "fine") >= 3
    rig.faults.share = 0
    assert_whole(rig)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wait_timeout", "lost"])
def test_faults_that_look_like_success_and_success_that_looks_like_a_fault(
    rig: Rig, corpus: Path, tmp_path: Path, kind: str
) -> None:
    rig.faults.share, rig.faults.kinds = 0.25, (kind,)
    code, _, stderr = embed(corpus, rig.uri, tmp_path, "--create")
    assert code == 0, stderr
    assert rig.faults.seen[kind] >= 3
    assert_whole(rig)


def test_a_full_quota_stops_and_the_run_goes_on_later(rig: Rig, corpus: Path, tmp_path: Path) -> None:
    assert embed(corpus, rig.uri, tmp_path, "--create", EMBEDCTL_FAILPOINT="after-ledger:2")[0] == -9
    rig.faults.share, rig.faults.kinds = 1.0, ("507",)
    code, told, _ = embed(corpus, rig.uri, tmp_path)
    assert (code, "make room on the server" in told["hint"]) == (5, True)
    assert rig.engine.collections["docs"].threshold == 10_000, "indexing must be restored after a failure"
    rig.faults.share = 0
    assert embed(corpus, rig.uri, tmp_path)[0] == 0
    assert_whole(rig)


@pytest.mark.parametrize("point", ["after-part:3", "after-ledger:1"])
def test_killed_and_run_again(rig: Rig, corpus: Path, tmp_path: Path, point: str) -> None:
    assert embed(corpus, rig.uri, tmp_path, "--create", EMBEDCTL_FAILPOINT=point)[0] == -9
    code, _, stderr = embed(corpus, rig.uri, tmp_path, "--create")
    assert code == 0, stderr
    assert_whole(rig)


def test_the_server_restarts_mid_load(corpus: Path, tmp_path: Path) -> None:
    rig = Rig("grpc", tmp_path)
    process = start(corpus, rig.uri, tmp_path, "--create", "--max-points-per-s", "600")
    deadline = time.monotonic() + 60
    while "docs" not in rig.engine.collections or rig.engine.count("docs", None) < 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rig.front.stop()
    rig.engine.restart()
    time.sleep(0.5)
    rig.front.start()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert_whole(rig)
    rig.front.stop()


def test_a_collection_of_another_shape_or_owner_is_refused(rig: Rig, corpus: Path, tmp_path: Path) -> None:
    from qdrant_client import models

    for size, words in ((8, "vector size 8, this job needs 16"), (16, "points there were not made by embedctl")):
        rig.engine.collections.clear()
        params = models.VectorParams(size=size, distance="Cosine")
        rig.engine._folder = tmp_path / f"server{size}"
        rig.engine.create("docs", models.CreateCollection(vectors=params))
        rig.engine.upsert("docs", [models.PointStruct(id=1, vector=[1.0] * size, payload={})], None)
        code, _, stderr = embed(corpus, rig.uri, tmp_path)
        assert (code, words in stderr) == (2, True), stderr


def test_nobody_listens(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import qdrant_client.http.exceptions as gone

    from embedctl.errors import SinkError
    from embedctl.sinks.qdrant_trouble import patiently

    def call() -> None:
        raise gone.ResponseHandlingException(ConnectionRefusedError("refused"))

    with pytest.raises(SinkError, match="no usable answer") as caught:
        patiently("qdrant://h/c", call, 0.0)
    assert "see that the server is up" in str(caught.value.hint)
