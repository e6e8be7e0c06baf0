"""What a job would do (`plan`), and what a destination holds (`status`): JSON-ready, nothing written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from embedctl.encoders.base import Encoder
from embedctl.errors import UnreadableInput, UsageError
from embedctl.events import Listener
from embedctl.job import finalise as ending
from embedctl.job import planning, wiring
from embedctl.job.destination import default_destination, open_existing
from embedctl.ledger import dead, locks
from embedctl.ledger.segments import Ledger
from embedctl.outputs import OutputSpec
from embedctl.plan import Plan
from embedctl.records import Batch, Tokenized
from embedctl.sources.files import STDIN, discover
from embedctl.spec import JobSpec
from embedctl.tokens.pack import make_batches

SPEED_PROBE_S = 2.0
_PACKED = 3
_ROW_BYTES = 500
"""Guesses for what a sample cannot tell: how far a compressed file unpacks, how long a row of CSV is."""
_SPARSE_ENTRIES = 200
_VALUE_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "uint8": 1.0, "binary": 1 / 8, "ubinary": 1 / 8}


def plan(spec: JobSpec, listener: Listener) -> dict[str, Any]:
    """Rows, tokens, truncation, slices, time and output size of the job, from a seeded sample of its rows.

    :raises UsageError: standard input, which cannot be read twice. And all that planning raises.
    """
    if STDIN in spec.inputs:
        raise UsageError("plan cannot look at standard input: it can be read only once", hint="save it to a file first")
    made = planning.draft(spec, discover(spec.inputs, spec.format))
    probe = planning.probe(made.plan)
    texts = probe.texts
    tokenizer = wiring.open_tokenizer(made.folders[0], made.plan.resolved, made.plan.spec)
    whole = np.array(tokenizer.count(texts), dtype=np.int64) + tokenizer.overhead_tokens
    tokenized = tokenizer(texts)
    listener.note(f"measuring speed for {SPEED_PROBE_S:g} s")
    speed = _tokens_per_s(made, tokenized) if texts else 0.0
    rows, exact = _rows(made.plan, probe)
    tokens = float(tokenized.lengths.mean()) if texts else 0.0
    return {
        "version": 1,
        "destination": spec.to or default_destination(spec.inputs),
        "recipe": made.plan.recipe,
        "rows": rows,
        "rows_exact": exact,
        "files": len(made.plan.files),
        "bytes": sum(f.size_bytes for f in made.plan.files),
        "slices": len(made.plan.slices),
        "sampled_rows": len(texts),
        "tokens": {**_lengths(whole), "total": int(tokens * rows)},
        "truncated_share": round(float(tokenized.truncated.mean()), 4) if texts else 0.0,
        "tokens_per_second": round(speed),
        "eta_s": round(tokens * rows / speed, 1) if speed else None,
        "output_bytes": round(rows * sum(_bytes_a_row(output, tokens) for output in made.plan.outputs)),
        "columns": {"text": [*made.plan.text_columns], "id": made.plan.id_column, "keep": [*made.plan.keep]},
        "model": dict(made.plan.model),
        "resolved": dict(made.plan.resolved),
    }


def _bytes_a_row(output: OutputSpec, tokens: float) -> float:
    """Of a row of so many tokens, before compression."""
    if output.kind == "sparse":
        return 8.0 * min(_SPARSE_ENTRIES, output.dim)
    return output.dim * _VALUE_BYTES[output.vector_type] * (tokens if output.kind == "multivector" else 1.0)


def _lengths(tokens: np.ndarray) -> dict[str, float]:
    """Tokens of a text before any cut: mean, median, 95th percentile, most."""
    if not len(tokens):
        return {"mean": 0.0, "p50": 0, "p95": 0, "max": 0}
    p50, p95 = np.percentile(tokens, [50, 95])
    return {"mean": round(float(tokens.mean()), 1), "p50": int(p50), "p95": int(p95), "max": int(tokens.max())}


def _tokens_per_s(made: planning.Draft, tokenized: Tokenized) -> float:
    """Real tokens a second over the sample, for about SPEED_PROBE_S after one warm-up batch."""
    one = made.plan.passes[0]
    encoder = wiring.open_planned_encoder(made.folders[0], made.plan.spec, one.resolved, [o.kind for o in one.outputs])
    try:
        batches = list(make_batches(tokenized, made.plan.resolved["batch_tokens"], padded=encoder.padded))
        _encode(encoder, batches[-1])
        tokens, began = 0, time.monotonic()
        with ThreadPoolExecutor(encoder.lanes) as pool:
            for start in range(0, len(batches), encoder.lanes):
                together = batches[start : start + encoder.lanes]
                list(pool.map(partial(_encode, encoder), together))
                tokens += sum(batch.num_tokens for batch in together)
                if time.monotonic() - began > SPEED_PROBE_S:
                    break
        return tokens / max(time.monotonic() - began, 1e-9)
    finally:
        encoder.close()


def _encode(encoder: Encoder, batch: Batch) -> None:
    with suppress(UnreadableInput):  # the job has a dead letter for each; here only time counts
        encoder.encode(batch)


def _rows(plan: Plan, probe: planning.Probe) -> tuple[int, bool]:
    """Rows that would be embedded, and whether the number is exact or estimated from the sample."""
    counted = ending.planned_rows(plan)
    uncounted = sum(f.size_bytes * (_PACKED if f.compression else 1) for f in plan.files if f.uri not in counted)
    rows, exact = sum(counted.values()), not uncounted
    if uncounted:
        rows += round(uncounted * (probe.line_rows / probe.line_bytes if probe.line_bytes else 1 / _ROW_BYTES))
    if plan.spec["where"] and probe.rows:
        rows, exact = round(rows * len(probe.texts) / probe.rows), False
    if plan.spec["sample"] is not None:
        rows, exact = round(rows * plan.spec["sample"]), False
    if plan.spec["limit"] is not None:
        rows = min(rows, plan.spec["limit"])
    return rows, exact


def status(destination: str, *, state: str | None = None) -> dict[str, Any]:
    """:raises UsageError: no destination of embedctl's there."""
    plan, found = open_existing(JobSpec(to=destination, state=state))
    storage = found.storage
    contents = Ledger(storage).contents
    missing = ending.incomplete_slices(plan, contents)
    records = ending.live_records(contents)
    held = locks.holders(storage)
    rows = ending.totals(contents)
    done = ending.is_finalised(plan, contents)
    return {
        "version": 1,
        "destination": storage.uri,
        "status": "done" if done else "running" if any(h["alive"] for h in held) else "unfinished",
        "generation": plan.generation,
        "recipe": plan.recipe,
        "model": plan.model["name"],
        "windows": len(records),
        "slices": {"done": len(plan.slices) - len(missing), "total": len(plan.slices)},
        "rows": rows.to_json(),
        "units": sum(r.units for r in records),
        "tokens": sum(r.tokens for r in records),
        "truncated": sum(r.truncated for r in records),
        "files": {uri: books.to_json() for uri, books in ending.books_by_file(plan, contents).items()},
        "locks": [{k: h[k] for k in ("host", "pid", "names", "slices", "alive")} for h in held],
    }


def dead_letters(destination: str, *, state: str | None = None) -> Iterator[dict[str, Any]]:
    """The dead letters that stand now, in order: file, position, id, reason."""
    _, found = open_existing(JobSpec(to=destination, state=state))
    storage = found.storage
    records = ending.current_dead(Ledger(storage).contents)
    return (letter for _, letter in dead.letters(storage, [(r.key, r.revision) for r in records]))
