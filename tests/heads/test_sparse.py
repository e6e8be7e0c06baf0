"""Sparse vectors against the plain way of making them, for any lengths, prunings and tiles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from embedctl.heads import splade
from embedctl.heads.sparse import NO_PRUNING, Pruning, greatest_of_each, sparsify
from embedctl.outputs import Sparse, not_finite


def full(values: Sparse, size: int) -> np.ndarray:
    whole = np.zeros((len(values), size), dtype=np.float32)
    for i, (begin, end) in enumerate(zip(values.offsets[:-1], values.offsets[1:], strict=True)):
        assert (np.diff(values.indices[begin:end].astype(np.int64)) > 0).all()
        whole[i, values.indices[begin:end]] = values.values[begin:end]
    return whole


def pruned(whole: np.ndarray, pruning: Pruning) -> np.ndarray:
    kept = np.where(whole > pruning.threshold, whole, 0)
    if pruning.top_k is not None:
        edge = np.sort(whole, axis=1)[:, -min(pruning.top_k, whole.shape[1])]
        kept = np.where(whole >= edge[:, None], kept, 0)
    return kept


PRUNINGS = st.builds(Pruning, top_k=st.none() | st.integers(1, 12), threshold=st.sampled_from([0.0, 0.3]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 5), st.integers(1, 9), PRUNINGS)
def test_sparsify(seed: int, rows: int, size: int, pruning: Pruning) -> None:
    # Distinct numbers, so that there is one answer.
    x = np.random.default_rng(seed).permutation(rows * size).reshape(rows, size).astype(np.float32) / 10 - 0.4
    assert np.array_equal(full(sparsify(torch.from_numpy(x), pruning), size), pruned(x, pruning))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 6), max_size=6), PRUNINGS)
def test_greatest_weight_of_each_id(seed: int, lengths: list[int], pruning: Pruning) -> None:
    chance = np.random.default_rng(seed)
    ids = chance.integers(0, 5, sum(lengths)).astype(np.int32)
    weights = chance.permutation(len(ids)).astype(np.float32) / 4
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    whole = np.zeros((len(lengths), 5), dtype=np.float32)
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        np.maximum.at(whole[row], ids[begin:end], weights[begin:end])
    assert np.array_equal(full(greatest_of_each(ids, weights, offsets, pruning), 5), pruned(whole, pruning))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31), st.lists(st.sampled_from([0, 1, 2, 2, 3, 9, 20]), max_size=9), st.sampled_from([1, 4, 7]),
    st.sampled_from(["max", "sum"]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_tiles_of_any_size(
    seed: int, lengths: list[int], tile: int, pooling: str, log_twice: bool, with_bias: bool
) -> None:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), 4, generator=chance)
    weight, bias = torch.randn(11, 4, generator=chance), torch.randn(11, generator=chance)
    scores = (x @ weight.T + (bias if with_bias else 0)).relu().log1p()
    scores = scores.log1p() if log_twice else scores
    expected = np.zeros((len(lengths), 11), dtype=np.float32)
    begin = 0
    for row, length in enumerate(lengths):
        part, begin = scores[begin : begin + length], begin + length
        if length:
            expected[row] = (part.amax(0) if pooling == "max" else part.sum(0)).numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splade, "TILES", {"cpu": (tile, 3)})
        patch.setattr(splade, "POOLED_NUMBERS", 22)
        found = splade.splade(
            x, lengths, weight, bias if with_bias else None, pooling=pooling, log_twice=log_twice, pruning=NO_PRUNING
        )
    assert len(found) == len(lengths)
    assert np.allclose(full(found, 11), expected, atol=1e-5)


def test_not_a_number_is_kept() -> None:
    x = torch.zeros((2, 4))
    x[1, 2] = float("nan")
    assert not_finite(sparsify(x, Pruning(top_k=2))).tolist() == [False, True]
    weight = torch.eye(4)
    found = splade.splade(x, [1, 1], weight, None, pooling="max", log_twice=False, pruning=NO_PRUNING)
    assert not_finite(found).tolist() == [False, True]
