"""The running k best against a full sort, and scores against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedctl.errors import UsageError
from embedctl.heads.precision import calibrate, quantize
from embedctl.query.nearest import nearest
from embedctl.query.parts import Stretch
from embedctl.query.similarity import SIMILARITIES, Scorer


def _scorer(queries: np.ndarray, similarity: str = "dot", vector_type: str = "float32", ranges=None) -> Scorer:
    return Scorer(queries, vector_type=vector_type, similarity=similarity, dim=queries.shape[1], ranges=ranges)


def _cut(vectors: np.ndarray, documents: np.ndarray, size: int) -> list[Stretch]:
    keys = np.arange(len(vectors), dtype=np.int64)
    first = np.array([np.flatnonzero(documents == d)[0] for d in documents], dtype=np.int64)
    return [
        Stretch(keys=keys[b : b + size], documents=first[b : b + size], vectors=vectors[b : b + size])
        for b in range(0, len(vectors), size)
    ]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_running_best_is_the_full_sorts(data):
    n, k, size = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 70)), data.draw(st.integers(1, 17))
    seed, by_document = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.booleans())
    chance = np.random.default_rng(seed)
    vectors = chance.integers(-2, 3, (n, 2)).astype(np.float32)  # few values: ties everywhere
    queries = chance.integers(-2, 3, (3, 2)).astype(np.float32)
    documents = np.sort(chance.integers(0, max(n // 3, 1), n))
    rankings, seen = nearest(_cut(vectors, documents, size), _scorer(queries), count=3, k=k, by_document=by_document)
    assert seen == n
    first = np.array([np.flatnonzero(documents == d)[0] for d in documents], dtype=np.int64)
    for query, ranking in zip(queries, rankings, strict=True):
        scores = vectors @ query
        best = {}
        for key, score in zip(first.tolist() if by_document else range(n), scores.tolist(), strict=True):
            best[key] = max(best.get(key, -np.inf), score)
        expected = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:k]
        assert list(zip(ranking.keys.tolist(), ranking.scores.tolist(), strict=True)) == expected


def test_more_queries_than_go_at_once():
    chance = np.random.default_rng(5)
    queries, vectors = (chance.normal(size=(n, 8)).astype(np.float32) for n in (700, 90))
    rankings, _ = nearest(_cut(vectors, np.arange(90), 40), _scorer(queries), count=700, k=3, by_document=False)
    expected = np.argsort(-(vectors.astype(np.float64) @ queries.T.astype(np.float64)), axis=0)[:3].T
    assert np.array_equal(np.stack([r.keys for r in rankings]), expected)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_similarities_are_their_formulas(similarity):
    chance = np.random.default_rng(1)
    q, x = chance.normal(size=(4, 24)).astype(np.float32), chance.normal(size=(31, 24)).astype(np.float32)
    scorer = _scorer(q, similarity)
    scores = scorer(scorer.values(x), 0, 4)
    wide_q, wide_x = q.astype(np.float64)[:, None], x.astype(np.float64)[None]
    expected = {
        "dot": (wide_q * wide_x).sum(-1),
        "cosine": (wide_q * wide_x).sum(-1) / np.linalg.norm(wide_q, axis=-1) / np.linalg.norm(wide_x, axis=-1),
        "euclidean": -np.sqrt(((wide_q - wide_x) ** 2).sum(-1)),
        "manhattan": -np.abs(wide_q - wide_x).sum(-1),
    }[similarity]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-7)


def test_a_zero_vector_is_far_by_cosine_and_no_nan():
    scorer = _scorer(np.ones((1, 4), dtype=np.float32), "cosine")
    assert scorer(scorer.values(np.zeros((1, 4), dtype=np.float32)), 0, 1).tolist() == [[0.0]]


@pytest.mark.parametrize("vector_type", ["int8", "uint8"])
def test_integers_stand_for_the_middle_of_their_step(vector_type):
    chance = np.random.default_rng(2)
    x = chance.normal(size=(500, 12)).astype(np.float32)
    ranges = calibrate(x)
    values = _scorer(x[:1], vector_type=vector_type, ranges=ranges).values(quantize(x, vector_type, ranges))
    step = (ranges[1] - ranges[0]) / 255
    assert (np.abs(values - x) <= step / 2 * 1.001).all()


@pytest.mark.parametrize("vector_type", ["binary", "ubinary"])
@pytest.mark.parametrize("dim", [16, 13])
def test_bits_are_counted_over_the_dimensions_alone(vector_type, dim):
    chance = np.random.default_rng(3)
    q, x = chance.normal(size=(2, dim)).astype(np.float32), chance.normal(size=(40, dim)).astype(np.float32)
    scorer = _scorer(q, "cosine", vector_type)
    scores = scorer(scorer.values(quantize(x, vector_type)), 0, 2)
    expected = ((q[:, None] > 0) == (x[None] > 0)).mean(-1)
    np.testing.assert_array_equal(scores, expected.astype(np.float32))
    assert scorer.name == "equal bits"


def test_what_cannot_be_scored_is_refused():
    one = np.ones((1, 2), dtype=np.float32)
    with pytest.raises(UsageError, match="similarity 'jaccard' is not one of cosine, dot, euclidean, manhattan"):
        _scorer(one, "jaccard")
    with pytest.raises(UsageError, match="no ranges for its int8 vectors"):
        _scorer(one, vector_type="int8")
