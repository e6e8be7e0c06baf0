"""A Parquet destination is a plain folder: every reader people use sees the vectors and nothing of the state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import run

ROWS, DIM = 100, 8


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    pq.write_table(pa.table({"id": range(ROWS), "text": [f"row {i}" for i in range(ROWS)]}), folder / "in.parquet")
    arguments = ["embed", str(folder / "in.parquet"), "--to", str(folder / "out"), "--window-rows", "40"]
    done = run([*arguments, "--model", f"fake:dim={DIM}"])
    assert done.returncode == 0, done.stderr
    return folder / "out"


def by_pyarrow(out: Path) -> tuple[list[int], list[list[float]]]:
    table = ds.dataset(out).to_table()
    return table["id"].to_pylist(), table["embedding"].to_pylist()


def by_pandas(out: Path) -> tuple[list[int], list[list[float]]]:
    frame = pytest.importorskip("pandas").read_parquet(out)
    return frame["id"].tolist(), frame["embedding"].tolist()


def by_polars(out: Path) -> tuple[list[int], list[list[float]]]:
    frame = pytest.importorskip("polars").scan_parquet(out / "*.parquet").collect()
    return frame["id"].to_list(), frame["embedding"].to_list()


def by_duckdb(out: Path) -> tuple[list[int], list[list[float]]]:
    found = pytest.importorskip("duckdb").sql(f"select id, embedding from '{out}/*.parquet'").fetchall()
    return [row[0] for row in found], [list(row[1]) for row in found]


def by_datasets(out: Path) -> tuple[list[int], list[list[float]]]:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    cache = out.parent / "cache"
    found = datasets.load_dataset("parquet", data_files=str(out / "*.parquet"), cache_dir=str(cache), split="train")
    return list(found["id"]), list(found["embedding"])


def by_datasets_folder(out: Path) -> tuple[list[int], list[list[float]]]:
    """The folder by its name alone, as people type it: the state under it must stay out of sight."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    found = datasets.load_dataset(str(out), cache_dir=str(out.parent / "cache"), split="train")
    return list(found["id"]), list(found["embedding"])


@pytest.mark.parametrize(
    "reader", [by_pyarrow, by_pandas, by_polars, by_duckdb, by_datasets, by_datasets_folder], ids=lambda f: f.__name__
)
def test_a_reader_sees_every_vector_once(
    reader: Callable[[Path], tuple[list[int], list[list[float]]]], out: Path
) -> None:
    expected = {}
    for part in sorted(out.glob("*.parquet")):
        table = pq.read_table(part)
        flat = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
        expected.update(zip(table["id"].to_pylist(), flat, strict=True))
    ids, vectors = reader(out)
    assert sorted(ids) == list(range(ROWS)) == sorted(expected)
    np.testing.assert_array_equal(np.array([*vectors]), np.array([expected[i] for i in ids]))
