"""Standard input: peeked at, read once, raw bytes kept."""

from __future__ import annotations

import io
import sys

import pytest

from embedctl import registry
from embedctl.errors import SourceError, UsageError
from embedctl.records import RowBlock, Segment
from embedctl.sources.files import discover
from embedctl.sources.stdin import StandardInput


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def read(format: str | None = None) -> list[RowBlock]:
    (file,) = discover(["-"], format)
    reader = registry.get("formats", file.format)()
    schema = reader.schema(file)
    assert reader.segments(file, 1) == [Segment(file=0)]
    return list(reader.read(file, Segment(file=0), schema))


def test_jsonl_with_raw_rows_and_byte_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'{"text": "a"}\r\n\n{"text": \n{"text": "c"}')
    (block,) = read()
    assert block.columns.to_pylist() == [{"text": "a"}, {"text": None}, {"text": "c"}]
    assert block.positions.tolist() == [0, 16, 26]
    assert block.raw == [b'{"text": "a"}', b'{"text": ', b'{"text": "c"}']
    assert set(block.errors) == {1}


def test_csv_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'id,text\n1,"a\nb"\n2\n')
    (block,) = read("csv")
    assert block.raw == [b'1,"a\nb"', b"2"]
    assert block.errors == {1: "row has 1 cells, the header has 2"}
    assert block.positions.tolist() == [8, 16]
    pipe(monkeypatch, b"one\ntwo")
    (block,) = read("text")
    assert block.raw == [b"one", b"two"]


def test_more_than_the_peek_is_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"".join(b'{"text": "%07d"}\n' % i for i in range(150_000)))
    blocks = read()
    assert sum(len(b.positions) for b in blocks) == 150_000
    assert blocks[-1].columns.column("text")[-1].as_py() == "0149999"


def test_files_have_no_raw(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    pipe(monkeypatch, b"x\n")
    assert read("text")[0].raw is not None


def test_a_second_reading_is_refused() -> None:
    source = StandardInput(io.BytesIO(b"abc"))
    assert source.peek(2) == b"ab"
    assert b"".join(source.chunks()) == b"abc"
    for again in (lambda: source.peek(1), lambda: list(source.chunks())):
        with pytest.raises(SourceError, match="-: standard input can be read only once"):
            again()


def test_an_empty_pipe_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"")
    assert read() == []


def test_a_closed_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="-: nothing is piped into standard input"):
        read()
