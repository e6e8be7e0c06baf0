from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedctl.records import Batch, Tokenized
from embedctl.tokens.pack import make_batches, padding_of, split_batch, unique_texts

LENGTHS = st.lists(st.integers(1, 60), max_size=80)


def tokenized(lengths: list[int]) -> Tokenized:
    """Text i holds the token i, `lengths[i]` times."""
    return Tokenized(
        ids_T=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64),
        truncated=np.zeros(len(lengths), dtype=bool),
    )


def check(batch: Batch, lengths: list[int]) -> None:
    assert batch.input_ids_T.dtype == batch.cu_seqlens.dtype == np.int32
    assert batch.units.dtype == np.int64
    assert batch.cu_seqlens[0] == 0
    assert batch.num_tokens == len(batch.input_ids_T)
    got = np.diff(batch.cu_seqlens)
    assert got.tolist() == [lengths[u] for u in batch.units]
    assert (np.diff(got) <= 0).all()
    assert batch.input_ids_T.tolist() == np.repeat(batch.units, got).tolist()


@given(lengths=LENGTHS, budget=st.integers(1, 200), padded=st.booleans())
def test_every_text_once_within_budget_sorted(lengths, budget, padded):
    batches = list(make_batches(tokenized(lengths), budget, padded=padded))
    assert sorted(u for b in batches for u in b.units.tolist()) == list(range(len(lengths)))
    for batch in batches:
        check(batch, lengths)
        cost = batch.num_tokens + (padding_of(batch) if padded else 0)
        assert cost <= budget or len(batch.units) == 1
    flat = [int(n) for b in batches for n in np.diff(b.cu_seqlens)]
    assert flat == sorted(lengths, reverse=True)
    again = list(make_batches(tokenized(lengths), budget, padded=padded))
    assert [b.units.tolist() for b in again] == [b.units.tolist() for b in batches]


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_no_batch_could_take_the_next_sequence(lengths, budget):
    batches = list(make_batches(tokenized(lengths), budget))
    for batch, after in itertools.pairwise(batches):
        assert batch.num_tokens + int(np.diff(after.cu_seqlens)[0]) > budget


@given(lengths=st.lists(st.integers(1, 60), min_size=2, max_size=40))
def test_split_halves(lengths):
    (batch,) = make_batches(tokenized(lengths), 10_000)
    left, right = split_batch(batch)
    for part in (left, right):
        check(part, lengths)
        assert len(part.units)
    assert [*left.units, *right.units] == batch.units.tolist()
    assert abs(left.num_tokens - right.num_tokens) <= max(lengths)


def test_edges():
    assert list(make_batches(tokenized([]), 10)) == []
    (alone,) = make_batches(tokenized([50]), 10)
    assert alone.max_seqlen == 50
    with pytest.raises(ValueError, match="a batch of one sequence cannot be split"):
        split_batch(alone)
    with pytest.raises(ValueError, match="max_tokens: 0 must be at least 1"):
        next(make_batches(tokenized([1]), 0))
    (batch,) = make_batches(tokenized([5, 2]), 10)
    assert padding_of(batch) == 3


@given(texts=st.lists(st.sampled_from(["a", "b", "c", ""])))
def test_unique_texts_give_all_back(texts):
    distinct, inverse = unique_texts(texts)
    assert [distinct[i] for i in inverse] == texts
    assert distinct == list(dict.fromkeys(texts))
    assert inverse.dtype == np.int64
