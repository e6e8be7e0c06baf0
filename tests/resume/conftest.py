"""Corpora for kill tests: several kinds of files, small windows, so that a run has many commits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 600
SMALL = ["--window-rows", "64", "--slice-bytes", "16384", "--model", "fake:dim=8"]


def row(i: int) -> dict[str, object]:
    text = None if i % 97 == 5 else f"row {i} says " + "word " * (i * 7 % 23)
    return {"id": f"r{i % (ROWS - 6)}", "text": text, "lang": "en" if i % 3 else "de", "n": i}


def write_corpus(kind: str, folder: Path) -> Path:
    """A corpus of ROWS rows with null texts and six ids that stand twice."""
    rows = [row(i) for i in range(ROWS)]
    folder.mkdir(parents=True)
    if kind == "parquet":
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, folder / "corpus.parquet", row_group_size=150)
    elif kind == "jsonl":
        (folder / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    elif kind == "gz":
        with gzip.open(folder / "corpus.jsonl.gz", "wt") as out:
            out.writelines(json.dumps(r) + "\n" for r in rows)
    else:
        for i in range(0, ROWS, 3):
            (folder / f"shard-{i:05d}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows[i : i + 3]))
    return folder


@pytest.fixture(scope="module", params=["parquet", "jsonl", "gz", "tiny"])
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(request.param, tmp_path_factory.mktemp("corpus") / "in")
