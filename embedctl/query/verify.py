"""`verify`: reads a destination back and holds it to its plan, its books, and the model itself.

Enters: a destination. Leaves: a report of checks, each ok, not ok, or not checked with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from embedctl.errors import EmbedctlError
from embedctl.events import Listener
from embedctl.job import adopt
from embedctl.job import finalise as ending
from embedctl.job.destination import open_existing
from embedctl.ledger.segments import Ledger
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.query.again import embedded_again
from embedctl.query.checks import Check, books, finished, ids, of_store, report
from embedctl.records import WindowRecord
from embedctl.sinks.columns import values_of
from embedctl.sinks.parquet import ParquetSink
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

NORM_TOLERANCE = {"float32": 1e-4, "float16": 2e-3}


def verify(destination: str, *, sample: int = 64, state: str | None = None, listener: Listener) -> dict[str, Any]:
    """JSON-ready: `ok` is false when any check failed, `checks` lists them in order.

    :raises UsageError: no destination of embedctl's there.
    """
    plan, found = open_existing(JobSpec(to=destination, state=state))
    storage = found.storage
    contents = Ledger(storage).contents
    adopt.refuse_damaged(storage, plan, contents)
    done = ending.is_finalised(plan, contents)
    sink, checks = found.sink, [finished(plan, done)]
    if not isinstance(sink, ParquetSink):
        return report(storage, checks + of_store(plan, storage, sink, ending.live_records(contents)))
    sink.prepare(plan)
    records = [r for r in ending.live_records(contents) if r.part]
    parts = _parts(sink, records, done=done)
    checks += [parts, books(plan, storage, sink)]
    if parts.ok:
        listener.note(f"reading {len(records)} parts")
        checks += [
            ids(plan, storage, sink, records),
            _vectors(plan, storage, records),
            _recipe(plan, storage, records),
        ]
        listener.note(f"embedding up to {sample} rows again, one by one in float32")
        twice = ending.totals(contents).duplicates > 0 or adopt.is_rebuilt(plan, contents)
        checks.append(embedded_again(plan, storage, records, sample, twice=twice))
    return report(storage, checks)


def _parts(sink: ParquetSink, records: Sequence[WindowRecord], *, done: bool) -> Check:
    try:
        reconciled = sink.reconcile(records)
        sink.count([r for r in records if r not in reconciled.lost])
    except EmbedctlError as exc:
        return Check(name="parts", ok=False, detail=str(exc))
    if reconciled.lost:
        names = ", ".join(str(r.part) for r in reconciled.lost[:3])
        return Check(name="parts", ok=False, detail=f"{len(reconciled.lost)} parts of the ledger are gone: {names}")
    if done and (past := sink.superseded(records)):
        detail = (
            f"{len(past)} superseded parts stand beside the others: {', '.join(past[:3])}; run the same command again"
        )
        return Check(name="parts", ok=False, detail=detail)
    return Check(name="parts", ok=True, detail=f"{len(records)} parts, all readable, none foreign")


def _vectors(plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord]) -> Check:
    """Every value of every output: none with NaN, Inf or zero, and of length 1 where the model says so."""
    ok, told = True, []
    for one in plan.passes:
        for output in one.outputs:
            seen = _Seen(normalised=bool(one.model["normalised"]) and output.kind == "dense", spec=output)
            for values, bad in _read(storage, records, output):
                seen.add(values, bad)
            ok = ok and seen.ok()
            told.append(f"{output.name}: {seen.told()}" if len(plan.outputs) > 1 else seen.told())
    return Check(name="vectors", ok=ok, detail="; ".join(told))


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What one output's values were like."""

    spec: OutputSpec
    normalised: bool
    count: int = 0
    bad: int = 0
    low: float = np.inf
    high: float = 0.0

    def add(self, values: Values, bad: int) -> None:
        self.count += len(values)
        self.bad += bad
        if isinstance(values, np.ndarray) and self.spec.vector_type in NORM_TOLERANCE and self.spec.kind == "dense":
            norms = np.linalg.norm(values.astype(np.float32), axis=1)
            self.low = min(self.low, float(norms.min(initial=np.inf)))
            self.high = max(self.high, float(norms.max(initial=0)))

    def ok(self) -> bool:
        off = max(abs(self.low - 1), abs(self.high - 1)) if self.high else 0.0
        return not self.bad and not (self.normalised and off > NORM_TOLERANCE.get(self.spec.vector_type, np.inf))

    def told(self) -> str:
        what = "vectors" if self.spec.kind == "dense" else f"{self.spec.kind} values"
        if not self.high:
            return f"{self.count} {what} of {self.spec.vector_type}, {self.bad or 'none'} bad"
        norms = f"norms {self.low:.4f} to {self.high:.4f}"
        return f"{self.count} {what}, {norms}, {self.bad or 'none'} with NaN, Inf or zero"


def _read(storage: LocalStorage, records: Sequence[WindowRecord], output: OutputSpec) -> Iterator[tuple[Values, int]]:
    """Values in bounded pieces, and how many of them are bad."""
    for record in records:
        file = pq.ParquetFile(storage.root / (record.part or ""))
        for batch in file.iter_batches(columns=[output.name], batch_size=8192):
            values, reasons = values_of(batch.column(0), output)
            yield values, len(reasons)


def _recipe(plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord]) -> Check:
    """Every part says what made it; `_parts` has already refused parts of another job."""
    other = {r.part for r in records if f'"{plan.recipe}"'.encode() not in _model_card(storage, r)}
    return Check(name="recipe", ok=not other, detail=f"{len(other)} parts of another recipe" if other else plan.recipe)


def _model_card(storage: LocalStorage, record: WindowRecord) -> bytes:
    card: bytes = (pq.read_metadata(storage.root / (record.part or "")).metadata or {}).get(b"embedctl.model", b"")
    return card
