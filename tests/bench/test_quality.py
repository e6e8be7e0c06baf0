"""The table of retrieval quality on a small set, through the command, beside the reference libraries."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedctl.bench import perlfaq, quality, references
from embedctl.bench.perlfaq import BenchFailed
from embedctl.bench.quality import Job

PAIRS = [
    ("How do I sort a hash by its values?", "Give sort a block that compares the values of two keys of the hash."),
    ("How can I read a file line by line?", "Open the file and loop over its handle; each turn gives the next line."),
    ("Why does my program use so much memory?", "Perl trades space for speed: large arrays take more than in C."),
    ("What is a closure?", "An anonymous subroutine that keeps the lexical variables around it alive."),
    ("How do I send mail from a script?", "Use a module that speaks SMTP, or pipe the letter into sendmail."),
    ("How do I compare two dates?", "Turn both into seconds since the epoch and subtract one from the other."),
]
DENSE = Job(models=("dense",), store="parquet", dtype="float32", vector_type="float32")


def _rows(report: dict, **wanted: str) -> list[dict]:
    return [row for row in report["rows"] if all(row[k] == v for k, v in wanted.items())]


def test_pod_files_become_pairs(tmp_path):
    folder = tmp_path / "5.36" / "pod"
    folder.mkdir(parents=True)
    (folder / "perlfaq1.pod").write_text(
        "=head1 NAME\n\nx\n\n=head2 What is Perl?\nX<perl>\n\nA language.\n\n=head2 And empty?\n\n=head1 AUTHOR\n\nme\n"
    )
    (folder / "perlfaq9.pod").write_text("=head2 Is C<this> code?\n\nYes.\n\n=cut\n")
    (folder / "perlfaq.pod").write_text("=head2 Not a part?\n\nNo.\n")
    assert perlfaq.pairs_of(tmp_path) == [("What is Perl?", "A language."), ("Is C<this> code?", "Yes.\n\n=cut")]
    with pytest.raises(BenchFailed, match=r"holds 2 questions in perlfaq1\.pod to perlfaq9\.pod, not 300"):
        perlfaq.find_pairs(tmp_path, tmp_path)


def test_jobs_are_each_dtype_and_the_vector_types_a_store_holds():
    made = quality.jobs(("dense", "sparse", "bm25"))
    assert {(j.models, j.dtype) for j in made if j.vector_type == "float32"} == {
        (("dense", "sparse"), "float32"), (("dense", "sparse"), "bfloat16"), (("bm25",), "float32"),
    }  # fmt: skip
    assert {j.vector_type for j in made if j.store == "qdrant-edge"} == {"float32", "float16"}
    assert {j.vector_type for j in made if j.store == "parquet"} == set(quality.VECTOR_TYPES)
    assert made[0].asked == ("dense", "sparse", "hybrid")


def test_a_figure_off_the_reference_or_a_failed_command_is_not_held():
    good, bad = ({"mrr@10": x, "ndcg@10": x, "recall@100": 1.0} for x in (0.8, 0.7949))
    assert quality.row(DENSE, "dense", good, good)["held"] is True
    off = quality.row(DENSE, "dense", bad, good)
    assert off["held"] is False
    assert off["difference"] == pytest.approx(-0.0051)
    binary = Job(models=("dense",), store="parquet", dtype="float32", vector_type="binary")
    assert quality.row(binary, "dense", bad, good)["held"] is None
    failed = quality.row(DENSE, "dense", BenchFailed("exit code 2:\nno model"), good)
    assert failed["held"] is False
    assert "failed: no model" in quality.markdown({"rows": [failed]})


def test_fusion_and_ranks_by_hand():
    nothing = -np.inf
    first, second = np.array([[3.0, 2.0, 1.0, nothing]]), np.array([[nothing, 1.0, 2.0, nothing]])
    fused = references.fused(first, second)[0]
    assert fused[:3] == pytest.approx([1 / 61, 1 / 62 + 1 / 62, 1 / 63 + 1 / 61])
    assert references.best(fused[None, :], list("abcd"), 100) == [["c", "b", "a"]]
    assert references.best(np.array([[1.0, 2.0, 2.0]]), list("abc"), 2) == [["b", "c"]]


@pytest.mark.slow
def test_all_models_on_a_small_set_are_the_references(tmp_path, tmp_path_factory):
    pytest.importorskip("fastembed", exc_type=ImportError)
    pytest.importorskip("cognition")
    questions = perlfaq.write_questions(PAIRS, tmp_path)
    models = quality.default_models(tmp_path)
    wanted = [
        Job(models=("dense", "sparse"), store="parquet", dtype="float32", vector_type="float32"),
        Job(models=("static", "bm25"), store="qdrant-edge", dtype="float32", vector_type="float32"),
        Job(models=("dense",), store="parquet", dtype="float32", vector_type="binary"),
    ]
    report = quality.evaluate(questions, models, wanted, tmp_path, lambda line: None)
    assert [row["reason"] for row in report["rows"]] == [None] * 7
    assert report["held"]
    for row in report["rows"]:
        assert row["difference"] == pytest.approx(0, abs=1e-9), row["model"]
    assert _rows(report, model="dense", vector_type="float32")[0]["embedctl"]["mrr@10"] > 0.9
    assert len(_rows(report, model="static + bm25 (RRF)", store="qdrant-edge")) == 1
    assert json.loads(json.dumps(report)) == report
    assert quality.markdown(report).count("\n") == 2 + 7

    questions.qrels.write_text("".join(f"q{n}\ta{(n + 1) % len(PAIRS)}\t1\n" for n in range(len(PAIRS))))
    wrong = quality.evaluate(questions, models, wanted[:1], tmp_path_factory.mktemp("again"), lambda line: None)
    assert not wrong["held"]
