"""Qdrant as a destination, whatever engine holds the points: the embedded one, or a server.

Enters: windows. Leaves: a point a unit, its id made of the row's, its payload the row's `id`, what was kept, the
chunk's place, `_job` and `_pos`. Refused: a collection of another shape or job, vector types Qdrant would misread, ids
twice by intent.

Of several rows with one id the first position stands, in whatever order they come: a point is only overwritten by a
row of its own or an earlier window, and a row is only taken out where the point is still its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from embedctl import failpoints
from embedctl.errors import SinkError, UsageError
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.base import Reconciled
from embedctl.sinks.payload import Json, payloads
from embedctl.sinks.qdrant_engine import DATATYPES, JOB, POS, Engine, Making, Points, Shape
from embedctl.sinks.stores import WindowRows
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

DISTANCES = {"cosine": "Cosine", "dot": "Dot", "euclidean": "Euclid", "manhattan": "Manhattan"}
FIELD_KINDS = ("keyword", "integer", "float", "bool", "datetime", "uuid", "text", "geo")
DELETE_POINTS = 1000


class QdrantSink:
    """One collection, opened when first needed."""

    def __init__(self, engine: Engine, storage: LocalStorage, spec: JobSpec) -> None:
        """:raises UsageError: what no collection could hold is asked for."""
        _refuse(spec)
        self._engine, self._storage, self._spec = engine, storage, spec
        self._plan: Plan | None = None
        self._indexes = tuple(_index_field(text) for text in spec.index_field)

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def prepare(self, plan: Plan) -> None:
        wanted = _shape(plan, self._spec)
        found = self._engine.shape()
        if found is None:
            if stores.has_rows(self._storage):
                raise SinkError(
                    f"{self._engine.name}: gone, yet {self._storage.root} says what was written there",
                    hint=f"bring it back, or remove {self._storage.root} to begin anew",
                )
            self._engine.make(self._making(plan, wanted))
        else:
            self._check(plan, wanted, found)
        self._engine.index([(JOB, "keyword"), (POS, "integer"), *self._indexes])
        self._plan = plan

    def write(self, output: WindowOutput) -> WindowRecord:
        plan, key = self.plan, output.record.key
        stores.check_vectors(output, int(plan.model["dim"]))
        rows, row = stores.rows_of(output)
        before = stores.load_rows(self._storage, key, 0)
        if before is not None and before != rows:
            self._remove_stale(key, before, rows)
        stores.save_rows(self._storage, key, 0, rows)
        failpoints.hit("before-part")
        if len(output.ids):
            self._engine.begin()
            self._engine.upsert(self._batches(output, row), stores.position_number(key, 0))
            self._engine.flush()
        failpoints.hit("after-part")
        return output.record

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """A store cannot tell windows: what the ledger lacks is written again over itself.

        :raises SinkError: points of no job or another are among ours, or all of ours are gone.
        """
        others = self._engine.count_others(self.plan.job)
        if others:
            raise SinkError(
                f"{self._engine.name}: {others} points there are not this job's",
                hint="choose another collection with --to, or take them out",
            )
        if sum(r.units for r in records) and not self._engine.count(self.plan.job):
            raise SinkError(
                f"{self._engine.name}: empty, yet {self._storage.root} says what was written there",
                hint=f"bring it back, or remove {self._storage.root} to begin anew",
            )
        return Reconciled(adopted=(), lost=())

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        known = stores.rows_known(self._storage, record)
        return known.ids, known.positions

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        known = stores.rows_known(self._storage, record)
        for begin in range(0, len(rows), DELETE_POINTS):
            self._delete(record.key, known, rows[begin : begin + DELETE_POINTS])
        self._engine.flush()
        stores.save_rows(self._storage, output.key, output.revision, known.without(rows))
        return replace(output, units=record.units - sum(known.units[r] for r in rows))

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        """Readers of a collection see each point as it comes."""

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: ARG002
        self._engine.build()

    def count(self, records: Sequence[WindowRecord]) -> int:  # noqa: ARG002
        return self._engine.count(self.plan.job)

    def close(self) -> None:
        self._engine.close()

    def _making(self, plan: Plan, shape: Shape) -> Making:
        return Making(
            shape=shape,
            job=plan.job,
            create=self._spec.create,
            quantization=self._spec.quantization,
            threads=int(plan.resolved["threads"]),
        )

    def _check(self, plan: Plan, wanted: Shape, found: Shape) -> None:
        tag = self._engine.tag()
        if tag == plan.job and self._spec.distance is None:
            wanted = replace(wanted, distance=found.distance)  # chosen when it was made
        for what in ("size", "distance", "datatype"):
            has, needs = getattr(found, what), getattr(wanted, what)
            if has != needs:
                raise UsageError(
                    f"{self._engine.name}: vector {what} {has}, this job needs {needs}",
                    hint="choose another collection with --to; one that does not exist is made with --create",
                )
        if tag is None:
            points = self._engine.count(None)
            if points:
                raise UsageError(
                    f"{self._engine.name}: {points} points there were not made by embedctl",
                    hint="choose another collection with --to; one that does not exist is made with --create",
                )
            self._engine.set_tag(plan.job)
        elif tag != plan.job:
            raise UsageError(
                f"{self._engine.name}: holds the vectors of another job ({tag}, this is {plan.job})",
                hint="choose another collection with --to, or delete it",
            )
        elif not stores.has_rows(self._storage) and self._engine.count(plan.job):
            raise UsageError(
                f"{self._engine.name}: holds vectors of this job, but its ledger is not in {self._storage.root}",
                hint="name the folder of its ledger with --state, choose another collection with --to, or delete it",
            )

    def _batches(self, output: WindowOutput, row: np.ndarray) -> Iterator[Points]:
        began, sent, rate = time.monotonic(), 0, self._spec.max_points_per_s
        for begin, end in _spans(output, self._engine.max_points, self._engine.max_bytes):
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            yield self._points(output, row, begin, end)
            sent += end - begin

    def _points(self, output: WindowOutput, row: np.ndarray, begin: int, end: int) -> Points:
        plan, key = self.plan, output.record.key
        ids = output.ids[begin:end]
        chunks = None if output.chunk is None else np.asarray(output.chunk[begin:end]).tolist()
        numbers = plan.resolved["id_type"] == "int64"
        first = stores.position_number(key, 0)
        rest = _columns(output, plan, begin, end)
        out: list[dict[str, Json]] = []
        for i, kept in enumerate(payloads(output.kept.slice(begin, end - begin))):
            payload: dict[str, Json] = {"id": int(ids[i]) if numbers else ids[i], **kept}
            payload |= {name: values[i] for name, values in rest}
            out.append({**payload, JOB: plan.job, POS: first + int(row[begin + i])})
        names = [stores.point_id(d, None if chunks is None else chunks[i]) for i, d in enumerate(ids)]
        return Points(ids=names, vectors=output.vectors[begin:end], payloads=out)

    def _remove_stale(self, key: WindowKey, before: WindowRows, now: WindowRows) -> None:
        """An unfinished try wrote rows that this one does not."""
        here = set(now.ids)
        self._delete(key, before, [r for r, id in enumerate(before.ids) if id not in here])
        self._engine.flush()

    def _delete(self, key: WindowKey, known: WindowRows, rows: Sequence[int]) -> None:
        if rows:
            ids = list(known.points(rows, chunked=self.plan.chunked))
            self._engine.delete(ids, [stores.position_number(key, known.numbers[r]) for r in rows])


def _columns(output: WindowOutput, plan: Plan, begin: int, end: int) -> list[tuple[str, list[Json]]]:
    """What stands beside the kept columns, as in a part of Parquet."""
    found: list[tuple[str, np.ndarray | None]] = [
        ("chunk", output.chunk), ("char_start", output.char_start), ("char_end", output.char_end),
        ("token_count", output.token_count if plan.spec["token_count"] else None),
        ("truncated", output.truncated if plan.spec["truncated"] else None),
    ]  # fmt: skip
    return [(name, np.asarray(values[begin:end]).tolist()) for name, values in found if values is not None]


def _spans(output: WindowOutput, max_points: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Stretches of at most `max_points` units and, where one unit allows it, about `max_bytes`, in order."""
    todo = [(0, len(output.ids))]
    while todo:
        begin, end = todo.pop()
        size = output.vectors[begin:end].nbytes + output.kept.slice(begin, end - begin).nbytes
        if end - begin > max_points or (size > max_bytes and end - begin > 1):
            step = max_points if end - begin > max_points else (end - begin + 1) // 2
            todo += [(begin + step, end), (begin, begin + step)]
        elif end > begin:
            yield begin, end


def _refuse(spec: JobSpec) -> None:
    """Before a plan is made. :raises UsageError: what no collection could hold as asked."""
    kind = spec.vector_type
    if kind not in DATATYPES:
        raise UsageError(
            f"--vector-type: {kind} would be misread by Qdrant; it takes {' or '.join(DATATYPES)}",
            hint="--quantization scalar, or binary, makes vectors small there",
        )
    if spec.on_duplicate == "keep":
        raise UsageError("--on-duplicate: keep needs a folder of Parquet; a store holds one point an id")
    taken = [name for name in spec.keep if name in (JOB, POS)]
    if taken:
        raise UsageError(f"--keep: {taken[0]!r} is a name the payload uses itself")
    if spec.window_rows > stores.MAX_ROWS:
        raise UsageError(f"--window-rows: a store takes at most {stores.MAX_ROWS}")


def _shape(plan: Plan, spec: JobSpec) -> Shape:
    distance = DISTANCES.get(spec.distance or str(plan.model["similarity"]))
    if distance is None:
        raise UsageError(
            f"the model's similarity {plan.model['similarity']!r} is none that Qdrant has", hint="--distance cosine"
        )
    return Shape(size=int(plan.model["dim"]), distance=distance, datatype=str(plan.spec["vector_type"]))


def _index_field(text: str) -> tuple[str, str]:
    name, _, kind = text.rpartition(":")
    if not name or kind not in FIELD_KINDS:
        raise UsageError(
            f"--index-field: {text!r} is not NAME:KIND with a kind of {', '.join(FIELD_KINDS)}",
            hint="--index-field lang:keyword",
        )
    return name, kind
