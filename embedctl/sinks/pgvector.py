"""PostgreSQL with pgvector: `postgresql://[USER@]HOST[:PORT]/DB?table=[SCHEMA.]TABLE`.

Enters: windows. Leaves: a row a unit in one table, keyed by `id` (and `chunk`): kept columns in their own types, an
output a column, `_pos`, `_job`, `_hash`. A window is one transaction; its commit is what the ledger follows. Indexes
come after the load. Refused: a table that is not there without `--create`, one of other columns or another job.

Of several rows with one id the first position stands, in whatever order they come: a row is only replaced by one of its
own or an earlier window, and only taken out where it is still its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import pgvector_index as indexing
from embedctl.sinks import pgvector_read as reading
from embedctl.sinks import pgvector_rows as loading
from embedctl.sinks import pgvector_table as tables
from embedctl.sinks import stores
from embedctl.sinks.base import Hit, Reconciled, Stored
from embedctl.sinks.keyed_records import HASH, UNITS_AT_ONCE, check_names, gate_of, refuse, units_in
from embedctl.sinks.pgvector_link import Connection, Link, place_of
from embedctl.sinks.pgvector_table import JOB, OWN, POS, SYSTEM, Found, Layout, named
from embedctl.sinks.store_sink import StoreSink
from embedctl.sinks.stores import WindowRows
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

_ELSEWHERE = "choose another table with --to; one that does not exist is made with --create"


def open_pgvector(target: str, storage: LocalStorage, spec: JobSpec) -> PgvectorSink:
    """:raises UsageError: not such a URI, the client is not installed, or what no table could hold is asked for."""
    return PgvectorSink(Link(place_of(target)), storage, spec)


class PgvectorSink(StoreSink):
    """One table. Connects at the first question."""

    def __init__(self, link: Link, storage: LocalStorage, spec: JobSpec) -> None:
        """:raises UsageError: what no table could hold is asked for."""
        _refuse(spec)
        super().__init__(storage, spec)
        self._link = link
        self._place = link.place
        self._indexes = tuple(map(stores.index_field, spec.index_field))
        self._layout: Layout | None = None
        self._loader: loading.Loader | None = None
        self._known: Found | None = None

    def prepare(self, plan: Plan) -> None:
        check_names(plan)
        layout = tables.layout_of(plan, self._spec.distance)
        indexing.check_fields(self._indexes, layout)
        found = self._link.run(lambda c: self._found_or_made(c, plan, layout))
        oids = self._link.run(_oids)
        self._plan, self._layout, self._known = plan, layout, found
        self._loader = loading.Loader(found.schema, found.table, layout, oids)

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """What the ledger lacks is written again over itself; of what it knows, windows without a row are lost.

        :raises SinkError: rows of no job or another are among ours, or all of ours are gone.
        """
        found = self._all(f"SELECT DISTINCT {JOB}, {POS} >> {stores.ROW_BITS} FROM {{}}", [])
        others = sorted({str(job) for job, _ in found if job != self.plan.job})
        if others:
            raise SinkError(f"{self._place.name}: rows there are not this job's, but of {others[0]}", hint=_ELSEWHERE)
        if not found and any(r.units for r in records):
            raise stores.gone(self._place.name, self._storage, "empty")
        here = {number for _, number in found}
        mine = [r for r in records if r.units and r.key.generation == self.plan.generation]
        lost = [r for r in mine if stores.position_number(r.key, 0) >> stores.ROW_BITS not in here]
        return Reconciled(adopted=(), lost=tuple(lost))

    def stored(self, record: WindowRecord, rows: np.ndarray) -> Stored:
        known = stores.rows_known(self._storage, record)
        return reading.stored(self._link, self._here, self.plan, record, known, rows)

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: ARG002
        indexing.build(self._link, self._here, self._spec.index, self._indexes)

    def count(self, records: Sequence[WindowRecord]) -> int:  # noqa: ARG002
        return self._one(f"SELECT count(*) FROM {{}} WHERE {JOB} = %s", [self.plan.job])

    def total(self) -> int:
        return self._one("SELECT count(*) FROM {}", [])

    def close(self) -> None:
        self._link.close()

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool = False
    ) -> Sequence[Sequence[Hit]]:
        return reading.search(self._link, self._here, query, limit=limit, where=where, exact=exact)

    def contents(self) -> Sequence[OutputSpec]:
        return tables.specs_of(self._here)

    def scan(self, batch_rows: int = 1024) -> Iterator[pa.RecordBatch]:
        return reading.scan(self._link, self._here, batch_rows)

    def delete(self, ids: Sequence[str]) -> int:
        return reading.delete(self._link, self._here, ids)

    def remember(self, manifest: str) -> None:
        here = self._here
        self._link.run(lambda c: tables.keep_text(c, here, manifest))

    def remembered(self) -> str | None:
        found = self._known or self._link.run(lambda c: tables.find(c, self._place))
        return None if found is None else self._link.run(lambda c: tables.kept_text(c, found))

    def units_there(self) -> Iterator[pa.RecordBatch]:
        return units_in(reading.scan(self._link, self._here, UNITS_AT_ONCE, ("id", "chunk", POS, HASH)))

    @property
    def _here(self) -> Found:
        """The table as it was found. :raises SinkError: there is none."""
        if self._known is None:
            self._known = self._link.run(lambda c: tables.find(c, self._place))
            if self._known is None:
                raise SinkError(f"{self._place.name}: no such table", hint="see that the URI is the one it was made by")
        return self._known

    def _found_or_made(self, c: Connection, plan: Plan, layout: Layout) -> Found:
        c.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"embedctl {self._place.table}"])
        tables.need_extension(c, self._place)
        found = tables.find(c, self._place)
        if found is not None:
            tables.check(c, self._place, found, layout)
            self._check_owner(c, plan, found, layout)
        else:
            if stores.has_rows(self._storage):
                raise stores.gone(self._place.name, self._storage, "gone")
            if not self._spec.create:
                raise UsageError(f"{self._place.name}: no such table", hint="make it with --create")
            tables.create(c, self._place, layout, tables.manifest_of(plan, layout, self._place))
            found = tables.find(c, self._place)
        assert found is not None
        return found

    def _check_owner(self, c: Connection, plan: Plan, found: Found, layout: Layout) -> None:
        tag, name = (found.manifest or {}).get("job"), self._place.name
        any_row = f"SELECT EXISTS (SELECT FROM {named(found.schema, found.table).as_string(c)})"
        (holds,) = c.execute(any_row).fetchone()
        if tag is None:
            if holds:
                raise UsageError(f"{name}: holds rows that were not made by embedctl", hint=_ELSEWHERE)
            tables.remember(c, found.schema, found.table, tables.manifest_of(plan, layout, self._place))
        elif tag != plan.job:
            raise UsageError(f"{name}: holds the vectors of another job ({tag}, this is {plan.job})", hint=_ELSEWHERE)
        elif holds and not stores.has_rows(self._storage):
            raise stores.without_ledger(name, self._storage)

    def _put(self, output: WindowOutput, row: np.ndarray) -> None:
        plan, layout, loader, per_s = self.plan, self._layout, self._loader, self._spec.max_points_per_s
        assert layout is not None
        assert loader is not None
        allowed = loading.may_replace(gate_of(plan, output.record.key))
        pieces = lambda: loading.stream(output, plan, layout, row, loader.oids, per_s)  # noqa: E731
        self._link.run(lambda c: loader.load(c, pieces, allowed))

    def _delete(self, key: WindowKey, known: WindowRows, rows: Sequence[int]) -> None:
        if not rows:
            return
        ids = [known.ids[r] for r in rows]
        positions = [stores.position_number(key, known.numbers[r]) for r in rows]
        self._link.run(lambda c: loading.delete_rows(c, self._here, ids, positions))

    def _one(self, statement: str, values: Sequence[object]) -> int:
        return int(self._all(statement, values)[0][0])

    def _all(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        from psycopg import sql

        here = named(self._here.schema, self._here.table)
        return self._link.run(lambda c: c.execute(sql.SQL(statement).format(here), values).fetchall())


def _oids(c: Connection) -> dict[str, int]:
    """Of pgvector's types, which each database numbers its own way."""
    found = c.execute("SELECT typname, oid FROM pg_type WHERE typname IN ('vector', 'halfvec', 'sparsevec')")
    return dict(found.fetchall())


def _refuse(spec: JobSpec) -> None:
    """Before a plan is made."""
    refuse(spec)
    taken = [name for name in spec.keep if name in (*OWN, *SYSTEM)]
    if taken:
        raise UsageError(f"--keep: {taken[0]!r} is a name the table uses itself")
    if spec.vector_type in ("int8", "uint8"):
        raise UsageError(
            f"--vector-type: pgvector has no {spec.vector_type} vectors; it takes float32, float16, binary or ubinary",
            hint="--vector-type float16",
        )
    if spec.quantization is not None:
        raise UsageError("--quantization: pgvector has none of its own", hint="--vector-type float16, or binary")
