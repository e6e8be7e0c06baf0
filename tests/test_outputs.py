"""Columns of every kind are cut, joined and judged alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedctl import outputs as out
from embedctl.outputs import KINDS, Multivector, OutputKind, OutputSpec, Sparse, Values

DIM = 3


def values_of(kind: OutputKind, rows: Sequence[Sequence[float]]) -> Values:
    """A value a row: its numbers are the entries of a list, or, padded, those of a vector."""
    lengths = [len(r) for r in rows]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    flat = np.array([x for r in rows for x in r], dtype=np.float32)
    if kind == "sparse":
        indices = np.concatenate([*(np.arange(n) for n in lengths), np.zeros(0)]).astype(np.uint32)
        return Sparse(offsets=offsets, indices=indices, values=flat)
    if kind == "multivector":
        return Multivector(offsets=offsets, vectors=np.repeat(flat[:, None], DIM, axis=1))
    return np.array([[*r, *[0.0] * DIM][:DIM] for r in rows], dtype=np.float32).reshape(-1, DIM)


def lists_of(values: Values) -> list[list[float]]:
    if isinstance(values, np.ndarray):
        return values.tolist()
    numbers = values.values if isinstance(values, Sparse) else values.vectors[:, 0]
    return [numbers[a:b].tolist() for a, b in zip(values.offsets[:-1], values.offsets[1:], strict=True)]


ROWS = st.lists(st.lists(st.integers(-3, 3).map(float), max_size=DIM), max_size=8)


@pytest.mark.parametrize("kind", KINDS)
@given(rows=ROWS, data=st.data())
def test_taken_rows_are_those_rows(kind: OutputKind, rows: list[list[float]], data: st.DataObject) -> None:
    values = values_of(kind, rows)
    places = st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=12 if rows else 0)
    chosen = data.draw(places)
    whole = lists_of(values)
    taken = out.take(values, np.array(chosen, dtype=np.int64))
    assert lists_of(taken) == [whole[i] for i in chosen]
    assert len(taken) == len(chosen)


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(ROWS, min_size=1, max_size=4))
def test_joined_parts_stand_one_after_the_other(kind: OutputKind, parts: list[list[list[float]]]) -> None:
    joined = out.join([values_of(kind, rows) for rows in parts])
    assert lists_of(joined) == [row for rows in parts for row in lists_of(values_of(kind, rows))]
    with_none = out.join([out.empty(kind, DIM), values_of(kind, parts[0])])
    assert lists_of(with_none) == lists_of(values_of(kind, parts[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_values_are_found(kind: OutputKind) -> None:
    values = values_of(kind, [[1.0, 2.0], [np.nan], [0.0, 0.0], [np.inf, 1.0], [-1.0], []])
    assert out.not_finite(values).tolist() == [False, True, False, True, False, False]
    assert out.all_zero(values).tolist() == [False, False, True, False, False, True]
    blank = out.blank(kind, DIM)
    assert len(blank) == 1
    assert out.not_finite(blank).tolist() == [True]


def test_a_blank_of_a_huge_vocabulary_costs_nothing() -> None:
    assert out.blank("sparse", 1 << 32).nbytes < 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_comes_back_from_json(kind: OutputKind) -> None:
    spec = OutputSpec(
        name="x", kind=kind, dim=7, vector_type="int8", similarity="dot", modifier="idf", labels=("a", "b")
    )
    assert OutputSpec.from_json(spec.to_json()) == spec
