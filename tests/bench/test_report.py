"""The table, the README's block, who may be asked for, and the picture."""

from __future__ import annotations

import pytest

from embedctl.bench import plot, report
from embedctl.bench.contenders import CONTENDERS, ENVIRONMENTS, chosen


def _row(name: str, rate: float | None, mean: float | None = 1.0, reason: str | None = None) -> dict:
    return {
        "name": name, "status": "not run" if reason else "ok", "reason": reason, "tokens_per_s": rate,
        "documents_per_s": rate and rate / 10, "tokens_per_cpu_s": rate, "encode_tokens_per_s": rate, "wall_s": [1.0],
        "cpu_s": [1.0], "peak_bytes": 1 << 29, "size": 32, "idle_cpu_s": 0.0,
        "cosine": {"min": mean, "mean": mean}, "wrong": mean is not None and mean < 0.999,
    }  # fmt: skip


@pytest.fixture
def bench() -> dict:
    corpus = {
        "texts": 10, "tokens": 1000, "max_length": 256, "sha256": "0",
        "contenders": [
            _row("embedctl", 3000.0, 0.999996), _row("slow", 1500.0), _row("int8", 6000.0, 0.98),
            _row("x", None, None, "no wheel."),
        ],
        "roofline": {
            "bfloat16": {"tokens_per_s": {"operators": 4000.0, "products": None}, "reached": {"operators": 0.75}}
        },
    }  # fmt: skip
    corpus["contenders"] = report.ratio_lines(corpus)
    return {
        "version": 1, "quick": False, "rounds": 3, "machine": {"processor": "P", "features": ["avx2"], "threads": 2},
        "models": {"m": {"corpora": {"skewed": corpus}}},
        "whole": {"help_s": 0.1, "memory": [], "not_run": {"job": "no room"}},
    }  # fmt: skip


def test_the_table_tells_ratios_marks_wrong_vectors_and_hides_nobody(bench):
    text = report.markdown(bench)
    assert "| slow | 1,500 | 150 | 1,500 | 512 | 1.00000 (1.00000) | 2.00x |" in text
    assert "| int8 **wrong** |" in text
    assert "0.99999 (0.99999)" in text
    assert "operators alone 4,000 tokens/s (0.75 reached)" in text
    assert "Not run: x (m, skewed): no wheel." in text
    assert "Not run: job: no room." in text


def test_the_readme_keeps_all_but_the_block(bench, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n", encoding="utf-8")
    assert report.fill(readme, bench)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- bench -->\nP, 2 threads")
    assert text.endswith("<!-- /bench -->\nafter\n")
    assert "old" not in text
    assert not report.fill(readme, bench)


def test_a_readme_without_marks_is_refused(bench, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no place for the table: write <!-- bench --> and <!-- /bench -->"):
        report.fill(readme, bench)


def test_peers_are_chosen_by_environment_or_name():
    assert chosen(()) == CONTENDERS
    assert {c.environment for c in chosen(("fastembed", "vllm"))} == {"fastembed", "vllm"}
    assert [c.name for c in chosen(("Infinity bfloat16",))] == ["Infinity bfloat16"]
    with pytest.raises(ValueError, match="--peers: 'tei' is nobody's name; there are: embedctl, fastembed, infinity"):
        chosen(("tei",))


def test_every_contender_has_a_peer_and_an_environment():
    assert len({c.name for c in CONTENDERS}) == len(CONTENDERS)
    for contender in CONTENDERS:
        assert contender.file.is_file()
        assert contender.environment is None or contender.environment in ENVIRONMENTS


def test_the_plot_is_a_picture(bench, tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(bench, "skewed", tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes()[:4] == b"\x89PNG"
