"""Search and eval where an output is sparse or multivector, several at once, in folders and in a real store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.cli.app import main
from embedctl.outputs import Multivector, Sparse
from embedctl.query.similarity_lists import MaxSimScorer, SparseScorer, idf_of

edge = pytest.importorskip("qdrant_edge")

FAKE = ("--model", "fake:dim=8,sparse=1,multivector=1")
KINDS = ("--output", "dense,sparse,multivector")
TEXTS = [f"row{n} row{n} row{n} group{n % 7} text {'word ' * (n % 5)}" for n in range(120)]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A command's answer as JSON, or its error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*args: str, code: int = 0):
        capsys.readouterr()
        got = main([*args])
        told = capsys.readouterr()
        assert got == code, told.err
        return json.loads(told.out) if code == 0 and "--json" in args else told.err

    return call


@pytest.fixture
def corpus(tmp_path) -> str:
    n = len(TEXTS)
    table = pa.table({"id": [f"r{i}" for i in range(n)], "text": TEXTS, "n": list(range(n))})
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=40)
    return str(tmp_path / "c.parquet")


def ids(report) -> list[str]:
    return [hit["id"] for hit in report["queries"][0]["hits"]]


@pytest.fixture
def several(run, corpus) -> str:
    run("embed", corpus, "--to", "out", "-q", "--keep", "n", "--window-rows", "30", *FAKE, *KINDS)
    return "out"


@pytest.mark.parametrize("using", ["dense", "sparse", "multivector"])
def test_a_row_finds_itself_by_every_output(run, several, using):
    for n in (0, 41, 119):
        found = run("search", several, TEXTS[n], "--using", using, "-k", "3", "--json", "-q")
        assert ids(found)[0] == f"r{n}"
        assert found["queries"][0]["hits"][0]["columns"] == {"n": n}
    assert found["vectors"] == len(TEXTS)


def _table(folder: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(p) for p in sorted(Path(folder).glob("*.parquet"))])


def test_sparse_and_maxsim_are_their_plain_twins(run, several):
    table = _table(several)
    found = {
        u: run("search", several, "--like", "r7", "--using", u, "-k", "120", "--json", "-q")
        for u in ("sparse", "multivector")
    }
    rows = table.to_pylist()
    asked = next(r for r in rows if r["id"] == "r7")
    weights = dict(zip(asked["sparse"]["indices"], asked["sparse"]["values"], strict=True))
    late = np.array(asked["multivector"], dtype=np.float64)
    late /= np.linalg.norm(late, axis=1, keepdims=True)
    for row in rows:
        pairs = zip(row["sparse"]["indices"], row["sparse"]["values"], strict=True)
        row["by_sparse"] = sum(weights.get(i, 0.0) * v for i, v in pairs)
        own = np.array(row["multivector"], dtype=np.float64)
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        row["by_multivector"] = (late @ own.T).max(axis=1).sum()
    for using, report in found.items():
        hits = report["queries"][0]["hits"]
        scores = {row["id"]: row[f"by_{using}"] for row in rows if row["id"] != "r7"}
        assert {h["id"] for h in hits} == {id for id, score in scores.items() if score or using == "multivector"}
        np.testing.assert_allclose([h["score"] for h in hits], [scores[h["id"]] for h in hits], rtol=1e-6, atol=1e-9)
        assert [h["score"] for h in hits] == sorted((h["score"] for h in hits), reverse=True)


def test_hybrid_is_the_sum_of_reciprocal_ranks(run, several):
    one = {
        u: ids(run("search", several, "text 5", "--using", u, "-k", "120", "--json", "-q")) for u in ("dense", "sparse")
    }
    scores = {
        id: sum(1 / (60 + ranking[:100].index(id) + 1) for ranking in one.values() if id in ranking[:100])
        for id in one["dense"]
    }
    both = run("search", several, "text 5", "--hybrid", "-k", "5", "--json", "-q")
    assert both["similarity"] == "rrf"
    hits = both["queries"][0]["hits"]
    assert [h["score"] for h in hits] == pytest.approx(sorted(scores.values(), reverse=True)[:5], rel=1e-6)
    assert all(h["score"] == pytest.approx(scores[h["id"]], rel=1e-6) for h in hits)


def test_what_cannot_be_searched_is_named(run, several, corpus):
    assert "--using: out has no output 'late'; it has dense (dense), sparse (sparse)" in run(
        "search", several, "a", "--using", "late", code=2
    )
    run("embed", corpus, "--to", "one", "-q", "--model", "fake:dim=8")
    told = run("search", "one", "a", "--hybrid", code=2)
    assert "--hybrid: one must have a dense and a sparse output; it has embedding (dense)" in told


def test_the_embedded_engine_answers_like_the_folder(run, several, tmp_path):
    store = "qdrant-edge://./db/docs"
    run("load", several, "--to", store, "-q")
    for using in ("dense", "sparse", "multivector"):
        asked = (TEXTS[11], "--using", using, "-k", "6", "--json", "-q")
        there, here = run("search", store, *asked), run("search", several, *asked)
        assert ids(there)[0] == ids(here)[0] == "r11"
        assert sorted(h["score"] for h in there["queries"][0]["hits"]) == pytest.approx(
            sorted(h["score"] for h in here["queries"][0]["hits"]), abs=2e-3
        )
        assert there["queries"][0]["hits"][0]["columns"]["n"] == 11
    assert set(ids(run("search", store, "text 5", "--where", "n < 20", "-k", "50", "--json", "-q"))) == {
        f"r{n}" for n in range(20)
    }
    asked = ("row31 row31 group3", "--hybrid", "-k", "10", "--json", "-q")
    assert ids(run("search", store, *asked))[:1] == ids(run("search", several, *asked))[:1] == ["r31"]
    assert "only a folder of Parquet can be asked so" in run("search", store, "--like", "r1", code=2)


def test_eval_of_a_store_and_its_folder_agree(run, several, tmp_path):
    store = "qdrant-edge://./db/docs"
    run("load", several, "--to", store, "-q")
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"id": f"q{n}", "text": TEXTS[n]}) + "\n" for n in (3, 50, 99))
    )
    (tmp_path / "qrels.tsv").write_text("".join(f"q{n}\tr{n}\t1\n" for n in (3, 50, 99)) + "q3\tnowhere\t1\n")
    files = ("--queries", "q.jsonl", "--qrels", "qrels.tsv", "--json", "-q")
    for more in ((), ("--hybrid",), ("--using", "sparse")):
        there, here = run("eval", store, *files, *more), run("eval", several, *files, *more)
        assert there["measures"] == pytest.approx(here["measures"])
        assert there["measures"]["mrr@10"] == 1.0
        assert there["unknown"] == here["unknown"]
        assert there["unknown"]["documents"] == 1


def _sparse(offsets: list[int], indices: list[int], values: list[float]) -> Sparse:
    return Sparse(offsets=np.array(offsets), indices=np.array(indices, np.uint32), values=np.array(values, np.float32))


def test_idf_weighs_as_qdrant_does():
    stored = Sparse(
        offsets=np.array([0, 2, 3, 4]),
        indices=np.array([1, 9, 1, 4], np.uint32),
        values=np.array([1, 2, 3, 4], np.float32),
    )
    asked = Sparse(offsets=np.array([0, 2]), indices=np.array([1, 9], np.uint32), values=np.array([1, 1], np.float32))
    idf = idf_of(np.array([2, 1]), 3)
    assert idf == pytest.approx([np.log(1.5 / 2.5 + 1), np.log(2.5 / 1.5 + 1)])
    scorer = SparseScorer(asked, idf)
    assert scorer(scorer.values(stored), 0, 1)[0] == pytest.approx([idf[0] + 2 * idf[1], 3 * idf[0], -np.inf])
    nothing = SparseScorer(_sparse([0, 0], [], []))
    assert nothing(nothing.values(stored), 0, 1)[0].tolist() == [-np.inf] * 3


def test_maxsim_by_dot_keeps_lengths():
    stored = Multivector(offsets=np.array([0, 1, 3]), vectors=np.array([[2, 0], [0, 3], [1, 1]], np.float16))
    scorer = MaxSimScorer(Multivector(offsets=np.array([0, 2]), vectors=np.array([[1, 0], [0, 1]], np.float32)), "dot")
    assert scorer(scorer.values(stored), 0, 1).tolist() == [[2, 4]]
