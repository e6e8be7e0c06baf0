"""Rerankers and classifiers of every family against CrossEncoder and transformers' pipeline: float32, one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parity.scorers import CLASSIFIERS, PAIRS, cross_encoder, ours, save_classifier


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classification_heads(family: str, tmp_path: Path) -> None:
    folder = save_classifier(family, tmp_path / family)
    expected = cross_encoder(folder, PAIRS)
    found = ours(folder, PAIRS)
    assert np.ptp(expected) > 1e-3, "a test of constants shows nothing"
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
