"""Lines: offsets, odd ends, rows too long to hold, files that break off."""

from __future__ import annotations

import bz2
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources import lines as lines_module
from embedctl.sources.base import MAX_ROW_BYTES
from embedctl.sources.jsonl import JsonlFormat
from embedctl.sources.lines import byte_segments, head, read_lines, split_lines
from embedctl.testing.source_contract import lay_out, source_file


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zst, "bz2": bz2.compress}


def write(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(data)
    return source_file(path)


def test_offsets_and_ends(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\n\r\ntwo\rstill two\nthree")
    assert [(x.offset, x.end, x.content) for x in read_lines(file)] == [
        (0, 8, b"one"),
        (11, 25, b"two\rstill two"),
        (25, 30, b"three"),
    ]


@given(st.lists(st.sampled_from([b"a", b"", b"bb\r", b"ccc", b"\xef\xbb\xbf"])), st.booleans(), st.integers(1, 9))
def test_chunks_may_be_cut_anywhere(parts: list[bytes], final: bool, size: int) -> None:
    data = b"\n".join(parts) + (b"\n" if final else b"")
    cut = [data[i : i + size] for i in range(0, len(data), size)]
    assert list(split_lines(iter(cut), 0, all_lines=False)) == list(split_lines(iter([data]), 0, all_lines=False))
    every = list(split_lines(iter(cut), 0, all_lines=True))
    assert b"".join(x.content for x in every) == data.removeprefix(b"\xef\xbb\xbf")
    assert [x.end for x in every[:-1]] == [x.offset for x in every[1:]]


@pytest.mark.parametrize("target", [1, 2, 3, 5, 7, 1000])
def test_a_line_belongs_to_the_segment_of_its_first_byte(tmp_path: Path, target: int) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfab\n\ncdefgh\r\ni\n\n\njk")
    got = [x for s in byte_segments(file, target) for x in read_lines(file, s.begin, s.end)]
    assert got == list(read_lines(file))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2"])
def test_a_line_too_long_is_an_error_row_and_is_not_held(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    long = b'{"text": "' + b"x" * (MAX_ROW_BYTES + 100) + b'"}'
    data = b'{"text": "a"}\n' + long + b'\n{"text": "b"}\n'
    path.write_bytes(COMPRESS[suffix[1:]](data) if suffix else data)
    del data, long
    file = source_file(path)
    schema = JsonlFormat().schema(file)
    tracemalloc.start()
    rows = lay_out(list(JsonlFormat().read(file, Segment(file=0), schema)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [c["text"] for c in rows.cells] == ["a", None, "b"]
    assert rows.errors == {1: "line is longer than 64 MiB"}
    # One chunk of zstd can hold tens of MiB more than the line's limit.
    assert peak < 2 * MAX_ROW_BYTES
    assert rows.positions == [0, 14, 14 + MAX_ROW_BYTES + 100 + 13]


@pytest.mark.parametrize("kind", sorted(COMPRESS))
@pytest.mark.parametrize("damage", ["cut", "flip", "garbage"])
def test_rows_before_a_break_come_first(tmp_path: Path, kind: str, damage: str) -> None:
    whole = b"".join(json.dumps({"id": i, "text": f"row {i * 7919 % 10007}"}).encode() + b"\n" for i in range(60_000))
    packed = bytearray(COMPRESS[kind](whole))
    if damage == "cut":
        packed = packed[: len(packed) * 2 // 3]
    elif damage == "flip":
        packed[-6] ^= 0xFF
        packed[len(packed) * 2 // 3] ^= 0xFF
    else:
        packed += b"this is not compressed"
    (tmp_path / f"a.jsonl.{kind}").write_bytes(packed)
    file = source_file(tmp_path / f"a.jsonl.{kind}")
    blocks = JsonlFormat().read(file, Segment(file=0), pa.schema([("text", pa.string())]))
    read: list[RowBlock] = []
    with pytest.raises(SourceError, match=rf"^a\.jsonl\.{kind}: is (a truncated|not valid) {kind}") as caught:
        read.extend(blocks)
    seen = sum(len(block.positions) for block in read)
    assert "decompressed bytes could be read" in str(caught.value)
    assert seen > (0 if damage == "flip" else 20_000)
    assert seen <= 60_000


def test_empty_compressed_files_have_no_rows(tmp_path: Path) -> None:
    for kind, pack in COMPRESS.items():
        assert list(read_lines(write(tmp_path / f"none.txt.{kind}", b""))) == []
        assert list(read_lines(write(tmp_path / f"empty.txt.{kind}", pack(b"")))) == []


def test_a_long_window_zst_can_be_read(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(b"hello\n" * 1000)
    assert len(list(read_lines(write(tmp_path / "a.txt.zst", packed)))) == 1000


def test_repetitive_zst_comes_in_small_pieces(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt.zst", zstandard.compress(b"x" * (200 << 20)))
    assert max(map(len, lines_module.chunks_from(file, 0))) <= 64 << 20


def test_utf16_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "x"}'.encode("utf-16"))
    with pytest.raises(SourceError, match=r"a\.jsonl: is UTF-16 text"):
        list(read_lines(file))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress(b"x", mtime=0), "a gz file"),
        (zst(b"x"), "a zst file"),
        (bz2.compress(b"x"), "a bz2 file"),
        (b"PAR1....PAR1", "a Parquet file"),
    ],
)
def test_other_kinds_of_file_under_a_wrong_name_are_told(tmp_path: Path, data: bytes, kind: str) -> None:
    file = write(tmp_path / "a.jsonl", data)
    with pytest.raises(SourceError, match=rf"a\.jsonl: is {kind}, not jsonl text"):
        list(read_lines(file))


def test_head_is_bounded(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt.gz", gzip.compress(b"x" * 5_000_000))
    assert len(head(file, 1000)) == 1000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line is not JSON: Expecting property name enclosed in double quotes (character 1)"),
        (b'{"text": NaN}', "line is not JSON: NaN is not a JSON number"),
        (b'{"text": -Infinity}', "line is not JSON: -Infinity is not a JSON number"),
        (b"null", "line is null, not a JSON object"),
        (b'"text"', "line is a string, not a JSON object"),
        (b'{"text": "a"} {"text": "b"}', "line is not JSON: Extra data (character 14)"),
        (b'{"text": "\xff"}', "line is not valid UTF-8 (byte 10)"),
        (b'{"text": "\\ud800"}', "column 'text' holds a lone surrogate (character 0)"),
        (b'{"text": {"a": 1}}', "column 'text' is an object, not a string"),
        (b"[" * 100_000, "line is not JSON: nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "line is not JSON: Exceeds the limit (4300 digits)"),
    ],
)
def test_reasons(tmp_path: Path, line: bytes, reason: str) -> None:
    good = b'{"text": "good"}\n'
    file = write(tmp_path / "a.jsonl", good + line + b"\n" + good)
    schema = JsonlFormat().schema(write(tmp_path / "good.jsonl", good))
    rows = lay_out(list(JsonlFormat().read(file, Segment(file=0), schema)))
    assert [c["text"] for c in rows.cells] == ["good", None, "good"]
    assert rows.errors[1].startswith(reason)
