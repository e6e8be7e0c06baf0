"""Parquet and Arrow: memory, needed columns only, odd types, broken files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from embedctl.errors import SourceError
from embedctl.records import Segment
from embedctl.sources.arrow import ArrowFormat
from embedctl.sources.base import MAX_BLOCK_BYTES, MAX_ROW_BYTES
from embedctl.sources.parquet import ParquetFormat
from embedctl.testing.source_contract import lay_out, source_file

MEASURE = """
import resource, sys
import pyarrow as pa
from embedctl.sources.parquet import ParquetFormat
from embedctl.testing.source_contract import source_file
from embedctl.records import Segment
file = source_file(__import__("pathlib").Path(sys.argv[1]))
schema = pa.schema([("text", pa.string())])
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
before = peak()
rows = sum(len(b.positions) for b in ParquetFormat().read(file, Segment(file=0), schema, int(sys.argv[2])))
print(rows, (peak() - before) // 1024)
"""


def write_one_group(path: Path, num_rows: int, text_bytes: int) -> None:
    """One row group, written in steps so that the test itself stays small."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="snappy") as writer:
        pool = ["".join(map(chr, rng.integers(97, 123, text_bytes))) for _ in range(997)]
        texts = [pool[i % 997][i % 50 :] for i in range(num_rows)]
        writer.write_table(pa.table({"id": range(num_rows), "text": texts}, schema=schema), row_group_size=num_rows)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs VmHWM")
@pytest.mark.parametrize("start", [0, 250_000])
def test_one_huge_row_group_in_bounded_memory(tmp_path: Path, start: int) -> None:
    write_one_group(tmp_path / "a.parquet", 300_000, 600)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    run = [sys.executable, "-c", MEASURE, str(tmp_path / "a.parquet"), str(start)]
    rows, grown_mib = map(int, subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
    assert rows == 300_000 - start
    assert grown_mib < 100


def test_a_few_long_rows_among_short_ones_are_cut_into_small_blocks(tmp_path: Path) -> None:
    texts = ["short"] * 3000
    for i in range(100, 140):
        texts[i] = "x" * 500_000
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    file = source_file(tmp_path / "a.parquet")
    blocks = list(ParquetFormat().read(file, Segment(file=0), pa.schema([("text", pa.string())])))
    assert max(b.columns.nbytes for b in blocks) <= MAX_BLOCK_BYTES
    assert [c["text"] for c in lay_out(blocks).cells] == texts


def test_broken_columns_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"t{i}" for i in range(5000)], "junk": [f"j{i}" * 50 for i in range(5000)]})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset
    data[middle : middle + 200] = b"\xff" * 200
    path.write_bytes(data)
    file = source_file(path)
    read = ParquetFormat().read
    blocks = list(read(file, Segment(file=0), pa.schema([("text", pa.string())])))
    assert sum(len(b.positions) for b in blocks) == 5000
    with pytest.raises(SourceError, match=r"a\.parquet: a page in row groups 0 to 0 cannot be read"):
        list(read(file, Segment(file=0), pa.schema([("junk", pa.string())])))


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None, "é"]),
        pa.array(["a", None, "é"], pa.large_string()),
        pa.array(["a", None, "é"], pa.string_view()),
        pa.array(["a", None, "é"]).dictionary_encode(),
        pa.array([b"a", None, "é".encode()]),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["a", None, "é"])),
        pa.array([b"a", None, "é".encode()], pa.large_binary()),
    ],
)
def test_text_of_every_kind(tmp_path: Path, array: pa.Array) -> None:
    schema = pa.schema([("text", pa.string())])
    pq.write_table(pa.table({"text": array}), tmp_path / "a.parquet")
    pyarrow.feather.write_feather(pa.table({"text": array}), tmp_path / "a.feather", compression="lz4")
    for path, format in (("a.parquet", ParquetFormat()), ("a.feather", ArrowFormat())):
        rows = lay_out(list(format.read(source_file(tmp_path / path), Segment(file=0), schema)))
        assert [c["text"] for c in rows.cells] == ["a", None, "é"]


def test_a_value_too_large_is_an_error_of_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x" * (MAX_ROW_BYTES + 1), "y"]}), tmp_path / "a.parquet")
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    rows = lay_out(list(ParquetFormat().read(source_file(tmp_path / "a.parquet"), Segment(file=0), schema)))
    assert rows.cells == [{"id": "a", "text": None}, {"id": "b", "text": "y"}]
    assert rows.errors == {0: "column 'text' is larger than 64 MiB"}


def test_numbers_that_do_not_fit_are_errors_of_their_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": ["1", "x", "3"]}), tmp_path / "a.parquet")
    schema = pa.schema([("n", pa.int64())])
    rows = lay_out(list(ParquetFormat().read(source_file(tmp_path / "a.parquet"), Segment(file=0), schema)))
    assert [c["n"] for c in rows.cells] == [1, None, 3]
    assert rows.errors == {1: "column 'n' holds 'x', which does not fit int64"}


def test_a_top_level_name_with_a_dot_wins_over_the_path(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": ["top"], "a": [{"b": "inner", "c": 1}]}), tmp_path / "a.parquet")
    rows = lay_out(
        list(
            ParquetFormat().read(
                source_file(tmp_path / "a.parquet"),
                Segment(file=0),
                pa.schema([("a.b", pa.string()), ("a.c", pa.int64())]),
            )
        )
    )
    assert rows.cells == [{"a.b": "top", "a.c": 1}]


def test_row_groups_without_rows_and_many_small_ones(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for i in range(50):
            writer.write_table(pa.table({"text": [f"{i}"] * (i % 3)}, schema=schema))
    file = source_file(tmp_path / "a.parquet")
    segments = ParquetFormat().segments(file, 1)
    rows = [c["text"] for s in segments for c in lay_out(list(ParquetFormat().read(file, s, schema))).cells]
    assert rows == [f"{i}" for i in range(50) for _ in range(i % 3)]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.arrows", "a.feather"])
@pytest.mark.parametrize(
    "content", [b"not a table at all, just some text", b"PAR1PAR1", b"ARROW1\0\0", b"FEA1" + b"\0" * 40]
)
def test_what_is_no_table_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    file = source_file(tmp_path / name)
    format = ParquetFormat() if file.format == "parquet" else ArrowFormat()
    with pytest.raises(SourceError, match=f"^{name}: not a readable"):
        format.schema(file)


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_cut_arrow_file_is_refused(tmp_path: Path, kind: str) -> None:
    table = pa.table({"text": [f"row {i}" for i in range(10_000)]})
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    path = tmp_path / "a.arrow"
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    file = source_file(path)
    with pytest.raises(SourceError, match=r"a\.arrow: not a readable Arrow file"):
        list(ArrowFormat().read(file, Segment(file=0), ArrowFormat().schema(file)))
