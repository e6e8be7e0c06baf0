"""`state rebuild`: plan, ledger and lists of ids of a destination whose state is lost, made again from what it holds.

Enters: a store that keeps its job's manifest, or a folder of parts. Leaves: the state where the next command looks for
it. Windows of which a store still holds every unit are committed again; others are done anew by the command that made
them. Refused: a state that is there, a store that keeps no manifest, parts of several jobs. Dead letters are not in a
store.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import plan as plans
from embedctl.errors import SinkError, UsageError
from embedctl.events import Listener
from embedctl.job import adopt, manifest
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination, open_source
from embedctl.ledger import hashes, locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.base import Remembering
from embedctl.sinks.parquet import ParquetSink
from embedctl.spec import JobSpec
from embedctl.storage import STATE, LocalStorage

SORT_MEMORY = "1GB"
_ORDER = "SELECT id, coalesce(chunk, 0) AS chunk, _pos, _hash FROM read_parquet(?) ORDER BY _pos, chunk"


def rebuild(destination: str, *, state: str | None = None, listener: Listener) -> dict[str, Any]:
    """JSON-ready: windows that are committed again, and those that must be done anew.

    :raises UsageError: the state is there, or nothing of embedctl's. :raises SinkError: the store cannot be read.
    """
    began = time.monotonic()
    if "://" not in destination:
        report = _of_folder(Path(destination), listener)
    else:
        with ExitStack() as stack:
            found = open_source(JobSpec(to=destination, state=state))
            stack.callback(found.sink.close)
            report = _of_store(found, listener)
    return {"version": 1, **report, "seconds": round(time.monotonic() - began, 3)}


def _of_store(found: Destination, listener: Listener) -> dict[str, Any]:
    storage, sink = found.storage, found.sink
    plan = plans.load(storage) if (storage.root / STATE).is_dir() else None
    if plan is not None and not adopt.is_damaged(storage, plan, Ledger(storage).contents):
        raise UsageError(
            f"{found.uri}: its state is in {storage.root}",
            hint=f"embedctl status {found.uri}; to make it anew, move it",
        )
    text = sink.remembered() if isinstance(sink, Remembering) else None
    if not text or not isinstance(sink, Remembering):
        raise SinkError(
            f"{found.uri}: keeps no manifest of a finished job, from which its state could be rebuilt",
            hint="run the job again into a new collection with another --to",
        )
    known = manifest.read(text, found.uri)
    with locks.lease(storage, names=["plan", "finalise"], listener=listener):
        spool = storage.scratch("units.parquet")
        rows = _spooled(sink, spool)
        listener.note(f"{rows} vectors of the job are there")
        windows = _Windows(storage=storage, records={r.key: r for r in known.records})
        for key, batch in _by_window(spool, storage):
            windows.take(key, batch)
        storage.drop_own_scratch()
        windows.take_empty()
        whole = [r for r in known.records if r.key in windows.whole]
        done = len(whole) == len(known.records)
        for plan in known.plans:
            plans.publish(storage, plan)
        events = [e for e in known.events if done or e["kind"] not in (ending.FINALISED, ending.REOPENED)]
        Ledger(storage).append(*events, *whole)
    return {
        "destination": found.uri,
        "state": str(storage.root),
        "finished": done,
        "windows": len(whole),
        "windows_to_do": len(known.records) - len(whole),
        "vectors": rows,
    }


@dataclass(slots=True)
class _Windows:
    """Lists of ids, written window by window. `whole`: windows of which every unit is there."""

    storage: LocalStorage
    records: dict[WindowKey, WindowRecord]
    whole: set[WindowKey] = field(default_factory=set)

    def take(self, key: WindowKey, units: pa.Table) -> None:
        """The units of one window, by row and chunk."""
        numbers = units.column("_pos").to_numpy() & ((1 << stores.ROW_BITS) - 1)
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        first = pa.array(starts, pa.int64())
        ids = units.column("id").take(first).to_pylist()
        record = self.records.get(key)
        revision = record.revision if record else 0
        rows = stores.WindowRows(
            ids=[str(i) for i in ids],
            numbers=numbers[starts].tolist(),
            units=np.diff(np.append(starts, len(numbers))).tolist(),
            positions=[],
        )
        stores.save_rows(self.storage, key, revision, rows)
        words = units.column("_hash").take(first).to_pylist()
        if all(words):
            pairs = [(int(w[:16], 16), int(w[16:], 16)) for w in map(str, words)]
            hashes.put(self.storage, key, np.array(pairs, dtype=np.uint64), revision)
        if record is not None and record.units == units.num_rows:
            self.whole.add(key)

    def take_empty(self) -> None:
        """Windows without a live row leave no unit to tell of them."""
        for record in self.records.values():
            if not record.units:
                nothing = stores.WindowRows(ids=[], numbers=[], units=[], positions=[])
                stores.save_rows(self.storage, record.key, record.revision, nothing)
                self.whole.add(record.key)


def _spooled(sink: Remembering, path: Path) -> int:
    """Every unit of the job, on disk; how many."""
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        for batch in sink.units_there():
            writer = writer or pq.ParquetWriter(path, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _by_window(path: Path, storage: LocalStorage) -> Iterator[tuple[WindowKey, pa.Table]]:
    """Windows in order, each whole; sorted on disk, so that memory is bounded at any size."""
    if not path.exists():
        return
    import duckdb

    options: dict[str, Any] = {"memory_limit": SORT_MEMORY, "temp_directory": str(storage.scratch("sort"))}
    held: list[pa.Table] = []
    with closing(duckdb.connect(":memory:", config=options)) as connection:
        reader = connection.sql(_ORDER, params=[str(path)]).to_arrow_reader(100_000)
        for batch in reader:
            table = pa.Table.from_batches([batch])
            windows = table.column("_pos").to_numpy() >> stores.ROW_BITS
            cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
            for begin, end in itertools.pairwise(cuts):
                piece = table.slice(begin, end - begin)
                if held and _window(held[0]) != _window(piece):
                    yield _window(held[0]), pa.concat_tables(held)
                    held = []
                held.append(piece)
    if held:
        yield _window(held[0]), pa.concat_tables(held)


def _window(table: pa.Table) -> WindowKey:
    key, _ = stores.place_of(int(table.column("_pos")[0].as_py()))
    return key


def _of_folder(root: Path, listener: Listener) -> dict[str, Any]:
    """The ledger from the parts' footers; a plan that is gone too is made anew by the same command."""
    found = adopt.parts_of(root)
    jobs = {part.job for part in found}
    if not found:
        raise UsageError(f"{root}: no embeddings made by embedctl there", hint="embedctl embed corpus.parquet")
    if len(jobs) > 1:
        raise UsageError(f"{root}: its parts are of {len(jobs)} jobs", hint="give each job a folder of its own")
    storage = LocalStorage(root)
    adopted = 0
    with locks.lease(storage, names=["plan", "finalise"], listener=listener):
        plan = plans.load(storage)
        contents = Ledger(storage).contents
        begun = plan is not None and plan.generation > 1 and not ending.is_finalised(plan, contents)
        if plan is not None and (begun or adopt.is_damaged(storage, plan, contents)):
            plan, adopted = adopt.mend(storage, plan)
            listener.note("the next sync reads the whole corpus, to know which file each row is from")
        elif plan is not None:
            adopted = _adopted(storage, plan)
        lost = 0 if plan is None else _lost(storage, plan)
    finished = plan is not None and not lost and ending.is_finalised(plan, Ledger(storage).contents)
    if plan is None:
        synced = any(part.record.key.generation > 1 for part in found)
        what = "embedctl sync with the settings that made it" if synced else "run the command that made it again; it"
        listener.note(f"its plan is gone too: {what} takes over these parts")
    elif lost:
        listener.note(f"{lost} parts of its ledger are gone: the next embedctl sync embeds their rows again")
    elif not finished:
        listener.note("run the command that made it again: it does what is missing, and finishes")
    return {
        "destination": str(root),
        "state": str(root / STATE),
        "finished": finished,
        "windows": len(Ledger(storage).contents.windows),
        "adopted": adopted,
        "parts": len(found),
        "lost": lost,
    }


def _lost(storage: LocalStorage, plan: Plan) -> int:
    """Windows whose parts are gone."""
    sink = ParquetSink(storage)
    sink.prepare(plan)
    return len(sink.reconcile(ending.live_records(Ledger(storage).contents)).lost)


def _adopted(storage: LocalStorage, plan: Plan) -> int:
    ledger, sink = Ledger(storage), ParquetSink(storage)
    sink.prepare(plan)
    adopted = sink.reconcile(ending.live_records(ledger.contents)).adopted
    ledger.append(*adopted)
    return len(adopted)
