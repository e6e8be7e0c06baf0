"""Small corpora of pairs and of candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

ROWS = 240
_PROSE = "the of a cat sat on mat what is good bad fox ran over lazy dog yes no query doc find here there"
WORDS = _PROSE.split()

Row = dict[str, Any]


def text(seed: int, words: int) -> str:
    return " ".join(WORDS[(seed * 7 + i * 3) % len(WORDS)] for i in range(words))


def pair_rows() -> list[Row]:
    """Pairs, one passage null, one query blank, one id twice."""
    rows = [
        {"id": f"r{i}", "q": text(i, 3 + i % 5), "passage": text(i + 1, 2 + i % 40), "lang": "en" if i % 3 else "de"}
        for i in range(ROWS)
    ]
    rows[7]["passage"] = None
    rows[11]["q"] = "  "
    rows[200]["id"] = "r3"
    return rows


def run_rows() -> list[Row]:
    """Queries with one to five candidates; a list that is empty, one null, one with an empty text in it."""
    rows: list[Row] = [
        {
            "id": f"q{i}",
            "query": text(i, 4),
            "hits": [{"docid": f"d{i}-{j}", "text": text(i + j, 2 + j * 3), "n": j} for j in range(1 + i % 5)],
        }
        for i in range(ROWS)
    ]
    rows[3]["hits"], rows[4]["hits"] = [], None
    rows[9]["hits"][2]["text"] = ""
    rows[12]["query"] = None
    return rows


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(pair_rows()), tmp_path / "pairs.parquet", row_group_size=60)
    return tmp_path / "pairs.parquet"


@pytest.fixture
def runs_file(tmp_path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(run_rows()), tmp_path / "runs.parquet", row_group_size=60)
    return tmp_path / "runs.parquet"


def rows_of(destination: Path) -> list[Row]:
    found: list[Row] = ds.dataset(destination).to_table().to_pylist()
    return found
