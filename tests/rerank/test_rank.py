"""Candidates in the order of their scores; scores as columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedctl.outputs import OutputSpec
from embedctl.sinks.scores import column_names, score_columns
from embedctl.stages.rank import ranked

units = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=25)


@given(units, st.one_of(st.none(), st.integers(1, 4)))
def test_each_row_keeps_its_best_in_order(pairs: list[tuple[int, int]], top_k: int | None) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    document = np.array([d for d, _ in pairs], dtype=np.int64)
    scores = np.array([s for _, s in pairs], dtype=np.float32)
    order, rank = ranked(document, scores, top_k)
    expected = []
    for row in sorted(set(document.tolist())):
        best = sorted((i for i in range(len(pairs)) if pairs[i][0] == row), key=lambda i: (-pairs[i][1], i))
        expected += list(enumerate(best[:top_k]))
    assert list(zip(rank.tolist(), order.tolist(), strict=True)) == expected


def test_a_text_may_have_several_labels_or_none() -> None:
    spec = OutputSpec(name="x_scores", kind="score", dim=3, labels=("a", "b", "c"))
    values = np.array([[0.5, 0.2, 0.9], [0.1, 0.2, 0.3], [0.4, 0.6, 0.1]], dtype=np.float32)
    found = {name: column.to_pylist() for name, column in _columns(values, spec, multi_label=True).items()}
    assert found["x_labels"] == [["a", "c"], [], ["b"]]
    np.testing.assert_array_equal(np.array(found["x_scores"], dtype=np.float32), values)
    assert column_names(spec, multi_label=True) == ["x_labels", "x_scores"]


def test_one_label_wins_and_no_rows_have_the_same_columns() -> None:
    spec = OutputSpec(name="scores", kind="score", dim=2, labels=("a", "b"))
    values = np.array([[0.5, 0.5], [0.1, 0.2]], dtype=np.float32)
    assert _columns(values, spec, multi_label=False)["label"].to_pylist() == ["a", "b"]
    types = {n: c.type for n, c in _columns(values, spec, multi_label=False).items()}
    assert {n: c.type for n, c in _columns(values[:0], spec, multi_label=False).items()} == types
    assert column_names(spec, multi_label=False) == ["label", "score", "scores"]


def _columns(values: np.ndarray, spec: OutputSpec, *, multi_label: bool):
    return score_columns(values, spec, multi_label=multi_label, threshold=0.5)
