"""Qdrant as a destination, whatever engine holds the points: the embedded one, or a server.

Enters: windows. Leaves: points (see `qdrant_points`), and what is asked of them. Refused: a collection of another shape
or job, outputs Qdrant would misread, ids twice by intent.

Of several rows with one id the first position stands, in whatever order they come: a point is only overwritten by a row
of its own or an earlier window (or, in a sync, of a later generation), and a row is only taken out where the point is
still its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from embedctl import plan as plans
from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import qdrant_manifest as manifests
from embedctl.sinks import qdrant_read as reading
from embedctl.sinks import stores
from embedctl.sinks.base import Hit, Reconciled, Stored
from embedctl.sinks.keyed_records import Gate, gate_of
from embedctl.sinks.qdrant_engine import JOB, POS, Engine, Layout, Making, Points
from embedctl.sinks.qdrant_layout import FIELD_KINDS, check_layout, layout_of, refuse
from embedctl.sinks.qdrant_points import batches
from embedctl.sinks.qdrant_where import Filter
from embedctl.sinks.store_sink import StoreSink
from embedctl.sinks.stores import PointId, WindowRows
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

DELETE_POINTS = 1000


class QdrantSink(StoreSink):
    """One collection, opened when first needed."""

    def __init__(self, engine: Engine, storage: LocalStorage, spec: JobSpec) -> None:
        """:raises UsageError: what no collection could hold is asked for."""
        refuse(spec)
        super().__init__(storage, spec)
        self._engine = engine
        self._layout: Layout = {}
        self._indexes = tuple(stores.index_field(text, FIELD_KINDS) for text in spec.index_field)

    def prepare(self, plan: Plan) -> None:
        wanted = layout_of(plan.outputs, self._spec)
        found = self._engine.layout()
        if found is None:
            if stores.has_rows(self._storage):
                raise stores.gone(self._engine.name, self._storage, "gone")
            self._engine.make(self._making(plan, wanted))
        else:
            self._check(plan, wanted, found)
        self._engine.index([(JOB, "keyword"), (POS, "integer"), *self._indexes])
        self._plan, self._layout = plan, found or wanted

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """See `StoreSink`: a window is lost where one of its rows has no point."""
        others = self._engine.count({"must_not": [_is_job(self.plan.job)]})
        told = f"{others} points" if others else None
        return self._reconciled(self._engine.name, records, told, self._ours, self._lost)

    def stored(self, record: WindowRecord, rows: np.ndarray) -> Stored:
        return reading.stored(self._engine, self.plan, record, stores.rows_known(self._storage, record), rows)

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: ARG002
        self._engine.build()

    def count(self, records: Sequence[WindowRecord]) -> int:  # noqa: ARG002
        return self._ours()

    def close(self) -> None:
        self._engine.close()

    def total(self) -> int:
        return self._engine.count()

    def remember(self, manifest: str) -> None:
        self._engine.annotate(manifests.packed(manifest))

    def remembered(self) -> str | None:
        if self._engine.layout() is None:
            return None
        return manifests.unpacked(self._engine.metadata(), self._engine.name)

    def units_there(self) -> Iterator[pa.RecordBatch]:
        return reading.units(self._engine)

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool = False
    ) -> Sequence[Sequence[Hit]]:
        return reading.search(self._engine, self._known_plan(), query, limit=limit, where=where, exact=exact)

    def contents(self) -> Sequence[OutputSpec]:
        return reading.contents(self._engine, self._known_plan())

    def scan(self, batch_rows: int = 1024) -> Iterator[pa.RecordBatch]:
        return reading.scan(self._engine, self._known_plan(), batch_rows)

    def delete(self, ids: Sequence[str]) -> int:
        plan, gone = self._known_plan(), 0
        if plan is None or plan.chunked:
            self._engine.index([("id", "integer" if plan and plan.resolved["id_type"] == "int64" else "keyword")])
        for begin in range(0, len(ids), DELETE_POINTS):
            where = reading.points_of_rows(plan, ids[begin : begin + DELETE_POINTS])
            found = self._engine.count(where)
            if found:
                self._engine.delete(where)
            gone += found
        self._engine.flush()
        return gone

    def _lost(self, records: Sequence[WindowRecord]) -> Iterator[WindowRecord]:
        """Of the plan's own generation only: no run can do another's again, and a sync takes rows out of those."""
        for record in (r for r in records if r.key.generation == self.plan.generation):
            known = stores.rows_known(self._storage, record)
            first = stores.position_number(record.key, 0)
            own = {"key": POS, "range": {"gte": float(first), "lt": float(first + (1 << stores.ROW_BITS))}}
            if self._engine.count({"must": [_is_job(self.plan.job), own]}) == record.units:
                continue
            ids = sorted({*known.points(range(len(known.ids)), chunked=self.plan.chunked)}, key=str)
            parts = [ids[i : i + DELETE_POINTS] for i in range(0, len(ids), DELETE_POINTS)]
            if sum(self._engine.count({"must": [{"has_id": part}]}) for part in parts) < len(ids):
                yield record

    def _known_plan(self) -> Plan | None:
        return self._plan or plans.load(self._storage)

    def _ours(self) -> int:
        return self._engine.count({"must": [_is_job(self.plan.job)]})

    def _making(self, plan: Plan, layout: Layout) -> Making:
        return Making(
            layout=layout,
            metadata=manifests.of(plan, self._storage),
            create=self._spec.create,
            on_disk=self._spec.on_disk,
            shards=self._spec.shards,
            threads=int(plan.resolved.get("threads") or 0),
        )

    def _check(self, plan: Plan, wanted: Layout, found: Layout) -> None:
        told = self._engine.metadata()
        tag = manifests.job(told)
        check_layout(self._engine.name, found, wanted, ours=tag == plan.job, spec=self._spec)
        if tag is None:
            points = self._engine.count()
            if points:
                raise UsageError(
                    f"{self._engine.name}: {points} points there were not made by embedctl",
                    hint="choose another collection with --to; one that does not exist is made with --create",
                )
        elif tag != plan.job and self._engine.count():
            raise UsageError(
                f"{self._engine.name}: holds the vectors of another job ({tag}, this is {plan.job})",
                hint="choose another collection with --to, or delete it",
            )
        elif (
            tag == plan.job and not stores.has_rows(self._storage) and self._engine.count({"must": [_is_job(plan.job)]})
        ):
            raise stores.without_ledger(self._engine.name, self._storage)
        if tag != plan.job:  # there is no point in it yet
            self._engine.annotate(manifests.of(plan, self._storage))

    def _batches(self, output: WindowOutput, row: np.ndarray) -> Iterator[Points]:
        began, sent, rate = time.monotonic(), 0, self._spec.max_points_per_s
        most = self._engine.max_points, self._engine.max_bytes
        for batch in batches(output, row, self.plan, self._layout, max_points=most[0], max_bytes=most[1]):
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            yield batch
            sent += len(batch.ids)

    def _put(self, output: WindowOutput, row: np.ndarray) -> None:
        self._engine.begin()
        self._engine.upsert(self._batches(output, row), _overwritable(gate_of(self.plan, output.record.key)))
        self._engine.flush()

    def _delete(self, key: WindowKey, known: WindowRows, rows: Sequence[int]) -> None:
        for begin in range(0, len(rows), DELETE_POINTS):
            some = rows[begin : begin + DELETE_POINTS]
            ids: list[PointId] = list(known.points(some, chunked=self.plan.chunked))
            own = [stores.position_number(key, known.numbers[r]) for r in some]
            self._engine.delete({"must": [{"has_id": ids}, {"key": POS, "match": {"any": own}}]})
        if rows:
            self._engine.flush()


def _overwritable(gate: Gate) -> Filter:
    """The gate as a condition on the point that is there."""
    same = {"key": POS, "range": {"gte": float(gate.own)}}
    return {"should": [same, {"key": POS, "range": {"lt": float(gate.old)}}]} if gate.old else {"must": [same]}


def _is_job(job: str) -> Filter:
    return {"key": JOB, "match": {"value": job}}
