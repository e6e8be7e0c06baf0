"""A small corpus in which ten ids stand twice, far apart, and the command that loads it in many windows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import run

ROWS, IDS, DIM = 600, 590, 16
KILLS = [
    pytest.param("before-part", 1, marks=pytest.mark.slow),
    ("after-part", 2),
    ("before-ledger", 7),
    pytest.param("after-ledger", 8, marks=pytest.mark.slow),
]


def write(folder: Path) -> Path:
    """The second time an id comes, `n` is another."""
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


def embed(corpus: Path, uri: str, *more: str) -> list[str]:
    small = ["--window-rows", "64", "--slice-bytes", "16384", "--model", f"fake:dim={DIM}", "--keep", "n,lang"]
    return ["embed", str(corpus), *small, "--to", uri, "--json", *more]


def assert_whole(rows: list[Mapping[str, Any]]) -> None:
    """Every id once, and of those that stand twice the first."""
    assert sorted(row["id"] for row in rows) == sorted(f"r{i}" for i in range(IDS))
    for row in rows:
        i = int(row["id"][1:])
        assert (row["n"], row["lang"]) == (2**60 + i, [None, "en"][i % 2]), "the first position of an id must win"
        assert len(row["_hash"]) == 32


def check_sync(source: Path, uri: str, rows_of: Callable[[], list[dict[str, Any]]]) -> None:
    """Changed, moved, new and vanished rows, the sync killed once: what is there then is the corpus."""
    rows: list[dict[str, Any]] = [{"id": f"r{i}", "text": f"hello {i}", "n": i} for i in range(200)]
    load = [str(source), "--model", "fake:dim=16", "--keep", "n", "--window-rows", "32", "--to", uri, "--create"]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["embed", *load]).returncode == 0
    before = {row["id"]: row["embedding"] for row in rows_of()}
    rows[3] |= {"text": "changed"}
    rows[70] |= {"n": -70}
    rows = [*reversed(rows[:100]), *rows[103:], {"id": "new", "text": "new", "n": 7}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["sync", *load], failpoint="after-part:1").returncode == -9
    done = run(["sync", *load])
    assert done.returncode == 0, done.stderr
    after = {row["id"]: row for row in rows_of()}
    assert len(after) == len(rows_of()) == len(rows)
    assert {id: row["n"] for id, row in after.items()} == {row["id"]: row["n"] for row in rows}
    assert {id for id, row in after.items() if row["embedding"] != before.get(id)} == {"r3", "new"}
    assert run(["verify", uri]).returncode == 0
