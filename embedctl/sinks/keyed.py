"""A store that keeps one record under each key, whatever store it is: what the sink promises, told once.

Enters: windows. Leaves: a record a unit: its key made of the row's id, the row's `id`, what was kept, the chunk's
place, its outputs, `_job`, `_pos` and, where rows have ids of their own, `_hash`. Refused: a collection of another
shape or job, ids kept twice, kept columns with our names.

Of several rows with one id the first position stands, in whatever order they come: a record is only overwritten by a
row of its own or an earlier window (or, in a sync, of a later generation), and a row is only taken out where the record
is still its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec, Values, take
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import qdrant_manifest as manifests
from embedctl.sinks import stores
from embedctl.sinks.base import Hit, Reconciled, Stored
from embedctl.sinks.keyed_records import (
    Engine,
    Records,
    check_names,
    chunks_of,
    fields_of,
    gate_of,
    refuse,
    spans,
    units_in,
)
from embedctl.sinks.store_sink import StoreSink
from embedctl.sinks.stored import in_order, stored_of
from embedctl.sinks.stores import PointId, WindowRows
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

AT_ONCE = 1000
"""Keys of one deletion or look-up."""
CHUNKS_AT_ONCE = 64


class KeyedSink(StoreSink):
    """One collection, opened when first needed."""

    def __init__(self, engine: Engine, storage: LocalStorage, spec: JobSpec) -> None:
        """:raises UsageError: what no collection could hold is asked for."""
        refuse(spec)
        super().__init__(storage, spec)
        self._engine = engine

    def prepare(self, plan: Plan) -> None:
        check_names(plan)
        if self._engine.exists():
            self._engine.check(plan)
            self._check_owner(plan)
        else:
            if stores.has_rows(self._storage):
                raise stores.gone(self._engine.name, self._storage, "gone")
            self._engine.make(plan)
        self._plan = plan

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """See `StoreSink`: a window is lost where one of its rows has no record."""
        others = self._engine.count_others(self.plan.job)
        told = f"{others} records" if others else None
        return self._reconciled(self._engine.name, records, told, lambda: self._engine.count(self.plan.job), self._lost)

    def stored(self, record: WindowRecord, rows: np.ndarray) -> Stored:
        known = stores.rows_known(self._storage, record)
        wanted = self._keys(known, rows.tolist())
        found = [self._engine.fetch(some) for some in _parts(wanted)]
        table = pa.concat_tables([pa.table(batch) for _, batch in found], promote_options="permissive")
        columns = in_order(table, [k for keys, _ in found for k in keys], wanted, self._engine.name, record)
        return stored_of(known, rows, columns, self.plan)

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: ARG002
        self._engine.build()

    def count(self, records: Sequence[WindowRecord]) -> int:  # noqa: ARG002
        return self._engine.count(self.plan.job)

    def close(self) -> None:
        self._engine.close()

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool = False
    ) -> Sequence[Sequence[Hit]]:
        return self._engine.search(query, limit=limit, where=where, exact=exact)

    def contents(self) -> Sequence[OutputSpec]:
        return self._engine.contents()

    def scan(self, batch_rows: int = 1024) -> Iterator[pa.RecordBatch]:
        return self._engine.scan(batch_rows)

    def delete(self, ids: Sequence[str]) -> int:
        """Documents and all their chunks. These have numbers without gaps, and are looked up until one is missing."""
        gone = 0
        for begin in range(0, len(ids), AT_ONCE):
            todo = list(dict.fromkeys(ids[begin : begin + AT_ONCE]))
            gone += self._engine.delete([self._engine.key(id, None) for id in todo], None)
            first, width = 0, 1
            while todo:
                todo, found = self._chunks(todo, range(first, first + width))
                gone += sum(self._engine.delete(some, None) for some in _parts(found))
                first, width = first + width, CHUNKS_AT_ONCE
        self._engine.flush()
        return gone

    def remember(self, manifest: str) -> None:
        self._engine.note(manifests.packed(manifest)[manifests.MANIFEST])

    def remembered(self) -> str | None:
        noted = self._engine.noted() if self._engine.exists() else None
        return manifests.unpacked({manifests.MANIFEST: noted}, self._engine.name)

    def units_there(self) -> Iterator[pa.RecordBatch]:
        return units_in(self.scan())

    def total(self) -> int:
        return self._engine.count(None)

    def _chunks(self, ids: Sequence[str], numbers: range) -> tuple[list[str], list[PointId]]:
        """Ids that may have chunks past `numbers`, and the keys of those within that are there."""
        keys = {id: [self._engine.key(id, n) for n in numbers] for id in ids}
        flat = [key for some in keys.values() for key in some]
        there = set().union(*(self._engine.present(some) for some in _parts(flat)))
        return [id for id, some in keys.items() if some[-1] in there], [key for key in flat if key in there]

    def _check_owner(self, plan: Plan) -> None:
        name, tag = self._engine.name, self._engine.tag()
        elsewhere = "choose another destination with --to"
        if tag is None:
            records = self._engine.count(None)
            if records:
                raise UsageError(f"{name}: {records} records there were not made by embedctl", hint=elsewhere)
            self._engine.set_tag(plan.job)
        elif tag != plan.job:
            raise UsageError(
                f"{name}: holds the vectors of another job ({tag}, this is {plan.job})",
                hint=f"{elsewhere}, or delete it",
            )
        elif not stores.has_rows(self._storage) and self._engine.count(plan.job):
            raise stores.without_ledger(name, self._storage)

    def _put(self, output: WindowOutput, row: np.ndarray) -> None:
        self._engine.begin()
        self._engine.upsert(self._batches(output, row), gate_of(self.plan, output.record.key))
        self._engine.flush()

    def _batches(self, output: WindowOutput, row: np.ndarray) -> Iterator[Records]:
        keys = [self._engine.key(id, c) for id, c in zip(output.ids, chunks_of(output), strict=True)]
        first: dict[PointId, int] = {}
        for i, key in enumerate(keys):
            first.setdefault(key, i)
        began, sent, rate = time.monotonic(), 0, self._spec.max_points_per_s
        for begin, end in spans(output, self._engine.max_records, self._engine.max_bytes):
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            chosen = np.array([i for i in range(begin, end) if first[keys[i]] == i], dtype=np.int64)
            yield Records(
                keys=[keys[i] for i in chosen.tolist()],
                fields=fields_of(output, self.plan, row, chosen),
                outputs={name: take(values, chosen) for name, values in output.outputs.items()},
            )
            sent += end - begin

    def _lost(self, records: Sequence[WindowRecord]) -> Iterator[WindowRecord]:
        """Windows of which a key has no record, of whatever row."""
        for record in records:
            first = stores.position_number(record.key, 0)
            if self._engine.count(self.plan.job, (first, first + (1 << stores.ROW_BITS))) < record.units:
                known = stores.rows_known(self._storage, record)
                keys = list(dict.fromkeys(self._keys(known, range(len(known.ids)))))
                if any(len(self._engine.present(some)) < len(some) for some in _parts(keys)):
                    yield record

    def _keys(self, known: WindowRows, rows: Sequence[int]) -> list[PointId]:
        """Keys of all records of these rows."""
        chunked = self.plan.chunked
        return [self._engine.key(known.ids[r], n if chunked else None) for r in rows for n in range(known.units[r])]

    def _delete(self, key: WindowKey, known: WindowRows, rows: Sequence[int]) -> None:
        for begin in range(0, len(rows), AT_ONCE):
            some = rows[begin : begin + AT_ONCE]
            positions = [stores.position_number(key, known.numbers[r]) for r in some]
            for part in _parts(self._keys(known, some)):
                self._engine.delete(part, positions)
        if rows:
            self._engine.flush()


def _parts(keys: Sequence[PointId]) -> Iterator[Sequence[PointId]]:
    for begin in range(0, len(keys), AT_ONCE):
        yield keys[begin : begin + AT_ONCE]
