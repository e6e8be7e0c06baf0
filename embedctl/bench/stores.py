"""How fast each store takes rows through its sink, beside the bulk rate of its own client in the same run.

Enters: stores by URI, rows. Leaves: rows/s of both, best of some rounds taken in turn, and their ratio, as JSON and as
a table. Vectors are made beforehand, so that only the store and what feeds it is measured; both sides write the same
columns (id, text of 200 characters, a whole number, a word), without an index on vectors, and wait as long for the
disk or the server's answer, window by window. The sinks alone write the marks that resuming and syncing need.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from embedctl import registry
from embedctl.bench import machine
from embedctl.outputs import SINGLE, OutputSpec
from embedctl.plan import Pass, Plan
from embedctl.records import Cursor, FileBooks, WindowKey, WindowOutput, WindowRecord
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

DIM, WINDOW_ROWS = 384, 8192
_KEPT: dict[str, pa.DataType] = {"text": pa.string(), "n": pa.int64(), "lang": pa.string()}

NOTE = (
    "Both are durable, or answered as applied, after each window of 8,192 rows. The sinks also write `_job`, `_pos` "
    "and `_hash` with each row (Qdrant indexes the first two), a list of ids beside the ledger, and check every vector."
)

Raw = Callable[[str, Sequence[WindowOutput]], float]
"""Loads windows into the store of this URI by its own client; seconds it took."""


def measure(stores: Mapping[str, Callable[[int], str]], rows: int, rounds: int) -> dict[str, Any]:
    """stores: name -> the URI of a fresh destination for each round, counted on. Leaves the report, JSON-ready."""
    windows = list(_windows(rows))
    found: dict[str, Any] = {}
    for name, fresh in stores.items():
        own, raw = [], []
        for number in range(rounds):
            own.append(_through_sink(fresh(2 * number), windows))
            raw.append(raw_of(fresh(0))(fresh(2 * number + 1), windows))
        rates = {"sink_rows_per_s": rows / min(own), "client_rows_per_s": rows / min(raw)}
        ratio = rates["sink_rows_per_s"] / rates["client_rows_per_s"]
        found[name] = {**{k: round(v) for k, v in rates.items()}, "ratio": round(ratio, 3)}
    return {
        "version": 1, "machine": machine.told(), "rows": rows, "dim": DIM, "rounds": rounds, "stores": found,
    }  # fmt: skip


def markdown(report: Mapping[str, Any]) -> str:
    lines = ["| store | through the sink, rows/s | its client, rows/s | ratio |", "|---|---|---|---|"]
    for name, one in report["stores"].items():
        own, raw = one["sink_rows_per_s"], one["client_rows_per_s"]
        lines.append(f"| {name} | {own:,} | {raw:,} | {one['ratio']:.2f} |")
    lines += ["", NOTE]
    return "\n".join(lines) + "\n"


def _through_sink(uri: str, windows: Sequence[WindowOutput]) -> float:
    state = Path(tempfile.mkdtemp(prefix="embedctl-bench-"))
    spec = JobSpec(to=uri, create=True, keep=tuple(_KEPT), index="none")
    try:
        with closing(registry.get("sinks", urlsplit(uri).scheme)(uri, LocalStorage(state), spec)) as sink:
            sink.prepare(_plan(spec))
            began = time.perf_counter()
            records = [sink.write(window) for window in windows]
            seconds = time.perf_counter() - began
            held = sink.count(records)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if held != sum(len(w.ids) for w in windows):
        raise RuntimeError(f"{uri}: holds {held} rows, {sum(len(w.ids) for w in windows)} were written")
    return seconds


def _plan(spec: JobSpec) -> Plan:
    output = OutputSpec(name=SINGLE, kind="dense", dim=DIM)
    card = {"name": "made", "similarity": "cosine", "normalised": True, "fingerprint": "", "dim": DIM}
    resolved = {"id_type": "string", "threads": machine.told()["threads"]}
    return Plan(
        generation=1,
        job="0123456789abcdef",
        recipe="ab" * 32,
        snapshot="cd" * 32,
        spec=spec.of_kind("rows", "recipe", "tuning"),
        passes=(Pass(asked="made", model=card, resolved=resolved, outputs=(output,)),),
        schema=pa.schema({"id": pa.string(), **_KEPT}),
        id_column="id",
        text_columns=("text",),
        keep=tuple(_KEPT),
        inputs=("made",),
        files=(),
        slices=(),
    )


def _windows(rows: int) -> Iterator[WindowOutput]:
    for number, begin in enumerate(range(0, rows, WINDOW_ROWS)):
        count = min(WINDOW_ROWS, rows - begin)
        vectors = np.random.default_rng(number).standard_normal((count, DIM), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        ids = [f"doc-{i * 7_919 % 1_000_003:07d}-{i}" for i in range(begin, begin + count)]
        kept: dict[str, Any] = {
            "text": [f"{id} " + "x" * 190 for id in ids],
            "n": np.arange(begin, begin + count),
            "lang": ["en"] * count,
        }
        yield WindowOutput(
            record=_record(number, count),
            ids=ids,
            positions=np.arange(begin, begin + count),
            outputs={SINGLE: vectors},
            kept=pa.table(kept, schema=pa.schema(_KEPT)),
            token_count=np.full(count, 50),
            truncated=np.zeros(count, dtype=bool),
            chunk=None,
            char_start=None,
            char_end=None,
            dead=(),
            hashes=np.full((count, 2), number, dtype=np.uint64),
        )


def _record(number: int, rows: int) -> WindowRecord:
    cursor = Cursor(segment=0, position=number * WINDOW_ROWS)
    books = FileBooks(file=0, read=rows, written=rows, skipped=0, duplicates=0, dead=0)
    key = WindowKey(generation=1, slice=0, window=number)
    return WindowRecord(
        key=key, begin=cursor, end=cursor, last=False, books=(books,), units=rows, tokens=rows, padded_tokens=rows,
        truncated=0,
    )  # fmt: skip


def raw_of(uri: str) -> Raw:
    """How the store's own client loads in bulk. :raises ValueError: none is known."""
    from embedctl.bench import clients

    scheme = urlsplit(uri).scheme
    known: dict[str, Raw] = {
        "lancedb": clients.lancedb, "postgresql": clients.postgresql, "qdrant-edge": clients.edge,
        "qdrant": clients.qdrant,
    }  # fmt: skip
    if scheme not in known:
        raise ValueError(f"{scheme}: no bulk load of its own client is known; one of {', '.join(known)}")
    return known[scheme]
