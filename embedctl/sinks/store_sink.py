"""What every store that holds one record under each key does with a window, told once.

Enters: windows. Leaves: a list of their rows beside the ledger, durable before the store is written, and what a store
does of its own between: put records in, and take them out where they are still a window's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from embedctl import failpoints
from embedctl.errors import SinkError
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.base import Reconciled
from embedctl.sinks.stores import WindowRows
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage


class StoreSink(ABC):
    """The part of a `Sink` that is the same whatever the store; `_plan` is what `prepare` was given."""

    def __init__(self, storage: LocalStorage, spec: JobSpec) -> None:
        self._storage, self._spec = storage, spec
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @abstractmethod
    def _put(self, output: WindowOutput, row: np.ndarray) -> None:
        """Write the window's units, at least one; durable when this returns. row: int64 (u,), the row of each."""

    @abstractmethod
    def _delete(self, key: WindowKey, known: WindowRows, rows: Sequence[int]) -> None:
        """Take out the records of these rows, perhaps none, that are still the window's; durable when this returns."""

    def write(self, output: WindowOutput) -> WindowRecord:
        key = output.record.key
        stores.check_values(output, self.plan.outputs)
        rows, row, before = stores.began(self._storage, output)
        if before is not None:
            self._delete(key, before, _stale(before, rows))
        stores.save_rows(self._storage, key, 0, rows)
        failpoints.hit("before-part")
        if len(output.ids):
            self._put(output, row)
        failpoints.hit("after-part")
        return output.record

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        known = stores.rows_known(self._storage, record)
        return known.ids, known.positions

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        known = stores.rows_known(self._storage, record)
        self._delete(record.key, known, rows)
        return stores.dropped(self._storage, record, output, known, rows)

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: B027
        """Readers of a store see each record, or each window, as it comes."""

    def _reconciled(
        self,
        name: str,
        records: Sequence[WindowRecord],
        others: str | None,
        held: Callable[[], int],
        lost: Callable[[Sequence[WindowRecord]], Iterable[WindowRecord]],
    ) -> Reconciled:
        """What the ledger lacks is written again over itself. others: what is there that is not the job's. held: how
        many of its records there are. lost: windows of which one has none, looked for where there are too few.

        :raises SinkError: records of no job or another are among ours, or all of ours are gone.
        """
        if others is not None:
            raise SinkError(
                f"{name}: {others} there are not this job's",
                hint="choose another collection with --to, or take them out",
            )
        expected, count = sum(r.units for r in records), held()
        if expected and not count:
            raise stores.gone(name, self._storage, "empty")
        # an id that stands twice also makes it less
        return Reconciled(adopted=(), lost=tuple(lost(records)) if count < expected else ())


def _stale(before: WindowRows, now: WindowRows) -> list[int]:
    """Rows of an unfinished try, or rows of more chunks, that the window does not have now. Rows of later windows that
    these had overwritten come back with the next run: `reconcile` finds them lost."""
    units = dict(zip(now.ids, now.units, strict=True))
    return [r for r, id in enumerate(before.ids) if units.get(id, 0) < before.units[r]]
