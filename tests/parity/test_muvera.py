"""MUVERA held to fastembed's own on sentence-transformers' vectors, through the command, documents and queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

fastembed = pytest.importorskip("fastembed.postprocess", exc_type=ImportError)
pytest.importorskip("sentence_transformers")

from embedctl.cli.app import main
from tests.parity.test_late import TEXTS, pylate, reference

SMALL = "k_sim=3,dim_proj=4,r_reps=5"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return pylate("bert", tmp_path / "model")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"id": [f"d{i}" for i in range(len(TEXTS))], "text": TEXTS}), path)
    return path


def made(settings: dict[str, int], model: Path, texts: list[str], *, query: bool) -> np.ndarray:
    library = fastembed.Muvera(dim=12, **settings)
    one = library.process_query if query else library.process_document
    return np.stack([one(vectors.astype(np.float64)) for vectors in reference(model, texts, query=query)])


def run(*words: Any, code: int = 0) -> None:
    assert main([*map(str, words), "-q"]) == code


def test_documents_are_fastembeds(model: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("embed", corpus, "--model", model, "--muvera", SMALL, "--dtype", "float32", "--to", out)
    found = np.stack(pq.read_table(out, columns=["embedding"])["embedding"].to_numpy())
    expected = made({"k_sim": 3, "dim_proj": 4, "r_reps": 5}, model, TEXTS, query=False)
    assert found.shape == (len(TEXTS), 5 * 8 * 4)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    run("verify", out)
    run("embed", corpus, "--model", model, "--dtype", "float32", "--to", out, code=6)


def test_both_outputs_and_a_search_by_the_query_side(
    model: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(
        "embed", corpus, "--model", model, "--muvera", SMALL, "--output", "dense", "--output", "multivector",
        "--dtype", "float32", "--to", out,
    )  # fmt: skip
    table = pq.read_table(out)
    assert {"dense", "multivector"} <= set(table.column_names)
    settings = {"k_sim": 3, "dim_proj": 4, "r_reps": 5}
    documents = made(settings, model, TEXTS, query=False)
    query = made(settings, model, ["w9 w10"], query=True)[0]
    capsys.readouterr()
    run("search", out, "w9 w10", "--using", "dense", "-k", "3", "--json")
    hits = json.loads(capsys.readouterr().out)["queries"][0]["hits"]
    scores = documents @ query
    best = np.argsort(-scores)[:3]
    assert [hit["id"] for hit in hits] == [f"d{i}" for i in best]
    assert [hit["score"] for hit in hits] == pytest.approx(scores[best].tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "says"), [("k_sim=0", "k_sim=0"), ("cells=3", "cells=3"), ("dim_proj=13", "more than the 12")]
)
def test_settings_that_make_no_vector(
    settings: str, says: str, model: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("embed", corpus, "--model", model, "--muvera", settings, "--to", tmp_path / "out", code=2)
    assert says in capsys.readouterr().err


def test_a_model_of_one_vector_is_refused(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("embed", corpus, "--model", "fake:dim=8", "--muvera", "default", "--to", tmp_path / "out", code=2)
    assert "for models of late interaction" in capsys.readouterr().err
