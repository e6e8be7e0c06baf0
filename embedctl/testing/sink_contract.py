"""What every sink must keep to. Inherit `SinkContract`, give it an empty destination, and pytest does the rest.

Enters: a `Sink` and two words on how to look into it. Leaves: a verdict. A third party's sink takes it as is:

    class TestMine(SinkContract):
        @pytest.fixture
        def sink(self, tmp_path): ...          # empty, not prepared
        def held(self, sink, record): ...      # what a reader of the destination sees of a window
        def lose(self, sink, record): ...      # make a committed window vanish from it
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.plan import Plan
from embedctl.records import Cursor, FileBooks, WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.spec import JobSpec
from embedctl.testing.plans import hand_plan

DIM = 4
_AT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=datetime.UTC)
KEPT = pa.table(
    {
        "nothing": pa.nulls(4),
        "name": pa.array(["a", None, "", "é\u0000"], pa.string()),
        "tags": pa.array([["x", None], [], None, ["y"]], pa.list_(pa.string())),
        "meta": pa.array([{"a": 1, "b": [0.5]}, None, {"a": None, "b": []}, {"a": -1, "b": None}]),
        "at": pa.array([_AT, None, _AT, _AT], pa.timestamp("us", "UTC")),
        "day": pa.array([_AT.date(), None, _AT.date(), _AT.date()], pa.date32()),
        "big": pa.array([2**53 + 1, -(2**53) - 1, 2**63 - 1, None], pa.int64()),
        "price": pa.array([Decimal("0.10"), None, Decimal("-99.99"), Decimal(0)], pa.decimal128(12, 2)),
        "blob": pa.array([b"\x00\xff", b"", None, b"x"], pa.binary()),
        "flag": pa.array([True, False, None, True]),
    }
)
"""Four rows of kept cells in the types that are lost most easily."""


class SinkContract:
    """Inherit this; define `sink`, `held` and `lose`. A sink that changes kept types also says how: `expected_kept`."""

    def held(self, sink: Sink, record: WindowRecord) -> pa.Table:
        """One row a unit, in order: columns `id`, `embedding` (lists of numbers) and the kept ones."""
        raise NotImplementedError

    def lose(self, sink: Sink, record: WindowRecord) -> None:
        raise NotImplementedError

    def expected_kept(self, kept: pa.Table) -> pa.Table:
        """What the destination makes of these cells; by default nothing may change."""
        return kept

    def test_a_window_written_twice_is_there_once(self, sink: Sink) -> None:
        sink.prepare(plan())
        first, again = sink.write(output(0)), sink.write(output(0))
        assert first == again
        assert replace(first, part=None) == output(0).record
        assert sink.count([first]) == 4
        assert sink.reconcile([first]).adopted == ()
        assert self.held(sink, first).num_rows == 4

    def test_vectors_and_ids_come_back_exactly(self, sink: Sink) -> None:
        sink.prepare(plan())
        written = [output(0), output(1)]
        for out, record in [(out, sink.write(out)) for out in written]:
            table = self.held(sink, record)
            assert table["id"].to_pylist() == list(out.ids)
            np.testing.assert_array_equal(
                np.array(table["embedding"].to_pylist(), np.float32), out.outputs["embedding"]
            )

    def test_kept_cells_keep_type_and_value(self, sink: Sink) -> None:
        sink.prepare(plan())
        expected = self.expected_kept(KEPT)
        found = self.held(sink, sink.write(output(0))).select(expected.column_names)
        assert found.schema.remove_metadata() == expected.schema
        assert found.to_pylist() == expected.to_pylist()

    def test_rows_are_told_in_order_with_their_positions(self, sink: Sink) -> None:
        sink.prepare(plan())
        out = output(3)
        ids, positions = sink.rows(sink.write(out))
        assert (list(ids), list(positions)) == (list(out.ids), [300, 301, 305, 309])

    def test_rows_with_the_same_id_are_rows_of_their_own(self, sink: Sink) -> None:
        sink.prepare(plan(JobSpec(chunk="tokens:8")))
        ids, positions = sink.rows(sink.write(chunked(0, ids=["x", "x", "y"])))
        assert (list(ids), list(positions)) == (["x", "x", "y"], [0, 1, 5])

    def test_an_empty_window_is_a_window(self, sink: Sink) -> None:
        sink.prepare(plan())
        record = sink.write(output(0, rows=0))
        assert sink.count([record]) == 0
        assert [list(part) for part in sink.rows(record)] == [[], []]
        assert sink.reconcile([record]).lost == ()

    def test_dropped_rows_are_gone_and_the_rest_is_untouched(self, sink: Sink) -> None:
        sink.prepare(plan())
        record = sink.write(output(0))
        before = self.held(sink, record)
        after = sink.drop_rows(record, replace(record, revision=1), [0, 2])
        assert (after.revision, after.units, sink.count([after])) == (1, 2, 2)
        ids, positions = sink.rows(after)
        assert (list(ids), list(positions)) == (["0-1", "0-3"], [1, 9])
        assert self.held(sink, after).to_pylist() == before.take([1, 3]).to_pylist()
        assert sink.reconcile([after]) == sink.reconcile([after])
        assert sink.reconcile([after]).adopted == sink.reconcile([after]).lost == ()

    def test_a_dropped_row_takes_all_its_chunks(self, sink: Sink) -> None:
        sink.prepare(plan(JobSpec(chunk="tokens:8")))
        record = sink.write(chunked(0, ids=["x", "y", "z"]))
        assert sink.count([record]) == 6
        after = sink.drop_rows(record, replace(record, revision=1), [1])
        assert (after.units, sink.count([after])) == (4, 4)
        assert list(sink.rows(after)[0]) == ["x", "z"]
        assert self.held(sink, after)["id"].to_pylist() == ["x", "z", "z", "z"]

    def test_rows_dropped_twice_are_dropped_once(self, sink: Sink) -> None:
        sink.prepare(plan())
        record = sink.write(output(0))
        changed = replace(record, revision=1)
        assert sink.drop_rows(record, changed, [1]) == sink.drop_rows(record, changed, [1])
        assert sink.count([sink.drop_rows(record, changed, [1])]) == 3

    def test_a_window_without_a_ledger_record_is_adopted(self, sink: Sink) -> None:
        sink.prepare(plan())
        known, unknown = sink.write(output(0)), sink.write(output(1))
        found = sink.reconcile([known])
        assert (found.adopted, found.lost) == ((unknown,), ())

    def test_a_window_that_vanished_is_lost_and_can_be_written_again(self, sink: Sink) -> None:
        sink.prepare(plan())
        records = [sink.write(output(n)) for n in range(3)]
        self.lose(sink, records[1])
        found = sink.reconcile(records)
        assert (found.adopted, found.lost) == ((), (records[1],))
        assert sink.write(output(1)) == records[1]
        assert sink.count(records) == 12

    def test_finishing_twice_changes_nothing(self, sink: Sink) -> None:
        sink.prepare(plan())
        record = sink.write(output(0))
        after = sink.drop_rows(record, replace(record, revision=1), [3])
        for _ in range(2):
            sink.finish(plan(), [after])
            assert sink.count([after]) == 3
            assert sink.reconcile([after]).adopted == sink.reconcile([after]).lost == ()
        sink.close()


def plan(spec: JobSpec | None = None) -> Plan:
    """Rows named by their own ids, every column of KEPT kept."""
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), *KEPT.schema])
    return hand_plan(spec, schema=schema, id_column="id", keep=KEPT.column_names)


def output(window: int, rows: int = 4) -> WindowOutput:
    """A window of up to four rows, one unit each, ids `<window>-<row>`, with gaps between their positions."""
    positions = window * 100 + np.array([0, 1, 5, 9], dtype=np.int64)[:rows]
    return _output(window, [f"{window}-{i}" for i in range(rows)], positions, KEPT.slice(0, rows), None)


def chunked(window: int, ids: Sequence[str]) -> WindowOutput:
    """A window of up to four rows; row i has i + 1 chunks."""
    units = np.arange(1, len(ids) + 1)
    row = np.repeat(np.arange(len(ids)), units)
    chunk = np.concatenate([np.arange(n, dtype=np.int32) for n in units.tolist()])
    positions = np.array([0, 1, 5, 9], dtype=np.int64)[: len(ids)]
    return _output(window, [ids[i] for i in row.tolist()], positions, KEPT.take(pa.array(row, pa.int64())), chunk)


def _output(
    window: int, ids: Sequence[str], positions: np.ndarray[Any, Any], kept: pa.Table, chunk: np.ndarray[Any, Any] | None
) -> WindowOutput:
    units, rows = len(ids), len(positions)
    vectors = np.random.default_rng([window, units]).standard_normal((units, DIM), dtype=np.float32)
    record = WindowRecord(
        key=WindowKey(generation=1, slice=0, window=window),
        begin=Cursor(segment=0, position=window * 100),
        end=Cursor(segment=0, position=window * 100 + 100),
        last=False,
        books=(FileBooks(file=0, read=rows, written=rows, skipped=0, duplicates=0, dead=0),),
        units=units,
        tokens=3 * units,
        padded_tokens=3 * units,
        truncated=0,
    )
    return WindowOutput(
        record=record,
        ids=ids,
        positions=positions,
        outputs={"embedding": vectors},
        kept=kept,
        token_count=np.full(units, 3, dtype=np.int64),
        truncated=np.zeros(units, dtype=bool),
        chunk=chunk,
        char_start=None if chunk is None else chunk * 10,
        char_end=None if chunk is None else chunk * 10 + 10,
        dead=(),
    )
