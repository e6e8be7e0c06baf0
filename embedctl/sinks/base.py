"""What a destination must do. One file and one registry line make a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from embedctl.plan import Plan
from embedctl.records import WindowOutput, WindowRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """adopted: windows the destination holds without a ledger record. lost: known ones that it no longer holds."""

    adopted: tuple[WindowRecord, ...]
    lost: tuple[WindowRecord, ...]


class Sink(Protocol):
    """A destination opened for one plan. Every write is idempotent: the last window may come twice."""

    def prepare(self, plan: Plan) -> None:
        """Check the destination against the plan before the first row, and create what is missing.

        :raises SinkError, UsageError: it cannot take these outputs; says how to create what is needed.
        """
        ...

    def write(self, output: WindowOutput) -> WindowRecord:
        """Make the window durable, or find it already there; returns its record as the ledger should hold it.

        :raises SinkError: nothing of the window may be taken as written.
        """
        ...

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """Compare what the ledger knows with what is really there.

        :raises SinkError: something that is not ours is in the way.
        """
        ...

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        """Ids and positions of a committed window's live rows, in order, one a row however many units it has.

        Positions are empty where the ids tell them."""
        ...

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        """Take rows, by number among the window's live rows, out of a committed window; `output` is its new record."""
        ...

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        """Before a finished destination gets a later generation than `plan`'s: keep what readers hold whole."""
        ...

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        """All windows are in and the books balance: build what was put off, switch readers to this generation.

        May be killed and called again.
        """
        ...

    def count(self, records: Sequence[WindowRecord]) -> int:
        """Units the destination really holds for these windows, counted there, not taken from the books."""
        ...

    def close(self) -> None: ...
