"""The ceilings: operators of a batch, and sums that are right. How fast is nobody's test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedctl.bench import roofline

LENGTHS = np.array([40, 40, 17, 9, 3])
QUICK = roofline.Effort(repeats=1, call_s=0.0002)


def _folder(path: Path, **config: object) -> Path:
    path.joinpath("config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bert_has_both_ceilings(dtype, tmp_path):
    folder = _folder(
        tmp_path, model_type="bert", hidden_size=64, intermediate_size=128, num_attention_heads=2, num_hidden_layers=2,
        vocab_size=100,
    )  # fmt: skip
    told = roofline.measure(folder, [LENGTHS, LENGTHS[2:]], dtype=dtype, threads=2, effort=QUICK)
    assert told["tokens"] == int(LENGTHS.sum() + LENGTHS[2:].sum())
    products = ("product qkv", "product out", "product up", "product down")
    names = ("embedding", *products, "attention", "gelu", "norm", "pooling")
    assert set(names) <= set(told["operators"])
    for found in told["operators"].values():
        assert found["us_per_token"] == min(found["variants"].values()) > 0
    spent = sum(told["operators"][name]["us_per_token"] for name in products)
    assert told["tokens_per_s"]["products"] == pytest.approx(1e6 / spent)
    assert told["tokens_per_s"]["operators"] < told["tokens_per_s"]["products"]
    weights = 2 * (4 * 64**2 + 2 * 64 * 128)
    assert told["products_tflops"] == pytest.approx(2e-12 * weights * told["tokens_per_s"]["products"])


def test_other_kinds_have_their_products_only(tmp_path):
    folder = _folder(tmp_path, model_type="distilbert", dim=32, hidden_dim=64, n_heads=2, n_layers=3, vocab_size=100)
    told = roofline.measure(folder, [LENGTHS], dtype="float32", threads=1, effort=QUICK)
    assert told["tokens_per_s"]["operators"] is None
    assert told["tokens_per_s"]["products"] > 0
    assert {"product 32x32", "product 32x64", "product 64x32"} == set(told["operators"])
