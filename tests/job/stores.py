"""What tests of commands around stores share: commands run in this process, in a folder of their own, and a corpus with
a dead row and ids that stand twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.cli.app import main

ROWS, IDS = 200, 190
FAKE = ("--model", "fake:dim=16", "--keep", "n,lang", "--window-rows", "32")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command: its JSON, or with another `code` than 0 and 3 its error."""

    def call(*args: str, code: int = 0) -> Any:
        capsys.readouterr()
        got = main([*args, *(() if code else ("--json",) if args[0] == "status" else ("--json", "-q"))])
        told = capsys.readouterr()
        assert got == code or (not code and got == 3), told.err or told.out
        return told.err if code else json.loads(told.out)

    return call


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    made = [
        {
            "id": f"r{i % IDS}",
            "text": f"row {i} says " + "word " * (i * 7 % 23),
            "n": 2**60 + i,
            "lang": [None, "en"][i % 2],
        }
        for i in range(count)
    ]
    made[17]["text"] = None
    return made


def write(path: Path, made: list[dict[str, Any]]) -> str:
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("n", pa.int64()), ("lang", pa.string())])
    pq.write_table(pa.Table.from_pylist(made, schema=schema), path, row_group_size=50)
    return str(path)


@pytest.fixture
def corpus(place: Path) -> str:
    return write(place / "corpus.parquet", rows())


@pytest.fixture
def folder(cli: Callable[..., Any], corpus: str) -> str:
    cli("embed", corpus, *FAKE, "--to", "out")
    return "out"


def points(store: str) -> dict[str, Any]:
    """What the engine itself says is there, by the corpus's id (and chunk)."""
    import qdrant_edge as edge

    shard = edge.EdgeShard.load(store)
    found, _ = shard.scroll(edge.ScrollRequest(limit=10_000, with_payload=True, with_vector=True))
    shard.close()
    return {f"{p.payload['id']}#{p.payload.get('chunk', 0)}": p for p in found}


def parts(out: str) -> dict[str, dict[str, Any]]:
    """The rows of a folder, by id (and chunk)."""
    tables = [pq.read_table(p, partitioning=None) for p in sorted(Path(out).glob("*.parquet"))]
    return {f"{r['id']}#{r.get('chunk', 0)}": r for t in tables for r in t.to_pylist()}
