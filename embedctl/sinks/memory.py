"""A sink that keeps everything in this process: the fake beside the real ones, for tests of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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
        starts = np.flatnonzero(np.diff(output.row_of_units, prepend=-1))
        positions = [] if output.positions is None else output.positions.tolist()
        return [output.ids[i] for i in starts.tolist()], positions

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        whole = self.windows[record.key]
        if whole.record.revision == output.revision:
            return whole.record
        units = np.flatnonzero(~np.isin(whole.row_of_units, np.asarray(rows, dtype=np.int64)))
        left = replace(whole.only(units), record=replace(output, units=len(units)))
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
