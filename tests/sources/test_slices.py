"""Slices cover the corpus without gap or overlap, in order; samples are the same for ever."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedctl.records import Segment, SourceFile
from embedctl.sources.slices import cut_slices, sample_mask, size_segments

sizes = st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=6), max_size=12)


def segments_of(files: list[list[int]]) -> list[tuple[Segment, int]]:
    out = []
    for i, parts in enumerate(files):
        bounds = np.cumsum([0, *parts]).tolist()
        out += [(Segment(file=i, begin=b, end=e), e - b) for b, e in itertools.pairwise(bounds)]
    return out


@given(sizes, st.integers(1, 2000), st.integers(1, 5))
def test_all_segments_once_in_order(files: list[list[int]], target: int, most: int) -> None:
    segments = segments_of(files)
    slices = cut_slices(segments, target, max_segments=most)
    assert [s for piece in slices for s in piece.segments] == [s for s, _ in segments]
    assert [piece.index for piece in slices] == list(range(len(slices)))
    assert all(piece.segments and len(piece.segments) <= most for piece in slices)


@given(sizes, st.integers(1, 2000))
def test_a_slice_passes_the_target_only_with_one_segment(files: list[list[int]], target: int) -> None:
    for piece in cut_slices(segments_of(files), target):
        total = sum((s.end or 0) - s.begin for s in piece.segments)
        assert total <= target or len(piece.segments) == 1


@given(sizes, st.integers(1, 2000))
def test_two_neighbours_would_not_fit_one_slice(files: list[list[int]], target: int) -> None:
    slices = cut_slices(segments_of(files), target)
    for a, b in itertools.pairwise(slices):
        total = sum((s.end or 0) - s.begin for s in (*a.segments, b.segments[0]))
        assert total > target


def test_a_limit_makes_one_slice() -> None:
    segments = segments_of([[5, 5], [5]])
    (piece,) = cut_slices(segments, 1, limit_rows=7)
    assert piece.limit_rows == 7
    assert len(piece.segments) == 3
    assert cut_slices([], 1, limit_rows=7) == []


def test_sizes_of_byte_ranges_are_exact_and_of_row_ranges_shared() -> None:
    file = SourceFile(index=0, uri="a", path="a", format="jsonl", compression=None, size_bytes=100, version="")
    ranges = [Segment(file=0, begin=0, end=30), Segment(file=0, begin=30, end=None)]
    assert [n for _, n in size_segments(file, ranges)] == [30, 70]
    rows = [Segment(file=0, begin=0, end=3), Segment(file=0, begin=3, end=4)]
    assert [n for _, n in size_segments(file, rows)] == [50, 50]


def test_a_sample_is_the_same_rows_for_ever() -> None:
    mask = sample_mask("shard/a.jsonl", np.arange(12, dtype=np.int64), 0.5)
    assert mask.tolist() == GOLDEN


GOLDEN = [False, True, False, True, False, False, True, True, False, False, True, False]


@given(st.integers(0, 2**62), st.floats(0.001, 1.0))
def test_a_sample_does_not_depend_on_how_rows_are_cut(begin: int, fraction: float) -> None:
    positions = np.arange(begin, begin + 64, dtype=np.int64)
    whole = sample_mask("a", positions, fraction)
    parts = [sample_mask("a", positions[i : i + 7], fraction) for i in range(0, 64, 7)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_a_sample_has_about_its_share_and_nests() -> None:
    positions = np.arange(0, 2_000_000, 20, dtype=np.int64)
    tenth, fifth = sample_mask("a", positions, 0.1), sample_mask("a", positions, 0.2)
    assert abs(tenth.mean() - 0.1) < 0.005
    assert not (tenth & ~fifth).any()
    assert sample_mask("a", positions, 1.0).all()
    assert sample_mask("b", positions, 0.1).tolist() != tenth.tolist()
