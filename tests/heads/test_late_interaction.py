"""Vectors a token: which are kept, in stretches or at once, and merging against the plain way."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from embedctl.heads import late_interaction
from embedctl.heads.late_interaction import merged, offsets_of, token_vectors
from embedctl.heads.projection import normalize
from embedctl.outputs import Multivector


def test_stretches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.randn(50, 6, dtype=torch.bfloat16)
    kept = torch.from_numpy(np.arange(50) % 3 != 0)
    whole = token_vectors(hidden, kept, [normalize], dim=4)
    monkeypatch.setattr(late_interaction, "CHUNK_TOKENS", 7)
    assert np.array_equal(token_vectors(hidden, kept, [normalize], dim=4), whole)
    assert whole.shape == (33, 4)
    assert np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)


def test_offsets_of_kept_tokens() -> None:
    kept = np.array([True, False, True, True, False, False])
    assert offsets_of(kept, np.array([0, 3, 3, 6], dtype=np.int32)).tolist() == [0, 2, 2, 3]


def test_merging_keeps_the_first_and_averages_the_like() -> None:
    a, b = np.eye(4, dtype=np.float32)[:2]
    x = np.stack([b, a, b, a, b, a + 0.01 * b, a])
    vectors = Multivector(offsets=np.array([0, 7, 7]), vectors=x)
    found = merged(vectors, factor=3.0, protected=1, normalized=True)
    assert found.offsets.tolist() == [0, 3, 3]
    assert np.allclose(found.vectors[0], b)
    assert sorted(np.round(found.vectors[1:, 0], 2).tolist()) == [0.0, 1.0]
    assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1)


def test_nothing_to_merge() -> None:
    vectors = Multivector(offsets=np.array([0, 1, 2]), vectors=np.eye(2, dtype=np.float32))
    found = merged(vectors, factor=4.0, protected=1, normalized=False)
    assert np.array_equal(found.vectors, vectors.vectors)
    nothing = merged(Multivector(offsets=np.zeros(1, np.int64), vectors=np.zeros((0, 2), np.float32)), factor=2.0,
                     protected=1, normalized=True)  # fmt: skip
    assert len(nothing) == 0
