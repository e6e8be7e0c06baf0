"""A sink that keeps everything in this process: the fake beside the real ones, for tests of the stages."""

from __future__ import annotations

from collections.abc import Sequence

from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.base import Reconciled


class MemorySink:
    """`windows` maps each key to what was written last. Nothing survives the process."""

    def __init__(self) -> None:
        self.windows: dict[WindowKey, WindowOutput] = {}
        self._dropped: dict[WindowKey, frozenset[int]] = {}

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
        positions = [] if output.positions is None else output.positions.tolist()
        return list(dict.fromkeys(output.ids)), positions

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        self._dropped[record.key] = frozenset(rows)
        return output

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        pass

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        pass

    def count(self, records: Sequence[WindowRecord]) -> int:
        return sum(r.units for r in records if r.key in self.windows)

    def close(self) -> None:
        pass
