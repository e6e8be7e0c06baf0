"""The sink itself: in whatever order windows come and come again, the first position of an id stands."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("qdrant_edge")

from embedctl.errors import SinkError
from embedctl.outputs import OutputSpec
from embedctl.plan import Plan
from embedctl.records import Cursor, WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.payload import payloads
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_edge import EdgeEngine
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan

DIM = 4


OUTPUTS = (OutputSpec(name="embedding", kind="dense", dim=DIM, similarity="dot"),)


def plan(*, chunked: bool = False, outputs: tuple[OutputSpec, ...] = OUTPUTS) -> Plan:
    spec = JobSpec(chunk="tokens:8" if chunked else None)
    return hand_plan(spec, id_column="id", keep=("n",), resolved={"threads": 1}, outputs=outputs)


def output(window: int, rows: list[tuple[str, int]], *, chunked: bool = False) -> WindowOutput:
    """rows: (id, chunks)."""
    ids = [id for id, chunks in rows for _ in range(chunks)]
    numbers = np.array([n for _, chunks in rows for n in range(chunks)], dtype=np.int32)
    cursor = Cursor(segment=0, position=0)
    record = WindowRecord(
        key=WindowKey(generation=1, slice=0, window=window), begin=cursor, end=cursor, last=False, books=(),
        units=len(ids), tokens=0, padded_tokens=0, truncated=0,
    )  # fmt: skip
    return WindowOutput(
        record=record,
        ids=ids,
        positions=np.arange(len(rows), dtype=np.int64),
        outputs={"embedding": np.full((len(ids), DIM), float(window), dtype=np.float32)},
        kept=pa.table({"n": pa.array([window] * len(ids), pa.int64())}),
        token_count=np.ones(len(ids), dtype=np.int64),
        truncated=np.zeros(len(ids), dtype=bool),
        chunk=numbers if chunked else None,
        char_start=numbers if chunked else None,
        char_end=numbers if chunked else None,
        dead=(),
    )


class Store:
    def __init__(self, folder: Path, *, chunked: bool = False) -> None:
        self.engine = EdgeEngine(folder / "store")
        self.sink = QdrantSink(self.engine, LocalStorage(folder / "state"), JobSpec())
        self.sink.prepare(plan(chunked=chunked))

    def held(self) -> dict[str, int]:
        """Point -> the window it is from."""
        import qdrant_edge as edge

        found, _ = self.engine._opened().scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
        assert all(p.vector == [float(p.payload["n"])] * DIM for p in found)
        return {f"{p.payload['id']}#{p.payload.get('chunk', 0)}": p.payload["n"] for p in found}


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3, 2])))
def test_first_position_wins_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    windows = {1: [("a", 1), ("b", 1)], 2: [("b", 1), ("c", 1)], 3: [("a", 1), ("c", 1), ("d", 1)]}
    store = Store(tmp_path)
    for window in order:
        store.sink.write(output(window, windows[window]))
    assert store.held() == {"a#0": 1, "b#0": 1, "c#0": 2, "d#0": 3}
    record = output(3, windows[3]).record
    after = store.sink.drop_rows(record, replaced(record), [0, 1])
    assert store.sink.drop_rows(record, replaced(record), [0, 1]) == after
    assert (after.units, list(store.sink.rows(after)[0])) == (1, ["d"])
    assert store.held() == {"a#0": 1, "b#0": 1, "c#0": 2, "d#0": 3}
    assert store.sink.count([]) == 4
    store.sink.close()


def replaced(record: WindowRecord) -> WindowRecord:
    from dataclasses import replace

    return replace(record, revision=1)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_surplus_chunks_of_a_loser_go(tmp_path: Path, order: tuple[int, int]) -> None:
    windows = {1: [("a", 2)], 2: [("x", 1), ("a", 4)]}
    store = Store(tmp_path, chunked=True)
    for window in order:
        store.sink.write(output(window, windows[window], chunked=True))
    record = output(2, windows[2], chunked=True).record
    after = store.sink.drop_rows(record, replaced(record), [1])
    assert after.units == 1
    assert store.held() == {"a#0": 1, "a#1": 1, "x#0": 2}
    store.sink.close()


def test_a_window_done_again_with_fewer_rows_leaves_nothing_behind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.sink.write(output(1, [("a", 1), ("b", 1), ("c", 1)]))
    store.sink.write(output(1, [("b", 1), ("c", 1)]))
    assert store.held() == {"b#0": 1, "c#0": 1}
    store.sink.close()


def test_an_id_overwritten_by_a_row_that_then_dies_is_written_again(tmp_path: Path) -> None:
    """Window 2 is committed; window 1, which stands before it, has the id too, but not when it is done again."""
    store = Store(tmp_path)
    later = store.sink.write(output(2, [("b", 1), ("c", 1)]))
    store.sink.write(output(1, [("a", 1), ("b", 1)]))
    assert store.held() == {"a#0": 1, "b#0": 1, "c#0": 2}
    first = store.sink.write(output(1, [("a", 1)]))
    assert store.held() == {"a#0": 1, "c#0": 2}
    assert store.sink.reconcile([first, later]).lost == (later,)
    assert store.sink.write(output(2, [("b", 1), ("c", 1)])) == later
    assert store.held() == {"a#0": 1, "b#0": 2, "c#0": 2}
    assert store.sink.reconcile([first, later]).lost == ()
    assert store.sink.count([first, later]) == 3
    store.sink.close()


def test_a_row_done_again_with_fewer_chunks_leaves_none_behind(tmp_path: Path) -> None:
    store = Store(tmp_path, chunked=True)
    store.sink.write(output(1, [("a", 3), ("b", 2)], chunked=True))
    store.sink.write(output(1, [("a", 1), ("b", 2)], chunked=True))
    assert store.held() == {"a#0": 1, "b#0": 1, "b#1": 1}
    store.sink.close()


def test_rows_of_chunks_are_taken_out_by_id(tmp_path: Path) -> None:
    store = Store(tmp_path, chunked=True)
    store.sink.write(output(1, [("a", 3), ("b", 2), ("c", 1)], chunked=True))
    assert store.sink.delete(["a", "c", "nobody"]) == 4
    assert store.held() == {"b#0": 1, "b#1": 1}
    store.sink.close()


def test_vectors_that_are_not_finite_never_arrive(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bad = output(1, [("a", 1), ("b", 1)])
    bad.outputs["embedding"][1, 2] = np.nan
    with pytest.raises(SinkError, match="row 'b': embedding holds NaN or Inf"):
        store.sink.write(bad)
    assert store.held() == {}
    store.sink.close()


def test_points_of_others_are_told(tmp_path: Path) -> None:
    import qdrant_edge as edge

    store = Store(tmp_path)
    store.sink.write(output(1, [("a", 1)]))
    store.engine._opened().update(edge.UpdateOperation.upsert_points([edge.Point(5, [1.0] * DIM, {"x": 1})]))
    with pytest.raises(SinkError, match="1 points there are not this job's"):
        store.sink.reconcile([])
    store.sink.close()


@given(st.text())
def test_ids_that_are_no_numbers_or_uuids_are_uuid5(text: str) -> None:
    made = stores.point_id(text)
    if isinstance(made, int):
        assert str(made) == text
        assert 0 <= made < 2**64
    elif made != text:
        assert made == str(uuid.uuid5(uuid.NAMESPACE_URL, text))


@pytest.mark.parametrize(
    ("id", "same"),
    [("0", True), ("18446744073709551615", True), ("18446744073709551616", False), ("07", False), ("-1", False),
     ("²", False), ("6ba7b811-9dad-11d1-80b4-00c04fd430c8", True), ("6BA7B811-9DAD-11D1-80B4-00C04FD430C8", False)],
)  # fmt: skip
def test_what_passes_through(id: str, same: bool) -> None:
    assert (str(stores.point_id(id)) == id) is same


_KEYS = st.builds(
    lambda g, s, w, r: (WindowKey(generation=g, slice=s, window=w), r),
    st.integers(1, 2**stores.GENERATION_BITS - 1), st.integers(0, 2**stores.SLICE_BITS - 1),
    st.integers(0, 2**stores.WINDOW_BITS - 1), st.integers(0, stores.MAX_ROWS - 1),
)  # fmt: skip


@given(_KEYS, _KEYS)
def test_position_numbers_order_rows(one: tuple[WindowKey, int], other: tuple[WindowKey, int]) -> None:
    a, b = stores.position_number(*one), stores.position_number(*other)
    assert (a < b) == (one < other)
    assert 0 <= a < 2**63
    if one[0] < other[0]:
        assert float(a) < float(stores.position_number(other[0], 0)), "also where they are compared as float64"


def test_more_slices_than_the_number_holds() -> None:
    with pytest.raises(SinkError, match="at most 131072 slices"):
        stores.position_number(WindowKey(generation=1, slice=2**17, window=0), 0)


def test_payload_types() -> None:
    import datetime as dt
    import decimal

    table = pa.table(
        {
            "utc": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "Europe/Berlin")),
            "naive": pa.array([1_700_000_000], pa.timestamp("s")),
            "day": pa.array([dt.date(2024, 1, 2)]),
            "price": pa.array([decimal.Decimal("1.10")]),
            "raw": pa.array([b"\x00\xff"]),
            "big": pa.array([2**63 - 1]),
            "huge": pa.array([2**64 - 1], pa.uint64()),
            "nan": pa.array([float("nan")]),
            "nested": pa.array([[{"at": dt.datetime(2024, 1, 1), "x": float("inf"), "n": None}, None]]),  # noqa: DTZ001
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "dict": pa.array(["a"]).dictionary_encode(),
            "null": pa.nulls(1),
        }
    )
    assert payloads(table) == [
        {
            "utc": "2023-11-14T22:13:20.123456789Z",
            "naive": "2023-11-14T22:13:20",
            "day": "2024-01-02",
            "price": "1.10",
            "raw": "AP8=",
            "big": 2**63 - 1,
            "huge": "18446744073709551615",
            "nan": None,
            "nested": [{"at": "2024-01-01T00:00:00.000000", "x": None, "n": None}, None],
            "map": [["a", 1]],
            "dict": "a",
            "null": None,
        }
    ]
