"""A sink that keeps everything in this process: the fake beside the real ones, for tests of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from embedctl.outputs import take
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.base import Reconciled


class MemorySink:
    """`windows` maps each key to what was written last. Nothing survives the process."""

    def __init__(self) -> None:
        self.windows: dict[WindowKey, WindowOutput] = {}

    def prepare(self, plan: Plan) -> None:
        pass

    def write(self, output: WindowOutput) -> WindowRecord:
        self.windows[output.record.key] = output
        return output.record

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        known = {r.key for r in records}
        return Reconciled(
            adopted=tuple(o.record for k, o in self.windows.items() if k not in known),
            lost=tuple(r for r in records if r.key not in self.windows),
        )

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        output = self.windows[record.key]
        starts = np.flatnonzero(np.diff(_row_of_unit(output), prepend=-1))
        positions = [] if output.positions is None else output.positions.tolist()
        return [output.ids[i] for i in starts.tolist()], positions

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        whole = self.windows[record.key]
        if whole.record.revision == output.revision:
            return whole.record
        units = np.flatnonzero(~np.isin(_row_of_unit(whole), np.asarray(rows, dtype=np.int64)))
        left = replace(
            whole,
            record=replace(output, units=len(units)),
            ids=[whole.ids[i] for i in units.tolist()],
            positions=None if whole.positions is None else np.delete(whole.positions, rows),
            outputs={name: take(values, units) for name, values in whole.outputs.items()},
            kept=whole.kept.take(pa.array(units, pa.int64())),
            token_count=whole.token_count[units],
            truncated=whole.truncated[units],
            chunk=None if whole.chunk is None else whole.chunk[units],
            char_start=None if whole.char_start is None else whole.char_start[units],
            char_end=None if whole.char_end is None else whole.char_end[units],
        )
        self.windows[record.key] = left
        return left.record

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        pass

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        pass

    def count(self, records: Sequence[WindowRecord]) -> int:
        return sum(len(self.windows[r.key].ids) for r in records if r.key in self.windows)

    def close(self) -> None:
        pass


def _row_of_unit(output: WindowOutput) -> np.ndarray:
    """int64 (units,): the number, among the window's live rows, of the row each unit came from."""
    if output.chunk is None:
        return np.arange(len(output.ids), dtype=np.int64)
    rows: np.ndarray = np.cumsum(output.chunk == 0) - 1
    return rows
