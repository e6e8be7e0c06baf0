"""Windows are a function of the slice and the plan: what is committed already changes none of the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedctl.errors import GuardRefused
from embedctl.plan import Plan
from embedctl.records import RowBlock, Segment, Slice, SourceFile, Window, WindowRecord
from embedctl.spec import JobSpec
from embedctl.stages.windows import RowRules, WindowReader
from embedctl.testing.plans import hand_plan
from embedctl.text.template import row_problem

SCHEMA = pa.schema([("text", pa.string()), ("id", pa.string()), ("ok", pa.bool_()), ("n", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`gap`: bytes between this row's end and the next row, as empty lines leave them."""

    text: str | None
    id: str | None
    ok: bool
    error: str | None
    gap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    files: list[list[Row]]
    cuts: list[int]
    block_rows: int

    def positions(self, file: int) -> list[int]:
        places = [0]
        for row in self.files[file]:
            places.append(places[-1] + 1 + row.gap)
        return places[:-1]

    def segments(self) -> tuple[Segment, ...]:
        """Every file, cut at the same places."""
        edges = [0, *sorted(set(self.cuts)), None]
        pairs = list(itertools.pairwise(edges))
        return tuple(Segment(file=f, begin=b or 0, end=e) for f in range(len(self.files)) for b, e in pairs)

    def blocks(self, file: SourceFile, begin: int, end: int | None, start: int) -> Iterator[RowBlock]:
        """As the readers do it: blocks are counted from where the reading starts, not from the file's begin."""
        found = [
            (position, row)
            for position, row in zip(self.positions(file.index), self.files[file.index], strict=True)
            if max(begin, start) <= position and (end is None or position < end)
        ]
        for first in range(0, len(found), self.block_rows):
            some = found[first : first + self.block_rows]
            yield RowBlock(
                file=file.index,
                positions=np.array([position for position, _ in some], dtype=np.int64),
                columns=_columns([row for _, row in some], [position for position, _ in some]),
                next_position=some[-1][0] + 1,
                errors={i: row.error for i, (_, row) in enumerate(some) if row.error is not None},
                raw=[f"{position} {row.text}".encode() for position, row in some],
            )


def _columns(rows: Sequence[Row], positions: Sequence[int]) -> pa.RecordBatch:
    cells = [None if row.error else row for row in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row and row.text for row in cells], pa.string()),
            pa.array([row and row.id for row in cells], pa.string()),
            pa.array([row and row.ok for row in cells], pa.bool_()),
            pa.array(positions, pa.int64()),
        ],
        schema=SCHEMA,
    )


ROWS = st.builds(
    Row,
    text=st.sampled_from(["a", "b c", "ddd", "é" * 9, "", " ", None]),
    id=st.sampled_from(["1", "2", "3", "4", "", None]),
    ok=st.sampled_from([True, True, True, False]),
    error=st.sampled_from([None] * 6 + ["not JSON"]),
    gap=st.sampled_from([0, 0, 1, 5]),
)
CORPORA = st.builds(
    Corpus,
    files=st.lists(st.lists(ROWS, max_size=30) | st.lists(ROWS, min_size=12, max_size=30), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 30), max_size=3),
    block_rows=st.integers(1, 5),
)


@st.composite
def readers(draw: st.DrawFn) -> tuple[WindowReader, Slice, Corpus]:
    corpus = draw(CORPORA)
    slice_ = Slice(index=2, segments=corpus.segments(), limit_rows=draw(st.none() | st.integers(1, 12)))
    spec = JobSpec(window_rows=draw(st.integers(1, 5)), window_bytes=draw(st.sampled_from([1, 6, 1 << 20])))
    return _reader(
        corpus,
        slice_,
        spec,
        id_column=draw(st.sampled_from([None, "id"])),
        where=draw(st.booleans()),
        sampled=draw(st.booleans()),
        on_duplicate=draw(st.sampled_from(["first", "dead-letter", "keep"])),
    )


def _reader(
    corpus: Corpus,
    slice_: Slice,
    spec: JobSpec,
    *,
    id_column: str | None = None,
    where: bool = False,
    sampled: bool = False,
    on_duplicate: str = "first",
) -> tuple[WindowReader, Slice, Corpus]:
    plan: Plan = hand_plan(
        spec,
        schema=SCHEMA,
        id_column=id_column,
        keep=["n", "text"],
        uris=[f"f{i}.jsonl" for i in range(len(corpus.files))],
        slices=[slice_],
    )
    rules = RowRules(
        where=(lambda batch: batch.column("ok").fill_null(False).to_numpy(zero_copy_only=False)) if where else None,
        sample=(lambda uri, positions: (positions + len(uri)) % 3 != 0) if sampled else None,
        render=lambda batch, _: batch.column("text").to_pylist(),
        problem=row_problem,
        on_duplicate=on_duplicate,
    )
    return WindowReader(plan, rules, corpus.blocks), slice_, corpus


def plain(window: Window) -> tuple[object, ...]:
    """All of a window, comparable."""
    arrays = (window.files.tolist(), window.positions.tolist(), window.kept.to_pylist(), window.kept.schema)
    books = (window.books, window.dead, window.replay, window.raw)
    return (window.key, window.begin, window.end, window.last, window.ids, window.texts, *arrays, *books)


def record(window: Window) -> WindowRecord:
    """The window as the ledger holds it, one live row found dead later."""
    books = tuple(
        replace(b, written=b.written - 1, dead=b.dead + 1) if b.written and not i else b
        for i, b in enumerate(window.books)
    )
    return WindowRecord(
        key=window.key, begin=window.begin, end=window.end, last=window.last, books=books,
        units=len(window.ids), tokens=0, padded_tokens=0, truncated=0,
    )  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(found=readers(), chosen=st.lists(st.booleans(), min_size=1, max_size=40))
def test_any_committed_subset_leaves_exactly_the_others(
    found: tuple[WindowReader, Slice, Corpus], chosen: list[bool]
) -> None:
    reader, slice_, _ = found
    whole = list(reader.windows(slice_, {}))
    done = {w.key.window for w in whole if chosen[w.key.window % len(chosen)]}
    records = {w.key.window: record(w) for w in whole if w.key.window in done}
    rest = list(reader.windows(slice_, records))
    assert [plain(w) for w in rest] == [plain(w) for w in whole if w.key.window not in done]


def test_where_a_block_ends_does_not_show_in_a_window() -> None:
    rows = [Row(text="x", id="1", ok=True, error=None, gap=1)] * 12
    slice_ = Slice(index=0, segments=(Segment(file=0),))
    reader, slice_, _ = _reader(Corpus(files=[rows], cuts=[], block_rows=3), slice_, JobSpec(window_rows=2))
    whole = list(reader.windows(slice_, {}))
    rest = list(reader.windows(slice_, {0: record(whole[0])}))
    assert [plain(w) for w in rest] == [plain(w) for w in whole[1:]]


@settings(deadline=None)
@given(found=readers())
def test_every_row_is_in_the_books_once(found: tuple[WindowReader, Slice, Corpus]) -> None:
    reader, slice_, corpus = found
    windows = list(reader.windows(slice_, {}))
    assert [w.key.window for w in windows] == list(range(len(windows)))
    assert [w.last for w in windows] == [False] * (len(windows) - 1) + [True]
    assert [w.begin for w in windows[1:]] == [w.end for w in windows[:-1]]
    for window in windows:
        for b in window.books:
            assert b.read == b.written + b.skipped + b.duplicates + b.dead
            assert b.written == window.files.tolist().count(b.file)
            assert b.dead == [d.file for d in window.dead].count(b.file)
        assert len(window.ids) == len(window.texts) == len(window.positions) == window.kept.num_rows
        assert window.kept["n"].to_pylist() == window.positions.tolist()
        assert window.kept["text"].to_pylist() == window.texts
    places = [(f, p) for w in windows for f, p in zip(w.files.tolist(), w.positions.tolist(), strict=True)]
    gone = [(d.file, d.position) for w in windows for d in w.dead]
    assert len({*places, *gone}) == len(places) + len(gone)
    assert places == sorted(places)
    everything = [(f, p) for f in range(len(corpus.files)) for p in corpus.positions(f)]
    assert {*places, *gone} <= set(everything)
    counted = sum(b.read - b.skipped for w in windows for b in w.books)
    if slice_.limit_rows is not None:
        assert counted <= slice_.limit_rows
    if reader._rules.sample is None and (slice_.limit_rows is None or counted < slice_.limit_rows):
        assert sum(b.read for w in windows for b in w.books) == len(everything)


@pytest.mark.parametrize("segments", [(), (Segment(file=0),)])
def test_no_rows_give_one_empty_window(segments: tuple[Segment, ...]) -> None:
    corpus = Corpus(files=[[]], cuts=[], block_rows=3)
    reader, slice_, _ = _reader(corpus, Slice(index=0, segments=segments), JobSpec())
    (window,) = reader.windows(slice_, {})
    assert (window.last, window.ids, window.books, window.kept.schema.names) == (True, [], (), ["n", "text"])
    assert list(reader.windows(slice_, {0: record(window)})) == []


def _of(*ids: str) -> Corpus:
    rows = [Row(text=f"text {i}", id=i, ok=True, error=None, gap=0) for i in ids]
    return Corpus(files=[rows], cuts=[], block_rows=2)


@pytest.mark.parametrize(
    ("rule", "ids", "duplicates", "dead"),
    [("first", ["a", "b"], 1, []), ("keep", ["a", "b", "a"], 0, []), ("dead-letter", ["a", "b"], 0, ["a"])],
)
def test_a_second_row_with_an_id(rule: str, ids: list[str], duplicates: int, dead: list[str]) -> None:
    slice_ = Slice(index=0, segments=(Segment(file=0),))
    reader, slice_, _ = _reader(_of("a", "b", "a"), slice_, JobSpec(), id_column="id", on_duplicate=rule)
    (window,) = reader.windows(slice_, {})
    assert (window.ids, window.books[0].duplicates, [d.id for d in window.dead]) == (ids, duplicates, dead)
    if dead:
        assert window.dead[0].reason == "duplicate id 'a', first at f0.jsonl:0"


def test_a_second_row_with_an_id_stops_the_run_when_asked() -> None:
    slice_ = Slice(index=0, segments=(Segment(file=0),))
    reader, slice_, _ = _reader(_of("a", "a"), slice_, JobSpec(), id_column="id", on_duplicate="fail")
    with pytest.raises(GuardRefused, match=r"^id 'a' stands twice, first at f0\.jsonl:0$"):
        list(reader.windows(slice_, {}))


def test_rows_that_where_skips_close_windows_too() -> None:
    rows = [Row(text="x", id="1", ok=False, error=None, gap=0)] * 40
    corpus = Corpus(files=[rows], cuts=[], block_rows=7)
    reader, slice_, _ = _reader(corpus, Slice(index=0, segments=(Segment(file=0),)), JobSpec(window_rows=1), where=True)
    windows = list(reader.windows(slice_, {}))
    assert [w.books[0].skipped for w in windows] == [16, 16, 8]
