"""Corpora: their lengths, and that they come out the same twice. Batches and texts of the job measurement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedctl.bench import corpora
from embedctl.bench.own import SAMPLED_BATCHES, job_batches, many
from embedctl.records import Tokenized
from embedctl.tokens.pack import make_batches


def _words(texts):
    return [len(text.split()) + 2 for text in texts]


@pytest.fixture(scope="module")
def docstrings():
    return corpora.docstrings()


def test_docstrings_are_distinct_and_in_one_order(docstrings):
    assert len(docstrings) == len(set(docstrings)) > corpora.SKEWED
    assert all(40 <= len(text) <= 20_000 for text in docstrings[:500])


@pytest.mark.parametrize("name", corpora.NAMES)
def test_each_corpus_is_made_twice_alike(name, docstrings, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(corpora, "docstrings", lambda: docstrings)
    first = corpora.make(name, _words, 256, tmp_path, scale=0.05)
    assert first.sha256 == corpora.make(name, _words, 256, tmp_path, scale=0.05).sha256
    assert json.loads(Path(first.file).read_text(encoding="utf-8")) == list(first.texts)
    assert max(first.lengths) <= 256
    assert first.tokens == sum(min(n, 256) for n in _words(first.texts))
    if name == "short":
        assert min(first.lengths) >= 8
        assert max(first.lengths) <= 32
    if name == "worst":
        assert sum(n > 32 for n in first.lengths) <= 1


def test_an_unknown_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--corpora: 'huge' is not one of skewed, short, long, worst"):
        corpora.make("huge", _words, 256, tmp_path)


def test_batches_are_the_packers():
    lengths = np.random.default_rng(1).integers(3, 256, 400)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokenized = Tokenized(
        ids_T=np.zeros(offsets[-1], np.int32), offsets=offsets, truncated=np.zeros(len(lengths), dtype=bool)
    )
    packed = [np.diff(b.cu_seqlens).tolist() for b in make_batches(tokenized, 4096)]
    found = [b.tolist() for b in job_batches(lengths.tolist(), 4096)]
    assert len(found) == min(SAMPLED_BATCHES, len(packed))
    assert all(batch in packed for batch in found)
    assert (found[0], found[-1]) == (packed[0], packed[-1])


def test_as_many_texts_as_wanted_and_no_two_alike():
    texts = many(["one two three four", "five"], 50)
    assert len(texts) == len(set(texts)) == 50
    assert many(["a", "b"], 1) == ["a"]
