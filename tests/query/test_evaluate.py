"""Measures against their formulas, on rankings made by hand, by the fake model, and by MiniLM over perlfaq."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from embedctl.bench.perlfaq import pairs_of
from embedctl.errors import SourceError, UsageError
from embedctl.events import Silent
from embedctl.query import evaluate as room
from embedctl.query.evaluate import evaluate, measure, read_qrels
from embedctl.query.queries import Asking, Query, read_queries

FAKE = ("--model", "fake:dim=16")


class Heard(Silent):
    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


def _files(folder: Path, queries: Sequence[tuple[object, str]], qrels: str) -> dict[str, Path]:
    lines = "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in queries)
    (folder / "q.jsonl").write_text(lines, encoding="utf-8")
    (folder / "qrels.tsv").write_text(qrels, encoding="utf-8")
    return {"queries": folder / "q.jsonl", "qrels": folder / "qrels.tsv"}


def _evaluate(destination: Path, files: dict[str, Path], listener=None, **asking):
    return evaluate(str(destination), **files, asking=Asking(**asking), listener=listener or Silent())


def test_measures_are_their_formulas():
    ids = [f"d{n}" for n in range(150)]
    qrels = {
        "first": {"d0": 1},
        "eleventh": {"d10": 1},
        "graded": {"d1": 2, "d4": 1, "d9": -1, "d120": 3, "lost": 1},
        "none": {"elsewhere": 1},
        "unasked": {"d0": 1},
    }
    scores = measure({q: ids for q in qrels if q != "unasked"}, qrels)
    assert scores["first"] == {"ndcg@10": 1.0, "mrr@10": 1.0, "recall@100": 1.0}
    assert scores["eleventh"] == {"ndcg@10": 0.0, "mrr@10": 0.0, "recall@100": 1.0}
    ideal = sum(gain / math.log2(rank + 1) for rank, gain in enumerate((3, 2, 1, 1), start=1))
    gained = 2 / math.log2(3) + 1 / math.log2(6)
    assert scores["graded"] == {
        "ndcg@10": pytest.approx(gained / ideal), "mrr@10": 0.5, "recall@100": 0.5,
    }  # fmt: skip
    assert scores["none"] == scores["unasked"] == {"ndcg@10": 0.0, "mrr@10": 0.0, "recall@100": 0.0}


def test_order_is_the_searchs_whatever_the_ids():
    """trec_eval settles equal scores by id; ranks leave it none."""
    for ids in (["a", "b"], ["b", "a"]):
        assert measure({"q": ids}, {"q": {ids[0]: 1}})["q"]["mrr@10"] == 1.0


def test_a_text_finds_itself(embed, tmp_path):
    out = embed([f"text {n}" for n in range(40)], *FAKE, "--window-rows", "9")
    files = _files(tmp_path, [(n, f"text {n}") for n in range(40)], "".join(f"{n}\tr{n}\t1\n" for n in range(40)))
    report = _evaluate(out, files)
    assert report["measures"] == {"ndcg@10": 1.0, "mrr@10": 1.0, "recall@100": 1.0}
    assert report["queries"] == 40
    assert set(report["unknown"].values()) == {0}
    assert json.loads(json.dumps(report)) == report


def test_ids_that_match_nothing_are_counted_and_told(embed, tmp_path):
    out = embed(["one", "two"], *FAKE)
    qrels = "q1\tr0\t1\nq1\tgone\t1\nq2\tr1\t0\nq3\tr1\t1\nq9\tr0\t1\n"
    files = _files(tmp_path, [("q1", "one"), ("q2", "two"), ("q3", "two"), ("q4", "x")], qrels)
    heard = Heard()
    report = _evaluate(out, files, heard)
    assert report["queries"] == 2
    assert report["unknown"] == {
        "queries_without_text": 1, "queries_without_judgement": 1, "queries_without_relevant": 1, "documents": 1,
    }  # fmt: skip
    assert heard.notes == [f"1 of 3 judged documents are not in {out}: they count as not found"]
    assert report["measures"]["recall@100"] == 0.75


def test_a_document_counts_once_with_its_best_chunk(embed, tmp_path):
    long = " ".join(f"word{n}" for n in range(400))
    # More chunks of r0 than there are places, all of the same words: they take one place.
    same = "again " * 3000
    out = embed([same, long, "other"], "--model", "fake:dim=16", "--chunk", "tokens:10", ids=[10, 11, 12])
    asked = [("a", "again " * 10), ("b", " ".join(f"word{n}" for n in range(50, 58))), ("c", "other")]
    files = _files(tmp_path, asked, "a\t10\t1\nb\t11\t1\nc\t12\t1\nc\t11\t1\nc\t10\t1\n")
    report = _evaluate(out, files)
    assert report["measures"]["recall@100"] == 1.0
    runs = []
    real = room.measure
    room.measure = lambda found, qrels: runs.append(found) or real(found, qrels)
    try:
        _evaluate(out, files)
    finally:
        room.measure = real
    assert all(sorted(ids) == ["10", "11", "12"] for ids in runs[0].values())
    assert runs[0]["c"][0] == "12"


def test_kept_duplicates_take_one_place(embed, tmp_path):
    out = embed(["a", "a", "b"], *FAKE, "--on-duplicate", "keep", ids=["x", "x", "y"])
    report = _evaluate(out, _files(tmp_path, [("q", "a")], "q 0 y 1\n"))
    assert report["measures"]["mrr@10"] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "q1\td1\t1\nq1\td2\t0\nq2\td 3\t2\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\nq2\td 3\t2\n",
        "\ufeffquery-id\tcorpus-id\tscore\r\nq1\td1\t1\r\n\r\nq1\td2\t0.0\r\nq2\td 3\t2",
        "q1\t0\td1\t1\nq1\tQ0\td2\t0\nq2\t0\td 3\t2\n",
        "q1\td1\t1\nq1\td1\t1\nq1\td2\t0\nq2\td 3\t2\n",
    ],
)
def test_qrels_as_they_come(tmp_path, text):
    (tmp_path / "q.tsv").write_text(text, encoding="utf-8")
    assert read_qrels(tmp_path / "q.tsv") == {"q1": {"d1": 1, "d2": 0}, "q2": {"d 3": 2}}


def test_trec_qrels_by_blanks(tmp_path):
    (tmp_path / "q.tsv").write_text("51 0  FT911-3 1\n51 0 FT911-4 -1\n", encoding="utf-8")
    assert read_qrels(tmp_path / "q.tsv") == {"51": {"FT911-3": 1, "FT911-4": -1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no judgement"),
        ("query-id\tcorpus-id\tscore\n", "holds no judgement"),
        ("q1\td1\t1\nq2 d2\n", "line 2: 'q2 d2' is no judgement"),
        ("q1\td1\t1\nq1\td2\tyes\n", r"line 2: 'q1\\td2\\tyes' is no judgement"),
        ("q1\td1\t1\nq1\td2\t0.5\n", "line 2"),
        ("q1\td1\t1\nq1\td1\t2\n", "line 2: 'q1' judged 'd1' otherwise before"),
    ],
)
def test_bad_qrels_name_the_line(tmp_path, text, message):
    (tmp_path / "q.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_qrels(tmp_path / "q.tsv")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SourceError, match=r"--qrels: cannot read .*: No such file"):
        read_qrels(tmp_path / "none.tsv")
    with pytest.raises(SourceError, match=r"--queries: cannot read .*: No such file"):
        read_queries(tmp_path / "none.jsonl")
    (tmp_path / "latin").write_bytes(b"q\td\xff\t1\n")
    with pytest.raises(SourceError, match=r"--qrels: cannot read .*: not UTF-8"):
        read_qrels(tmp_path / "latin")


def test_queries_as_they_come(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('\ufeff{"_id": "a", "text": "x", "metadata": {}}\r\n\n{"id": 5, "text": "y\u2028z"}', "utf-8")
    assert read_queries(path) == [Query(id="a", text="x"), Query(id="5", text="y\u2028z")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "holds no queries"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "line 2: the id 'a' stood in an earlier line"),
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: needs an `id`"),
        ('{"id": "a"}', "line 1: needs an `id`"),
        ('{"id": true, "text": "x"}', "line 1: needs an `id`"),
        ('{"id": "a", "text": "  "}', "line 1: query 'a': text is only white space"),
    ],
)
def test_bad_queries_name_the_line(tmp_path, text, message):
    (tmp_path / "q.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_queries(tmp_path / "q.jsonl")


def test_no_query_in_common_is_refused(embed, tmp_path):
    out = embed(["one"], *FAKE)
    with pytest.raises(UsageError, match="of its 1 queries with a relevant document none is among the 1 asked"):
        _evaluate(out, _files(tmp_path, [("q1", "one")], "q2\tr0\t1\nq1\tr0\t0\n"))


def test_the_library_is_named_where_it_is_missing(embed, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pytrec_eval", None)
    with pytest.raises(UsageError, match="eval needs pytrec_eval") as told:
        _evaluate(tmp_path / "none", _files(tmp_path, [("q", "x")], "q\tr0\t1\n"))
    assert told.value.hint == "pip install 'embedctl[eval]'"


@pytest.mark.slow
def test_minilm_on_perlfaq_is_sentence_transformers(embed, tmp_path):
    pairs = pairs_of(Path(os.environ.get("EMBEDCTL_TEST_PERLDOC", "/usr/share/perl")))
    if len(pairs) < 250:
        pytest.skip("Perl's FAQ is not on this machine: apt-get install perl-doc")
    from sentence_transformers import SentenceTransformer

    from embedctl.models.load import find_model

    answers = [answer for _, answer in pairs]
    out = embed(answers)
    files = _files(tmp_path, [(f"q{n}", q) for n, (q, _) in enumerate(pairs)],
                   "".join(f"q{n}\tr{n}\t1\n" for n in range(len(pairs))))  # fmt: skip
    report = _evaluate(out, files)
    model = SentenceTransformer(str(find_model("all-MiniLM-L6-v2").root), device="cpu")
    corpus, asked = (model.encode(t, normalize_embeddings=True) for t in (answers, [q for q, _ in pairs]))
    scores = asked @ corpus.T
    ranks = (scores > np.diag(scores)[:, None]).sum(axis=1) + 1
    mrr = float(np.where(ranks <= 10, 1 / ranks, 0).mean())
    assert report["measures"]["mrr@10"] == pytest.approx(mrr, abs=0.01)
    assert report["measures"]["recall@100"] == pytest.approx(float((ranks <= 100).mean()), abs=0.01)
    assert mrr > 0.7
