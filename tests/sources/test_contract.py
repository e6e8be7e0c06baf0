"""Every built-in format keeps to the source contract, over files with bad rows, long rows and odd line ends."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zstandard

from embedctl.records import SourceFile
from embedctl.sources.arrow import ArrowFormat
from embedctl.sources.csv import CsvFormat, TsvFormat
from embedctl.sources.jsonl import JsonlFormat
from embedctl.sources.parquet import ParquetFormat
from embedctl.sources.text import TextFormat
from embedctl.testing.source_contract import SourceContract, source_file

TEXTS = [f"text {i} " + "é" * (i % 7) + "x" * (2000 if i == 20 else 0) for i in range(50)]
NOT_UTF8 = 7


def table() -> pa.Table:
    """50 rows whose row 7 is not valid UTF-8 although its type says it is."""
    raw = [text.encode() for text in TEXTS]
    raw[NOT_UTF8] = b"caf\xe9"
    text = pa.array(raw, pa.binary()).view(pa.string())
    return pa.table(
        {
            "id": pa.array(range(50), pa.int32()),
            "text": text,
            "kind": pa.array(["a", "b"] * 25).dictionary_encode(),
            "meta": pa.array([{"a": i, "tags": ["x"] * (i % 3)} for i in range(50)]),
        }
    )


def jsonl_bytes() -> bytes:
    lines = [json.dumps({"id": i, "text": text, "n": i / 2}).encode() for i, text in enumerate(TEXTS)]
    lines[3] = b'{"id": 3, "text": 17}'
    lines[9] = b"{"
    lines[12] = b'{"id": 12, "text": "caf\xe9"}'
    lines[15] = b'{"id": 15, "text": "\\ud800"}'
    ends = [b"\r\n" if i % 5 == 0 else b"\n\n" if i % 7 == 0 else b"\n" for i in range(50)]
    return b"\xef\xbb\xbf" + b"".join(line + end for line, end in zip(lines, ends, strict=True))[:-1]


JSONL_ERRORS = {
    3: "column 'text' is a number, not a string",
    9: "line is not JSON",
    12: "not valid UTF-8 (byte ",
    15: "lone surrogate",
}


class TestParquet(SourceContract):
    format = ParquetFormat()
    expected_errors: ClassVar = {NOT_UTF8: "column 'text' is not valid UTF-8 (byte 3)"}

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        pq.write_table(table(), tmp_path / "a.parquet", row_group_size=13)
        return source_file(tmp_path / "a.parquet")


class TestArrowFile(SourceContract):
    format = ArrowFormat()
    expected_errors: ClassVar = {NOT_UTF8: "column 'text' is not valid UTF-8 (byte 3)"}

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        with pa.ipc.new_file(tmp_path / "a.arrow", table().schema) as writer:
            writer.write_table(table(), max_chunksize=13)
        return source_file(tmp_path / "a.arrow")


class TestArrowStream(SourceContract):
    format = ArrowFormat()
    expected_errors: ClassVar = {NOT_UTF8: "column 'text' is not valid UTF-8 (byte 3)"}

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        with pa.ipc.new_stream(tmp_path / "a.arrows", table().schema) as writer:
            writer.write_table(table(), max_chunksize=13)
        return source_file(tmp_path / "a.arrows")


class TestJsonl(SourceContract):
    format = JsonlFormat()
    expected_errors: ClassVar = {k: v for k, v in JSONL_ERRORS.items() if k != 3}

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        (tmp_path / "a.jsonl").write_bytes(jsonl_bytes())
        return source_file(tmp_path / "a.jsonl")


class TestJsonlGz(TestJsonl):
    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        data = jsonl_bytes()
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data[:900]) + gzip.compress(data[900:]) + b"\0" * 20)
        return source_file(tmp_path / "a.jsonl.gz")


class TestJsonlZst(TestJsonl):
    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        data = jsonl_bytes()
        frames = [zstandard.compress(data[:900]), zstandard.compress(data[900:])]
        (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
        return source_file(tmp_path / "a.jsonl.zst")


class TestJsonlBz2(TestJsonl):
    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        data = jsonl_bytes()
        (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(data[:900]) + bz2.compress(data[900:]))
        return source_file(tmp_path / "a.jsonl.bz2")


def csv_bytes(delimiter: str) -> bytes:
    rows = [f'{i}{delimiter}"{text} ""quoted""\nsecond line"{delimiter}z'.encode() for i, text in enumerate(TEXTS)]
    rows[4] = delimiter.join("abcd").encode()
    rows[8] = b"8" + delimiter.encode() + b"caf\xe9" + delimiter.encode() + b"z"
    rows[11] = f'11{delimiter}"a"b{delimiter}z'.encode()
    return b"\xef\xbb\xbf" + delimiter.join(("id", "text", "k")).encode() + b"\r\n" + b"\n".join(rows)


CSV_ERRORS = {4: "row has 4 cells, the header has 3", 8: "column 'text' is not valid UTF-8", 11: "not valid CSV"}


class TestCsv(SourceContract):
    format = CsvFormat()
    expected_errors = CSV_ERRORS

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        (tmp_path / "a.csv").write_bytes(csv_bytes(","))
        return source_file(tmp_path / "a.csv")


class TestTsvGz(SourceContract):
    format = TsvFormat()
    expected_errors = CSV_ERRORS

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(csv_bytes("\t")))
        return source_file(tmp_path / "a.tsv.gz")


class TestText(SourceContract):
    format = TextFormat()
    expected_errors: ClassVar = {2: "line is not valid UTF-8 (byte 3)"}

    @pytest.fixture
    def file(self, tmp_path: Path) -> SourceFile:
        lines = [t.encode() for t in TEXTS]
        lines[2] = b"caf\xe9"
        (tmp_path / "a.txt").write_bytes(b"\n\n" + b"\r\n".join(lines) + b"\n\n")
        return source_file(tmp_path / "a.txt")
