"""What a keyed store must do for its sink, and what it is given: records, made of windows.

Enters: a window. Leaves: `Records`: keys, fields as JSON-like values, outputs as arrays. Refused: ids kept twice, kept
columns with names of our own.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec, Sparse, Values, take
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput
from embedctl.sinks import payload, stores
from embedctl.sinks.base import Hit
from embedctl.sinks.payload import Json
from embedctl.sinks.stores import PointId
from embedctl.spec import JobSpec

JOB, POS, HASH = "_job", "_pos", "_hash"
UNITS_AT_ONCE = 8192
SPAN = ("chunk", "char_start", "char_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """keys, fields: n of each; `fields` holds all but the outputs. outputs: n values by name, as they are stored."""

    keys: Sequence[PointId]
    fields: Sequence[dict[str, Json]]
    outputs: Mapping[str, Values]

    def without(self, keys: Container[PointId]) -> Records:
        """All but the records of these keys."""
        rows = [i for i, key in enumerate(self.keys) if key not in keys]
        return self if len(rows) == len(self.keys) else self.part(rows)

    def part(self, rows: Sequence[int]) -> Records:
        """Records `rows`, in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        return Records(
            keys=[self.keys[i] for i in rows],
            fields=[self.fields[i] for i in rows],
            outputs={name: take(values, chosen) for name, values in self.outputs.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a record there already may be for another to take its place: of `_pos` at least `own`, or below `old`."""

    own: int
    old: int = 0

    def lets(self, position: int) -> bool:
        return position >= self.own or position < self.old


def gate_of(plan: Plan, key: WindowKey) -> Gate:
    """The window's own records and later ones; in a sync, whose rows replace earlier ones, earlier generations' too."""
    own = stores.position_number(key, 0)
    if plan.generation == 1 or plan.targets is not None:
        return Gate(own=own)
    return Gate(own=own, old=stores.position_number(WindowKey(generation=key.generation, slice=0, window=0), 0))


class Engine(Protocol):
    """One collection. Every method but `close` raises SinkError for what the store refuses or cannot do now."""

    name: str
    """For messages."""
    max_records: int
    max_bytes: int

    def exists(self) -> bool: ...

    def make(self, plan: Plan) -> None:
        """Create the collection, whole or not at all. :raises UsageError: it must be asked for, or cannot hold this."""
        ...

    def check(self, plan: Plan) -> None:
        """:raises UsageError: the collection that is there cannot hold the plan's outputs; what differs is named."""
        ...

    def tag(self) -> str | None:
        """The job that `set_tag` or `make` wrote; None: none."""
        ...

    def set_tag(self, job: str) -> None: ...

    def note(self, text: str) -> None:
        """Keep a text beside the tag, durably, in the place of an earlier one."""
        ...

    def noted(self) -> str | None:
        """None: nothing."""
        ...

    def key(self, id: str, chunk: int | None) -> PointId: ...

    def begin(self) -> None:
        """The load starts: put off what slows it."""
        ...

    def upsert(self, batches: Iterator[Records], gate: Gate) -> None:
        """Applied when this returns. A record there already is overwritten only where the gate lets its `_pos`."""
        ...

    def delete(self, keys: Sequence[PointId], positions: Sequence[int] | None) -> int:
        """Take out the records of these keys, where `_pos` is one of `positions` if given; how many were there."""
        ...

    def present(self, keys: Sequence[PointId]) -> set[PointId]:
        """Those of the keys that have a record."""
        ...

    def fetch(self, keys: Sequence[PointId]) -> tuple[list[PointId], pa.RecordBatch]:
        """Those of the keys that have a record, and all these hold, as `scan` tells it."""
        ...

    def flush(self) -> None:
        """What was applied is durable."""
        ...

    def count(self, job: str | None, span: tuple[int, int] | None = None) -> int:
        """Records of the job, exactly; None: of all. span: only of these `_pos`, the second no longer."""
        ...

    def count_others(self, job: str) -> int:
        """Records that are not the job's, exactly."""
        ...

    def build(self) -> None:
        """The load is over: index what was put off and wait for it."""
        ...

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool
    ) -> Sequence[Sequence[Hit]]: ...

    def contents(self) -> Sequence[OutputSpec]: ...

    def scan(self, batch_rows: int) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None: ...


def refuse(spec: JobSpec) -> None:
    """Before a plan is made. :raises UsageError: what no store with keys could hold as asked."""
    if spec.on_duplicate == "keep":
        raise UsageError("--on-duplicate: keep needs a folder of Parquet; a store holds one record an id")
    if spec.window_rows > stores.MAX_ROWS:
        raise UsageError(f"--window-rows: a store takes at most {stores.MAX_ROWS}")


def extras(plan: Plan) -> list[str]:
    """Fields beside `id`, the kept columns, the outputs, `_job`, `_pos` and `_hash`."""
    counted = [name for name in ("token_count", "truncated") if plan.spec[name]]
    return [*(SPAN if plan.chunked else ()), *counted]


def check_names(plan: Plan) -> None:
    """:raises UsageError: a kept column has a name that the records need for something else."""
    taken = {*extras(plan), JOB, POS, HASH, *(spec.name for spec in plan.outputs)}
    clash = next((name for name in plan.keep if name in taken), None)
    if clash is not None:
        raise UsageError(f"--keep: {clash!r} is a name the store's records use themselves", hint=f"leave {clash} out")


def bits(values: np.ndarray) -> np.ndarray:
    """uint8 (n, C / 8): packed bits, high bit first, of either binary type."""
    packed: np.ndarray = values.view(np.uint8) ^ 0x80 if values.dtype == np.int8 else values
    return packed


def sparse_rows(values: Values) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(indices, values) of each sparse vector."""
    assert isinstance(values, Sparse)
    for begin, end in zip(values.offsets[:-1].tolist(), values.offsets[1:].tolist(), strict=True):
        yield values.indices[begin:end], values.values[begin:end]


def chunks_of(output: WindowOutput) -> Sequence[int | None]:
    """Each unit's number in its row; None without chunking."""
    return [None] * len(output.ids) if output.chunk is None else np.asarray(output.chunk).tolist()


def fields_of(output: WindowOutput, plan: Plan, row: np.ndarray, chosen: np.ndarray) -> list[dict[str, Json]]:
    """All but the outputs of units `chosen`. row: int64 (u,), the row of each unit."""
    ids, rows = [output.ids[unit] for unit in chosen.tolist()], row[chosen]
    every = len(chosen) == len(output.ids)
    kept = output.kept if every or not output.kept.num_columns else output.kept.take(pa.array(chosen))
    columns = payload.columns(kept)
    columns["id"] = [int(id) for id in ids] if plan.resolved["id_type"] == "int64" else ids
    counted = [(name, getattr(output, name)) for name in ("token_count", "truncated") if plan.spec[name]]
    for name, values in [*((name, getattr(output, name)) for name in SPAN), *counted]:
        if values is not None:
            columns[name] = np.asarray(values)[chosen].tolist()
    columns[JOB] = [plan.job] * len(ids)
    columns[POS] = (stores.position_number(output.record.key, 0) + rows).tolist()
    if output.hashes is not None:
        columns[HASH] = stores.hash_words(output.hashes[rows])
    return payload.rows_of(columns)


def spans(output: WindowOutput, max_records: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Stretches of at most `max_records` units and, where one unit allows it, about `max_bytes`, in order."""
    todo = [(0, len(output.ids))]
    while todo:
        begin, end = todo.pop()
        size = sum(_nbytes(v, begin, end) for v in output.outputs.values())
        size += output.kept.slice(begin, end - begin).nbytes
        if end - begin > max_records or (size > max_bytes and end - begin > 1):
            step = max_records if end - begin > max_records else (end - begin + 1) // 2
            todo += [(begin + step, end), (begin, begin + step)]
        elif end > begin:
            yield begin, end


def units_in(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """See `Remembering.units_there`: what of a scan a rebuild of a job's state needs."""
    kinds: dict[str, pa.DataType] = {"id": pa.string(), "chunk": pa.int32(), POS: pa.int64(), HASH: pa.string()}
    for batch in batches:
        has = batch.schema.names
        yield pa.RecordBatch.from_pydict(
            {n: batch.column(n).cast(k) if n in has else pa.array([None] * len(batch), k) for n, k in kinds.items()}
        )


def _nbytes(values: Values, begin: int, end: int) -> int:
    if isinstance(values, np.ndarray):
        return int(values[begin:end].nbytes)
    entries = int(values.offsets[end] - values.offsets[begin])
    return entries * (8 if isinstance(values, Sparse) else int(values.vectors[:1].nbytes))
