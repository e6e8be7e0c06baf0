"""The readers give each sample corpus what its README promises: counts, reasons, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl import registry
from embedctl.errors import EmbedctlError
from embedctl.sources.base import Format
from embedctl.sources.files import discover
from embedctl.sources.schema import resolve_schema

CORPORA = Path(__file__).parents[2] / "sample_corpora"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CORPORA / "expected.json").read_text(encoding="utf-8"))


def read_all(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """(cells of all rows, reasons of the rows that the reader or the text rule refuses)."""
    files = discover([str(path)])
    formats: dict[str, Format] = {f.format: registry.get("formats", f.format)() for f in files}
    resolved = resolve_schema(files, formats)
    cells: list[dict[str, Any]] = []
    reasons: list[str] = []
    for file in files:
        for segment in formats[file.format].segments(file, 100):
            for block in formats[file.format].read(file, segment, resolved.schema):
                texts = block.columns.column(resolved.text_columns[0]).to_pylist()
                for i, text in enumerate(texts):
                    reason = block.errors.get(i) or _text_rule(text)
                    reasons += [reason] if reason else []
                cells += block.columns.to_pylist()
    return cells, reasons


def _text_rule(text: str | None) -> str | None:
    if text is None:
        return "text is null"
    if text == "":
        return "text is empty"
    return "text is only white space" if not text.replace("\0", " ").strip() else None


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_nasty_corpus(name: str) -> None:
    expected = EXPECTED[name]
    if expected["exit_code"] in (2, 4):
        with pytest.raises(EmbedctlError) as caught:
            read_all(CORPORA / name)
        assert caught.value.exit_code == expected["exit_code"]
        assert expected["message"] in str(caught.value)
        return
    cells, reasons = read_all(CORPORA / name)
    assert len(cells) == expected["rows"]["read"]
    assert len(reasons) == expected["rows"]["dead"] == len(expected["reasons"])
    for reason, part in zip(reasons, expected["reasons"], strict=True):
        assert part in reason


def test_every_nasty_file_is_expected() -> None:
    names = {f"nasty/{p.name}" for p in (CORPORA / "nasty").iterdir()}
    assert names == EXPECTED.keys()


def test_the_real_corpus_is_the_same_in_parquet_and_in_shards() -> None:
    table = pq.read_table(CORPORA / "real" / "pydocs.parquet")
    cells, reasons = read_all(CORPORA / "real" / "pydocs-shards")
    assert not reasons
    assert cells == table.select(["text", "id"]).to_pylist()
    assert table.num_rows == 300
    assert len(set(table["id"].to_pylist())) == 300


def test_all_text_of_the_huge_row_arrives() -> None:
    cells, _ = read_all(CORPORA / "nasty" / "huge_text.jsonl.zst")
    assert [len(c["text"]) > 5_000_000 for c in cells] == [False, True, False]


def test_schema_of_drifting_shards_is_one() -> None:
    cells, _ = read_all(CORPORA / "nasty" / "drift_tolerated")
    assert [c["id"] for c in cells] == ["1", "2", "3", "4", "5"]
    assert pa.array([c["text"] for c in cells]).null_count == 1
