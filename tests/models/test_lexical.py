"""BM25, BM42 and miniCOIL are the library's own numbers, through the same job as every model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedctl.encoders.lexical import word_counts
from embedctl.errors import ModelError
from embedctl.models.lexical import parse
from embedctl.models.load import find_model
from embedctl.tokens.code_points import CodePoints

fastembed = pytest.importorskip("fastembed", exc_type=ImportError)

TEXTS = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps on, and on, and on.",
    "Foxes are quick. A fox's den is warm, and foxes sleep in it.",
    "Sleeping dogs lie \U0001f415 — naïve façade",
    "word " * 300,
]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files BM25 needs: stop words by language."""
    path = tmp_path / "bm25"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "english.txt").write_text("the\nover\nand\non\nare\na\nis\nin\nit\n")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": f"r{i}", "text": t}) + "\n" for i, t in enumerate(TEXTS)))
    return path


def reference(folder: Path, **settings: float) -> list[dict[int, float]]:
    library = fastembed.SparseTextEmbedding("Qdrant/bm25", specific_model_path=str(folder), **settings)
    return [dict(zip(e.indices.tolist(), e.values.tolist(), strict=True)) for e in library.embed(TEXTS)]


def held(out: Path, column: str = "embedding") -> list[dict[int, float]]:
    rows = pq.read_table(out)[column].to_pylist()
    for row in rows:
        assert row["indices"] == sorted(set(row["indices"]))
    return [dict(zip(row["indices"], row["values"], strict=True)) for row in rows]


def assert_close(found: list[dict[int, float]], expected: list[dict[int, float]]) -> None:
    assert [sorted(f) for f in found] == [sorted(e) for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose([f[k] for k in sorted(f)], [e[k] for k in sorted(e)], rtol=1e-6)


def test_bm25_is_the_librarys(embedctl: Command, folder: Path, corpus: Path, tmp_path: Path) -> None:
    done = embedctl("embed", corpus, "--model", f"bm25:avg_len=20,b=0.5,path={folder}", "--to", "out")
    assert done.returncode == 0, done.stderr
    assert_close(held(tmp_path / "out"), reference(folder, avg_len=20.0, b=0.5))
    plan = json.loads((tmp_path / "out/.embedctl/plan-0001.json").read_text())
    assert plan["passes"][0]["outputs"][0]["modifier"] == "idf"
    assert embedctl("verify", "out").returncode == 0


def test_the_corpus_own_average(embedctl: Command, folder: Path, corpus: Path, tmp_path: Path) -> None:
    done = embedctl("embed", corpus, "--model", f"bm25:avg_len=auto,path={folder}", "--to", "out")
    assert done.returncode == 0, done.stderr
    library = fastembed.SparseTextEmbedding("Qdrant/bm25", specific_model_path=str(folder)).model
    from fastembed.common.utils import remove_non_alphanumeric

    words = [len(library._stem(library.tokenizer.tokenize(remove_non_alphanumeric(t)))) for t in TEXTS]
    found = parse(f"bm25:path={folder}")
    assert found is not None
    assert word_counts(found, TEXTS).tolist() == words
    assert_close(held(tmp_path / "out"), reference(folder, avg_len=sum(words) / len(words)))
    again = embedctl("embed", corpus, "--model", f"bm25:avg_len=auto,path={folder}", "--to", "out", "--json")
    assert json.loads(again.stdout)["status"] == "already done"
    fixed = embedctl("embed", corpus, "--model", f"bm25:path={folder}", "--to", "fixed", "--json")
    assert json.loads(fixed.stdout)["recipe"] != json.loads(again.stdout)["recipe"]


def test_beside_a_dense_model(embedctl: Command, folder: Path, corpus: Path, tmp_path: Path) -> None:
    done = embedctl(
        "embed", corpus, "--model", "dense=fake:dim=4", "--model", f"sparse=bm25:path={folder}", "--to", "out"
    )
    assert done.returncode == 0, done.stderr
    assert_close(held(tmp_path / "out", "sparse"), reference(folder))


def test_what_is_refused(embedctl: Command, folder: Path, corpus: Path) -> None:
    assert parse("all-MiniLM-L6-v2") is None
    for text in ("bm25:alpha=1", "bm25:avg_len=none", "bm25:avg_len=-3", "bm25:k", "bm42:language=german"):
        with pytest.raises(ModelError, match="--model"):
            parse(text)
    with pytest.raises(ModelError, match="cannot be opened"):
        find_model("bm42", offline=True)
    absent = embedctl("embed", corpus, "--model", "bm42", "--offline", "--to", "a")
    assert absent.returncode == 2
    assert absent.stderr.startswith("error: --model: Qdrant/bm42-all-minilm-l6-v2-attentions cannot be opened"), (
        absent.stderr
    )
    piped = embedctl("embed", "-", "--model", f"bm25:avg_len=auto,path={folder}", "--to", "s", input='{"text": "a"}\n')
    assert piped.returncode == 2
    assert "reads the corpus twice" in piped.stderr
    cut = embedctl("embed", corpus, "--model", f"bm25:avg_len=auto,path={folder}", "--chunk", "tokens:9", "--to", "c")
    assert cut.returncode == 2
    assert "counts documents, and --chunk cuts them" in cut.stderr


def test_code_points_give_the_text_back() -> None:
    tokenizer = CodePoints(max_length=1 << 30)
    found = tokenizer([*TEXTS, ""])
    ids = found.ids_T.astype("<u4")
    texts = [ids[a:b].tobytes().decode("utf-32-le") for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    assert texts == [*TEXTS, ""]
    assert not found.truncated.any()
    short = CodePoints(max_length=3)(["abcd", "ab"])
    assert (short.lengths.tolist(), short.truncated.tolist()) == ([3, 2], [True, False])
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer(["\ud800"])
