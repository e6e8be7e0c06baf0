"""`verify`: reads a destination back and holds it to its plan, its books, and the model itself.

Enters: a destination. Leaves: a report of checks, each ok, not ok, or not checked with the reason. A random sample of
rows is read from the source again and embedded one sequence at a time in float32, the plainest way there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl.encoders.base import Encoder
from embedctl.errors import EmbedctlError, SourceError, UsageError
from embedctl.events import Listener
from embedctl.job import finalise as ending
from embedctl.job import planning, wiring
from embedctl.job.destination import open_existing
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.query.checks import Check, books, finished, ids, of_store, report
from embedctl.records import Batch, Units, Window, WindowRecord
from embedctl.sinks.parquet import ParquetSink
from embedctl.sources.files import STDIN
from embedctl.spec import JobSpec
from embedctl.stages.prepare import Prepared, prepare
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage

MAX_WINDOWS = 8
MIN_COSINE = {"float32": 1 - 1e-6, "bfloat16": 0.9995, "float16": 0.9995}
STORED_COSINE = {"float32": 1.0, "float16": 1 - 1e-5, "int8": 0.99, "uint8": 0.99}
MIN_EQUAL_BITS = 0.97
NORM_TOLERANCE = {"float32": 1e-4, "float16": 2e-3}


def verify(destination: str, *, sample: int = 64, state: str | None = None, listener: Listener) -> dict[str, Any]:
    """JSON-ready: `ok` is false when any check failed, `checks` lists them in order.

    :raises UsageError: no destination of embedctl's there.
    """
    plan, found = open_existing(JobSpec(to=destination, state=state))
    storage = found.storage
    contents = Ledger(storage).contents
    sink, checks = found.sink, [finished(plan, ending.is_finalised(plan, contents))]
    if not isinstance(sink, ParquetSink):
        return report(storage, checks + of_store(plan, storage, sink, ending.live_records(contents)))
    sink.prepare(plan)
    records = [r for r in ending.live_records(contents) if r.part]
    parts = _parts(sink, records)
    checks += [parts, books(plan, storage, sink)]
    if parts.ok:
        listener.note(f"reading {len(records)} parts")
        checks += [
            ids(plan, storage, sink, records),
            _vectors(plan, storage, records),
            _recipe(plan, storage, records),
        ]
        listener.note(f"embedding {sample} rows again, one by one in float32")
        checks.append(_sample(plan, storage, records, sample))
    return report(storage, checks)


def _parts(sink: ParquetSink, records: Sequence[WindowRecord]) -> Check:
    try:
        reconciled = sink.reconcile(records)
        sink.count([r for r in records if r not in reconciled.lost])
    except EmbedctlError as exc:
        return Check(name="parts", ok=False, detail=str(exc))
    if reconciled.lost:
        names = ", ".join(str(r.part) for r in reconciled.lost[:3])
        return Check(name="parts", ok=False, detail=f"{len(reconciled.lost)} parts of the ledger are gone: {names}")
    return Check(name="parts", ok=True, detail=f"{len(records)} parts, all readable, none foreign")


def _vectors(plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord]) -> Check:
    kind, bad, seen = plan.spec["vector_type"], 0, 0
    low, high = np.inf, 0.0
    for vectors in _read_vectors(storage, records):
        seen += len(vectors)
        if kind not in NORM_TOLERANCE:
            continue
        wide = vectors.astype(np.float32)
        norms = np.linalg.norm(wide, axis=1)
        bad += int((~np.isfinite(norms) | (norms == 0)).sum())
        low, high = min(low, float(norms.min(initial=np.inf))), max(high, float(norms.max(initial=0)))
    if kind not in NORM_TOLERANCE or not seen:
        return Check(name="vectors", ok=True, detail=f"{seen} vectors of {kind}")
    off = plan.model["normalised"] and max(abs(low - 1), abs(high - 1)) > NORM_TOLERANCE[kind]
    detail = f"{seen} vectors, norms {low:.4f} to {high:.4f}, {bad or 'none'} with NaN, Inf or zero"
    return Check(name="vectors", ok=not bad and not off, detail=detail)


def _read_vectors(storage: LocalStorage, records: Sequence[WindowRecord]) -> Iterator[np.ndarray]:
    for record in records:
        file = pq.ParquetFile(storage.root / (record.part or ""))
        for batch in file.iter_batches(columns=["embedding"], batch_size=8192):
            yield as_matrix(batch.column(0))


def as_matrix(column: pa.Array[Any]) -> np.ndarray:
    """FixedSizeList<C> of n rows to an (n, C) view."""
    assert isinstance(column, pa.FixedSizeListArray)
    flat: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1)


def _recipe(plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord]) -> Check:
    """Every part says what made it; `_parts` has already refused parts of another job."""
    other = {r.part for r in records if f'"{plan.recipe}"'.encode() not in _model_card(storage, r)}
    return Check(name="recipe", ok=not other, detail=f"{len(other)} parts of another recipe" if other else plan.recipe)


def _model_card(storage: LocalStorage, record: WindowRecord) -> bytes:
    card: bytes = (pq.read_metadata(storage.root / (record.part or "")).metadata or {}).get(b"embedctl.model", b"")
    return card


def _sample(plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord], sample: int) -> Check:
    if any(f.path == STDIN for f in plan.files):
        return Check(name="sample", ok=None, detail="not checked: standard input is gone")
    full = [r for r in records if r.units and r.key.generation == 1]
    if not full or not sample:
        return Check(name="sample", ok=None, detail="not checked: nothing to compare")
    chance = np.random.default_rng()
    chosen = [full[i] for i in sorted(chance.choice(len(full), min(MAX_WINDOWS, len(full)), replace=False))]
    try:
        folder = planning.open_model(_spec(plan))
        tokenizer = wiring.open_tokenizer(folder, plan.resolved, plan.spec)
        reference = wiring.open_planned_encoder(
            folder, plan.spec, {**plan.resolved, "dtype": "float32", "compile": False}
        )
        rules = wiring.text_rules(plan, tokenizer, padded=True)
        worst, seen = np.inf, 0
        for record in chosen:
            ready = prepare(_window_again(plan, record, records), rules, 1)
            stored = _stored(storage, record)
            named = {name: units for name, units in _named(plan, ready).items() if name in stored}
            count = min(-(-sample // len(chosen)), len(named))
            for i in chance.choice(len(named), count, replace=False).tolist():
                name, units = list(named.items())[i]
                worst = min(worst, _likeness(plan, _reference(plan, reference, ready.units, units), stored[name]))
                seen += 1
    except (SourceError, UsageError) as exc:
        return Check(name="sample", ok=None, detail=f"not checked: {exc}")
    least = _least(plan)
    what = "equal bits" if plan.spec["vector_type"] in ("binary", "ubinary") else "cosine"
    detail = f"{seen} rows embedded again: lowest {what} {worst:.7f}, at least {least:.7f} expected"
    return Check(name="sample", ok=bool(worst >= least), detail=detail)


def _spec(plan: Plan) -> JobSpec:
    asked = plan.asked()
    return JobSpec(**asked, inputs=plan.inputs)


def _window_again(plan: Plan, record: WindowRecord, records: Sequence[WindowRecord]) -> Window:
    """Read one committed window from the source again."""
    reader = WindowReader(plan, wiring.row_rules(plan), wiring.blocks_of(plan))
    others = {
        r.key.window: r
        for r in records
        if r.key.slice == record.key.slice and r.key != record.key and r.key.generation == 1
    }
    return next(reader.windows(plan.slices[record.key.slice], others))


def _stored(storage: LocalStorage, record: WindowRecord) -> dict[tuple[str, int], np.ndarray]:
    table = pq.read_table(storage.root / (record.part or ""), partitioning=None)
    chunks: list[Any] = table.column("chunk").to_pylist() if "chunk" in table.column_names else [0] * table.num_rows
    ids: list[Any] = table.column("id").cast(pa.string()).to_pylist()
    vectors = as_matrix(table.column("embedding").combine_chunks())
    return {(i, c): vectors[n] for n, (i, c) in enumerate(zip(ids, chunks, strict=True))}


def _named(plan: Plan, ready: Prepared) -> dict[tuple[str, int], list[int]]:
    """(id, chunk number) -> its units: one, or all of the row's where their vectors are pooled."""
    out: dict[tuple[str, int], list[int]] = {}
    for unit, (row, number) in enumerate(zip(ready.units.document.tolist(), ready.units.number.tolist(), strict=True)):
        out.setdefault((ready.window.ids[row], 0 if plan.spec["chunk_pool"] else number), []).append(unit)
    return out


def _reference(plan: Plan, encoder: Encoder, units: Units, chosen: Sequence[int]) -> np.ndarray:
    """float32 (C,): each unit alone, pooled where the job pools."""
    vectors = np.stack([_alone(encoder, units, unit) for unit in chosen])
    pool = wiring.vector_rules(plan, lambda _: None).pool
    if pool is None:
        only: np.ndarray = vectors[0]
        return only
    lengths = units.tokenized.lengths[units.sequence[list(chosen)]]
    pooled: np.ndarray = pool(vectors, np.zeros(len(chosen), dtype=np.int64), lengths)[0]
    return pooled


def _alone(encoder: Encoder, units: Units, unit: int) -> np.ndarray:
    """One unit, in a batch of its own, in float32."""
    sequence = int(units.sequence[unit])
    begin, end = int(units.tokenized.offsets[sequence]), int(units.tokenized.offsets[sequence + 1])
    batch = Batch(
        input_ids_T=units.tokenized.ids_T[begin:end],
        cu_seqlens=np.array([0, end - begin], dtype=np.int32),
        units=np.zeros(1, dtype=np.int64),
    )
    vector: np.ndarray = encoder.encode_float32(batch)[0]
    return vector


def _likeness(plan: Plan, vector: np.ndarray, stored: np.ndarray) -> float:
    """Cosine of the stored vector with the reference, or the share of equal bits for binary ones."""
    kind = plan.spec["vector_type"]
    rules = wiring.vector_rules(plan, lambda _: _ranges(plan))
    if kind in ("binary", "ubinary"):
        expected = rules.store(vector[None])[0][0]
        differing = np.unpackbits(expected.view(np.uint8) ^ stored.view(np.uint8)).sum()
        return 1.0 - float(differing) / (8 * len(stored))
    values = stored.astype(np.float64)
    if kind in ("int8", "uint8"):
        ranges = _ranges(plan)
        assert ranges is not None
        steps = (ranges[1] - ranges[0]) / 255
        values = (values + (128 if kind == "int8" else 0)) * steps + ranges[0]
    return float(values @ vector / max(np.linalg.norm(values) * np.linalg.norm(vector), 1e-30))


def _ranges(plan: Plan) -> np.ndarray | None:
    return None if plan.int8_ranges is None else np.array(plan.int8_ranges, dtype=np.float32)


def _least(plan: Plan) -> float:
    kind = plan.spec["vector_type"]
    if kind in ("binary", "ubinary"):
        return MIN_EQUAL_BITS
    return min(MIN_COSINE[plan.resolved["dtype"]], STORED_COSINE[kind])
