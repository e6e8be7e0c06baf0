"""What a destination must do. One file and one registry line make a new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from embedctl.outputs import Outputs, OutputSpec, Values
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
        """Take rows, by number among the window's live rows, out of a committed window; `output` is its new record.

        A sink that can do this for several windows at a time says for how many: `drops_at_once`, an int."""
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


@runtime_checkable
class Hashed(Protocol):
    """A sink that keeps the content hashes of its rows itself; for others they are kept beside the ledger."""

    def row_hashes(self, record: WindowRecord) -> np.ndarray | None:
        """`WindowOutput.hashes` of a committed window's live rows, in order; None where it was written without."""
        ...


UNIT_COLUMNS = ("chunk", "char_start", "char_end", "token_count", "truncated")
"""What a destination may tell of each unit beside its id, its outputs and what was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Units read back from a destination, in order. row: int64 (u,), the window's live row of each. outputs: as stored.

    The others are None where the destination does not keep them.
    """

    row: np.ndarray
    outputs: Outputs
    chunk: np.ndarray | None
    char_start: np.ndarray | None
    char_end: np.ndarray | None
    token_count: np.ndarray | None
    truncated: np.ndarray | None


@runtime_checkable
class Reusable(Protocol):
    """A sink that gives outputs back exactly, so that a row whose kept columns changed need not be embedded again."""

    def stored(self, record: WindowRecord, rows: np.ndarray) -> Stored:
        """All units of these live rows (int64, ascending) of a committed window. :raises BooksError: unreadable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One unit that a search found. `id` as the corpus has it, `chunk` None without chunking, `kept` other columns."""

    id: str
    chunk: int | None
    score: float
    kept: Mapping[str, Any]


@runtime_checkable
class Searchable(Protocol):
    """A sink that answers queries itself, by its own index."""

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool = False
    ) -> Sequence[Sequence[Hit]]:
        """For each of the n queries its nearest units, best first. query: by output name, n values each, in float32;
        several outputs are fused by reciprocal rank. `where`: in the store's own words, or the SQL it understands.

        :raises SinkError, UsageError: the store refuses; a filter it does not understand is named.
        """
        ...


@runtime_checkable
class Scannable(Protocol):
    """A sink whose contents can be read back whole, also where embedctl did not write them."""

    def contents(self) -> Sequence[OutputSpec]:
        """The outputs that the destination holds, as it declares them. :raises SinkError: it cannot be read."""
        ...

    def scan(self, batch_rows: int = 1024) -> Iterator[pa.RecordBatch]:
        """Everything, in a stable order: `id` (as the corpus had it, where that is known), `chunk` where there are
        chunks, kept columns, then a column an output (FixedSizeList, Struct<indices, values>, List<FixedSizeList>).
        Columns of embedctl's own start with an underscore, as they are stored.

        :raises SinkError: the store stops answering.
        """
        ...


@runtime_checkable
class Deletable(Protocol):
    """A sink that takes rows out by id."""

    def delete(self, ids: Sequence[str]) -> int:
        """Take all units of these rows out, durably; how many units were there. Ids that are not there do no harm."""
        ...


@runtime_checkable
class Countable(Protocol):
    """A sink that counts all it holds, whoever wrote it."""

    def total(self) -> int:
        """Units there now, counted exactly."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A store that keeps a text beside its points, so that the state of a job can be rebuilt from it alone."""

    def remember(self, manifest: str) -> None:
        """Keep it durably in the place of what was kept before."""
        ...

    def remembered(self) -> str | None:
        """What was kept last; None: nothing."""
        ...

    def units_there(self) -> Iterator[pa.RecordBatch]:
        """All units of jobs, in any order, without vectors: id (string), chunk (int32, null without chunks), _pos
        (int64) and _hash (string, null where it was written without).

        :raises SinkError: the store stops answering.
        """
        ...


@runtime_checkable
class Aliases(Protocol):
    """Names that readers of a store use, each serving one collection, moved in one step. Opened by the URI of any."""

    def resolve(self, alias: str) -> str | None:
        """The collection that the alias names; None: no such alias."""
        ...

    def collections(self, prefix: str = "") -> Sequence[str]:
        """Collections whose names begin so."""
        ...

    def check(self, alias: str) -> None:
        """:raises UsageError: a collection has this name, so that it can be no alias."""
        ...

    def switch(self, alias: str, collection: str) -> str | None:
        """Readers see `collection` from now on, never nothing between. Returns what they saw before."""
        ...

    def drop(self, collection: str) -> None:
        """Delete a collection; nothing where it is gone. :raises UsageError: an alias serves it."""
        ...

    def close(self) -> None: ...
