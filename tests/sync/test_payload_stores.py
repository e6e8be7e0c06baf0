"""Rows of which only kept columns changed are written again in any store without being embedded, also across kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedctl import job
from embedctl.events import Silent
from embedctl.job.destination import open_existing
from tests.sync.world import World, counting, spec_of

KINDS = ["qdrant-edge", "qdrant", "lancedb", "pgvector", "elastic", pytest.param("milvus", marks=pytest.mark.slow)]


@pytest.fixture(params=KINDS)
def to(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a destination of its own; servers are reached by other processes too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kind, front = request.param, None
    if kind == "pgvector":
        server = request.getfixturevalue("postgres")
        server.sql("DROP SCHEMA public CASCADE")
        server.sql("CREATE SCHEMA public")
        yield server.uri("docs")
        return
    if kind == "qdrant":
        from tests.rig.engine import Engine
        from tests.rig.faults import Faults
        from tests.rig.grpc_front import GrpcFront

        front = GrpcFront(Engine(tmp_path / "server"), Faults())
        yield front.uri("docs")
    elif kind == "elastic":
        from tests.rig.elastic_front import ElasticFront

        front = ElasticFront()
        yield front.uri("docs")
    else:
        pytest.importorskip({"milvus": "milvus_lite", "qdrant-edge": "qdrant_edge"}.get(kind, kind))
        yield {
            "qdrant-edge": f"qdrant-edge://{tmp_path}/edge",
            "lancedb": f"lancedb://{tmp_path}/lance/docs",
            "milvus": f"milvus-lite://{tmp_path}/m.db/docs",
        }[kind]
    if front is not None:
        front.stop()


def held(world: World, to: str) -> dict[str, Any]:
    """Id and chunk -> kept columns and vector."""
    _, found = open_existing(spec_of(world, to))
    rows = [row for batch in found.sink.scan() for row in batch.to_pylist()]  # type: ignore[attr-defined]
    found.sink.close()
    made = {f"{r['id']}#{r.get('chunk') or 0}": (r["lang"], r["n"], r["embedding"]) for r in rows}
    assert len(made) == len(rows)
    return made


def wanted(world: World, before: dict[str, Any]) -> dict[str, Any]:
    """The vectors there were, beside the columns as the corpus has them now."""
    live = world.live()
    return {k: (live[k.split("#")[0]]["lang"], live[k.split("#")[0]]["n"], v) for k, (_, _, v) in before.items()}


@pytest.mark.parametrize("chunk", [None, "tokens:4"], ids=["rows", "chunks"])
def test_nothing_is_embedded_again(to: str, chunk: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "corpus", random.Random(3))
    world.split([world.row() for _ in range(40)], 4)
    spec = spec_of(world, to, create=True, chunk=chunk)
    job.sync(spec, Silent())
    before = held(world, to)
    for number in (3, 4, 17):
        world.every()[number]["lang"] = f"new {number}"
    world.edit_shuffle()
    encoded = counting(monkeypatch)
    done = job.sync(spec, Silent())
    assert (sum(encoded), done.details["changes"]["payload"]) == (0, 3)
    found, asked = held(world, to), wanted(world, before)
    assert found.keys() == asked.keys()
    for key, (lang, n, vector) in asked.items():
        assert found[key][:2] == (lang, n)
        assert found[key][2] == pytest.approx(vector, abs=1e-6)
    assert job.sync(spec, Silent()).status == "already in sync"


@pytest.mark.parametrize("place", ["before-part", "after-part", "before-ledger", "after-ledger", "before-drop"])
def test_killed_between_it_ends_the_same(to: str, place: str, tmp_path: Path) -> None:
    world = World(tmp_path / "corpus", random.Random(5))
    world.split([world.row() for _ in range(40)], 2)
    spec = spec_of(world, to, create=True)
    job.sync(spec, Silent())
    before = held(world, to)
    for number in range(0, 40, 3):
        world.every()[number]["lang"] = f"new {number}"
    world.write_all()
    command = [
        sys.executable, "-m", "embedctl", "sync", str(world.folder), "--to", to, "--create", "--model", "fake:dim=4",
        "--keep", "lang,n", "--id-column", "id", "--text-column", "text", "--window-rows", "8", "--slice-bytes", "600",
        "--max-delete", "100%", "--json",
    ]  # fmt: skip
    killed = subprocess.run(
        command, env={**os.environ, "EMBEDCTL_FAILPOINT": f"{place}:1"}, capture_output=True, text=True, check=False
    )
    if killed.returncode == -signal.SIGKILL:
        killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == 0, killed.stderr
    assert json.loads(killed.stdout)["rows"]["read"] == 40
    found, asked = held(world, to), wanted(world, before)
    assert {k: v[:2] for k, v in found.items()} == {k: v[:2] for k, v in asked.items()}
    for key, (_, _, vector) in asked.items():
        assert found[key][2] == pytest.approx(vector, abs=1e-6)
