"""LanceDB, embedded: `lancedb:///folder/of/db/table` or `lancedb://./db/table`.

Enters: windows. Leaves: a row a unit: kept columns and outputs in their Arrow types, `_pos`, `_job`, `_hash`. A window
is one appended version, nothing is ever overwritten: a window done again first takes out what an unfinished try left,
by `_pos`; later rows of an id are taken out at the end. Readers check out the tag `current`, which moves only when a
generation is whole. Refused: a table of other columns or another job, vectors that LanceDB would misread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl import failpoints
from embedctl.errors import BooksError, SinkError, UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import lancedb_index as indexing
from embedctl.sinks import lancedb_read as reading
from embedctl.sinks import stores
from embedctl.sinks.base import UNIT_COLUMNS, Hit, Reconciled, Stored
from embedctl.sinks.columns import values_of
from embedctl.sinks.keyed_records import (
    HASH,
    JOB,
    POS,
    UNITS_AT_ONCE,
    check_names,
    refuse,
    units_in,
)
from embedctl.sinks.lancedb_read import quoted
from embedctl.sinks.lancedb_rows import called, schema_of, table_of
from embedctl.sinks.lancedb_table import Table
from embedctl.spec import JobSpec
from embedctl.storage import STATE, LocalStorage, etag_of

CURRENT = "current"
ROWS_AT_ONCE = 5000
_ELSEWHERE = "choose another table with --to, or delete it"


def open_lancedb(target: str, storage: LocalStorage, spec: JobSpec) -> LanceSink:
    """:raises UsageError: no folder and table in the URI, or LanceDB is not installed."""
    path = Path(target.partition("://")[2])
    if len(path.parts) < 2 or path.name in ("", ".", ".."):
        raise UsageError(f"--to: {target} is not lancedb://FOLDER/TABLE", hint="--to lancedb://./vectors.db/docs")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", path.name):
        raise UsageError(f"--to: {path.name!r}: LanceDB takes letters, digits, _, - and . in the name of a table")
    if find_spec("lancedb") is None:  # its import takes a second, which `status` need not wait for
        raise UsageError("LanceDB is not installed", hint="pip install 'embedctl[lancedb]'")
    return LanceSink(Table(path.parent, path.name.removesuffix(".lance")), storage, spec)


class LanceSink:
    """One table, opened when first needed."""

    def __init__(self, table: Table, storage: LocalStorage, spec: JobSpec) -> None:
        """:raises UsageError: what no table could hold as asked."""
        _refuse(spec)
        self._table, self._storage, self._spec = table, storage, spec
        self._indexes = tuple((called(name), kind) for name, kind in map(stores.index_field, spec.index_field))
        self._plan: Plan | None = None
        self._schema: pa.Schema | None = None

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def prepare(self, plan: Plan) -> None:
        check_names(plan)
        schema = schema_of(plan, self._spec.distance)
        indexing.check_fields(self._indexes, schema)
        if self._table.exists():
            self._check(plan, schema)
        else:
            if stores.has_rows(self._storage):
                raise stores.gone(self._table.name, self._storage, "gone")
            self._table.make(schema)
        self._plan, self._schema = plan, schema

    def write(self, output: WindowOutput) -> WindowRecord:
        key = output.record.key
        stores.check_values(output, self.plan.outputs)
        rows, row = stores.rows_of(output)
        again = stores.load_rows(self._storage, key, 0) is not None
        stores.save_rows(self._storage, key, 0, rows)
        failpoints.hit("before-part")
        if again:
            self._table.change(lambda t: t.delete(_of_window(key)))
        if len(output.ids):
            table = table_of(output, self.plan, row, self._schema)
            began = time.monotonic()
            self._table.change(lambda t: t.add(table))
            if self._spec.max_points_per_s is not None:
                time.sleep(max(0.0, began + len(output.ids) / self._spec.max_points_per_s - time.monotonic()))
        failpoints.hit("after-part")
        return output.record

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """What the ledger lacks is written again; of what it knows, windows without a row are lost.

        :raises SinkError: rows of no job or another are among ours, or all of ours are gone.
        """
        others = self._table.ask(lambda t: t.count_rows(f"{JOB} IS NULL OR {JOB} != {quoted(self.plan.job)}"))
        if others:
            raise SinkError(f"{self._table.name}: {others} rows there are not this job's", hint=_ELSEWHERE)
        if not any(r.units for r in records):
            return Reconciled(adopted=(), lost=())
        here = self._table.ask(reading.windows_there)
        if not here:
            raise stores.gone(self._table.name, self._storage, "empty")
        mine = [r for r in records if r.units and r.key.generation == self.plan.generation]
        lost = [r for r in mine if stores.position_number(r.key, 0) >> stores.ROW_BITS not in here]
        return Reconciled(adopted=(), lost=tuple(lost))

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        known = stores.rows_known(self._storage, record)
        return known.ids, known.positions

    def stored(self, record: WindowRecord, rows: np.ndarray) -> Stored:
        known = stores.rows_known(self._storage, record)
        positions = np.array([stores.position_number(record.key, known.numbers[r]) for r in rows.tolist()], np.int64)
        found = self._table.ask(lambda t: reading.at_positions(t, positions))
        if len(np.unique(found[POS].to_numpy())) != len(rows):
            raise BooksError(f"{self._table.name}: rows of window {record.key.stem} are gone", hint="embedctl verify")
        own = {n: found[n].to_numpy() for n in UNIT_COLUMNS if n in found.column_names and n not in self.plan.keep}
        return Stored(
            row=rows[np.searchsorted(positions, found[POS].to_numpy())],
            outputs={o.name: values_of(found[o.name].combine_chunks(), o)[0] for o in self.plan.outputs},
            **{name: own.get(name) for name in UNIT_COLUMNS},
        )

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        known = stores.rows_known(self._storage, record)
        positions = [stores.position_number(record.key, known.numbers[r]) for r in rows]
        for begin in range(0, len(positions), ROWS_AT_ONCE):
            some = ", ".join(map(str, positions[begin : begin + ROWS_AT_ONCE]))
            self._table.change(lambda t, some=some: t.delete(f"{POS} IN ({some})"))  # type: ignore[misc]
        return stores.dropped(self._storage, record, output, known, rows)

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        """The tag `current` stays where it is: on the last whole generation."""

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: ARG002
        indexing.build(self._table, self._spec, self._indexes)
        self._table.change(lambda t: _tag(t, CURRENT))
        self._table.change(lambda t: _tag(t, f"{plan.recipe[:8]}_{plan.generation}"))

    def count(self, records: Sequence[WindowRecord]) -> int:  # noqa: ARG002
        return int(self._table.ask(lambda t: t.count_rows(f"{JOB} = {quoted(self.plan.job)}")))

    def total(self) -> int:
        return int(self._there().ask(lambda t: t.count_rows()))

    def close(self) -> None:
        self._table.close()

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool = False
    ) -> Sequence[Sequence[Hit]]:
        return reading.search(self._there(), query, limit=limit, where=where, exact=exact)

    def contents(self) -> Sequence[OutputSpec]:
        return self._there().ask(lambda t: reading.specs_of(t.schema))

    def scan(self, batch_rows: int = 1024) -> Iterator[pa.RecordBatch]:
        return reading.scan(self._there(), batch_rows)

    def delete(self, ids: Sequence[str]) -> int:
        return reading.delete(self._there(), ids)

    def remember(self, manifest: str) -> None:
        beside, name = self._beside()
        while not beside.replace_if_match(name, manifest.encode(), etag_of(beside.read(name))):
            pass

    def remembered(self) -> str | None:
        beside, name = self._beside()
        found = beside.read(name) if self._table.exists() else None
        return None if found is None else found.decode()

    def units_there(self) -> Iterator[pa.RecordBatch]:
        return units_in(reading.scan(self._there(), UNITS_AT_ONCE, ("id", "chunk", POS, HASH)))

    def _beside(self) -> tuple[LocalStorage, str]:
        """Where the database keeps what is ours of this table."""
        return LocalStorage(self._table.folder), f"{STATE}/{self._table.table}.json"

    def _there(self) -> Table:
        if not self._table.exists():
            raise SinkError(f"{self._table.name}: no such table", hint="see that the URI is the one it was made by")
        return self._table

    def _check(self, plan: Plan, wanted: pa.Schema) -> None:
        """:raises UsageError: other columns, or another job's."""
        name, found = self._table.name, self._table.ask(lambda t: t.schema)
        flaws = [
            f"column {f.name} is {found.field(f.name).type}, this job needs {f.type}"
            if f.name in found.names
            else f"column {f.name} ({f.type}) is missing"
            for f in wanted
            if f.name not in found.names or found.field(f.name).type != f.type
        ]
        if flaws:
            raise UsageError(f"{name}: {'; '.join(flaws)}", hint="choose a new table with --to: embedctl makes it")
        tag = (reading.manifest_of(found) or {}).get("job")
        if tag is None:
            raise UsageError(
                f"{name}: was not made by embedctl", hint="choose a new table with --to: embedctl makes it"
            )
        if tag != plan.job:
            raise UsageError(f"{name}: holds the vectors of another job ({tag}, this is {plan.job})", hint=_ELSEWHERE)
        if not stores.has_rows(self._storage) and self._table.ask(lambda t: t.count_rows()):
            raise stores.without_ledger(name, self._storage)


def _of_window(key: WindowKey) -> str:
    first = stores.position_number(key, 0)
    return f"{POS} >= {first} AND {POS} < {first + (1 << stores.ROW_BITS)}"


def _tag(table: Any, name: str) -> None:
    (table.tags.update if name in table.tags.list() else table.tags.create)(name, table.version)


def _refuse(spec: JobSpec) -> None:
    refuse(spec)
    if spec.vector_type in ("int8", "uint8", "binary"):
        raise UsageError(
            f"--vector-type: {spec.vector_type} would be misread by LanceDB; it takes float32, float16 or ubinary",
            hint="--vector-type ubinary" if spec.vector_type == "binary" else "--vector-type float16",
        )
    if spec.distance == "manhattan":
        raise UsageError("--distance: LanceDB has no manhattan", hint="--distance euclidean")
    taken = next((name for name in spec.keep if name in (POS, JOB, HASH)), None)
    if taken is not None:
        raise UsageError(f"--keep: {taken!r} is a name the table uses itself")
