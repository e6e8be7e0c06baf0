"""`versions`, `compact`: the complete states of a Parquet destination, going back to one; fewer, fuller parts.

Enters: a destination. Leaves: a list of its versions; or a new generation made of rows that are there already,
published like any other, so that a kill leaves the version before it and the same command goes on. Refused: stores,
which have their own ways; a destination with an unfinished run.
"""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import plan as plans
from embedctl.codec import record_from_json, record_to_json
from embedctl.errors import BooksError, PlanMismatch, UsageError
from embedctl.events import Listener, Summary
from embedctl.job import adopt, sync_drop
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination, open_existing
from embedctl.job.nightly import Nightly
from embedctl.job.signals import obeyed
from embedctl.job.summary import summary_of
from embedctl.job.sync_state import letters_of, state_of
from embedctl.ledger import locks
from embedctl.ledger.rows_state import RowsState
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.sinks import versions as folders
from embedctl.sources import changes
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter


def versions(destination: str) -> dict[str, Any]:
    """JSON-ready: each version's name, generation, rows, bytes, and whether readers are led to it.

    :raises UsageError: no destination of embedctl's there, or a store.
    """
    _, found = _opened(destination)
    storage, now = found.storage, folders.current(found.storage)
    listed = []
    for name in folders.names(storage):
        parts = sorted((storage.root / folders.FOLDER / name).glob("*.parquet"))
        listed.append(
            {
                "name": name,
                "generation": folders.generation_of(name),
                "units": sum(map(_units_in, parts)),
                "parts": len(parts),
                "size_bytes": sum(p.stat().st_size for p in parts),
                "current": name == now,
            }
        )
    return {"version": 1, "destination": found.uri, "versions": listed}


def _units_in(part: Path) -> int:
    """:raises BooksError: it cannot be read."""
    try:
        return int(pq.read_metadata(part).num_rows)
    except (pa.ArrowInvalid, OSError) as exc:
        raise BooksError(
            f"{part}: not a readable part ({exc})",
            hint="bring it back from a copy, or remove it here and among the parts; a sync embeds its rows again",
        ) from exc


def roll_back(destination: str, version: str, listener: Listener) -> Summary:
    """Lead readers to an older version at once, then make it the newest generation, from which a sync goes on.

    :raises UsageError: no such version.
    """

    def again(nightly: Nightly, last: Plan) -> Plan | None:
        storage = nightly.found.storage
        known = folders.names(storage)
        if version not in known:
            near = difflib.get_close_matches(version, known, n=1)
            raise UsageError(
                f"{nightly.found.uri}: no version {version!r}; there are {', '.join(known) or 'none'}",
                hint=f"embedctl versions {nightly.found.uri} --rollback {near[0]}" if near else None,
            )
        if folders.generation_of(version) == last.generation:
            return None
        then = plans.load(storage, folders.generation_of(version))
        if then is None:
            raise BooksError(f"{nightly.found.uri}: the plan of {version} is gone, so its rows cannot be told")
        storage.point(folders.CURRENT, f"versions/{version}")
        return _back(nightly, last, then, f"{folders.FOLDER}/{version}")

    return _with(destination, listener, again, "already current")


def compact(destination: str, listener: Listener) -> Summary:
    """Merge parts of less than half a window's rows, without embedding anything; nothing to merge: nothing is done."""

    def again(nightly: Nightly, last: Plan) -> Plan | None:
        contents = Ledger(nightly.found.storage).contents
        full = last.spec["window_rows"]
        rows = {r.key: _num_rows(r) for r in ending.live_records(contents)}
        small = [r for r in ending.live_records(contents) if rows[r.key] <= full // 2]
        if len(small) < 2 or not sum(rows[r.key] for r in small):
            return None
        return _merged(nightly, last, small)

    return _with(destination, listener, again, "nothing to merge")


def _opened(destination: str) -> tuple[Plan, Destination]:
    if "://" in destination:
        raise UsageError(
            f"{destination}: versions are of a folder of Parquet; a store merges its parts itself",
            hint="switch whole collections with --swap-alias",
        )
    return open_existing(JobSpec(to=destination))


def _with(destination: str, listener: Listener, again: Any, nothing: str) -> Summary:
    """Under the lease: finish what `again` began, or let it plan, and carry its plan out."""
    began, halt = time.monotonic(), Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)), contextlib.ExitStack() as stack:
        last, found = _opened(destination)
        stack.callback(found.storage.drop_own_scratch)
        stack.callback(found.sink.close)
        slices = [s.index for s in last.slices]
        lease.append(stack.enter_context(locks.lease(found.storage, names=["plan"], slices=slices, listener=listener)))
        spec = JobSpec(**{**last.asked(), "inputs": last.inputs, "to": destination})
        nightly = Nightly(
            spec=spec, found=found, listener=listener, halt=halt, lease=lease[0], began=began, dry_run=False
        )
        found.sink.prepare(last)
        contents = Ledger(found.storage).contents
        adopt.refuse_damaged(found.storage, last, contents)
        if not ending.is_finalised(last, contents):
            if last.is_sync and sync_drop.MERGE in changes.load(found.storage, last.generation).details:
                return nightly.execute(last)
            raise PlanMismatch(
                f"{found.uri}: a run was begun and not finished",
                hint=f"embedctl {'sync' if last.is_sync else 'embed'} {' '.join(last.inputs)} --to {found.uri}",
            )
        plan = again(nightly, last)
        if plan is None:
            return summary_of(last, found.storage, Ledger(found.storage), Meter(), began, new_dead=0, status=nothing)
        return nightly.execute(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """sources: parts to write anew, [folder, record]. retired: windows that leave. live: [file, rows] that move.

    carried, moved: files of the rows that stay, and of those that move, for the state; None where they are not known.
    """

    sources: Sequence[tuple[str, WindowRecord]]
    retired: Sequence[WindowRecord]
    live: Sequence[Sequence[int]]
    books: Sequence[Sequence[int]]
    state: RowsState | None = None
    carried: np.ndarray | None = None
    moved: np.ndarray | None = None
    dead: Sequence[Sequence[Any]] = ()


def _merged(nightly: Nightly, last: Plan, small: Sequence[WindowRecord]) -> Plan:
    """The next generation, in which these windows' rows stand in fuller ones."""
    storage, sink = nightly.found.storage, nightly.found.sink
    contents = Ledger(storage).contents
    state = state_of(last, contents, sink, storage)
    place_of = {tuple(w[:3]): n for n, w in enumerate(state.windows)}
    chosen = np.array([place_of[r.key.generation, r.key.slice, r.key.window] for r in small])
    rows = state.entries(0, len(state))
    moving = np.isin(rows["place"], chosen)
    order = np.lexsort((rows["row"][moving], rows["place"][moving]))
    number = {f.uri: f.index for f in last.files}
    now = np.array([*(number.get(uri, -1) for uri in state.uris), -1], dtype=np.int32)
    files = now[rows["file"]]  # a file that is not known is number -1, the last
    known = bool((files >= 0).all())
    live, books = _shared_out(
        {number[u]: b for u, b in ending.books_by_file(last, contents).items()}, int(moving.sum())
    )
    layout = _Layout(
        sources=[("", r) for r in small if r.part],
        retired=small,
        live=live,
        books=books,
        state=state if known else None,
        carried=np.where(moving, -1, files).astype(np.int32),
        moved=files[moving][order],
        dead=[[number[m["file"]], m["position"], m["id"], m["reason"]] for m in letters_of(storage, contents)],
    )
    return _publish(nightly, last, last, layout)


def _back(nightly: Nightly, last: Plan, then: Plan, folder: str) -> Plan:
    """The next generation, which holds what an older version held; which file each row is from is found out later."""
    storage = nightly.found.storage
    records = ending.live_records(Ledger(storage).contents)
    here = {(r.key, r.revision) for r in records if r.part} if last.job == then.job else set()
    sources, stays = [], set()
    for path in sorted((storage.root / folder).glob("*.parquet")):
        record = _record_of(path)
        if (record.key, record.revision) in here:
            stays.add(record.key)
        else:
            sources.append((folder, record))
    layout = _Layout(
        sources=sources,
        retired=[r for r in records if r.key not in stays],
        live=[[0, sum(_num_rows(r) for _, r in sources)]],
        books=[[0, sum(_num_rows(r) for r in records if r.key in stays), 0, 0]],
    )
    return _publish(nightly, last, then, layout)


def _publish(nightly: Nightly, last: Plan, like: Plan, layout: _Layout) -> Plan:
    """The list of changes, then the plan: from here on it goes on by itself."""
    storage, generation = nightly.found.storage, last.generation + 1
    changes.clear(storage, generation)
    none = np.zeros(0, dtype=np.int32)
    sync_drop.put_array(storage, generation, sync_drop.DROPS, none.astype(np.uint64))
    sync_drop.put_array(storage, generation, sync_drop.CARRIED, none if layout.carried is None else layout.carried)
    sync_drop.put_array(storage, generation, sync_drop.MOVED, none if layout.moved is None else layout.moved)
    counts = dict.fromkeys(("added", "changed", "payload", "deleted"), 0)
    details: dict[str, Any] = {
        "state": layout.state.name if layout.state else None,
        "windows": [],
        "watermark": layout.state.details.get("watermark") if layout.state else None,
        "base": {"kind": ending.BASE, "generation": generation, "books": layout.books, "counts": counts},
        sync_drop.MERGE: {
            "sources": [{"folder": f, "record": record_to_json(r), "rows": _num_rows(r)} for f, r in layout.sources],
            "retired": [[r.key.generation, r.key.slice, r.key.window] for r in layout.retired],
            "live": layout.live,
            "dead": layout.dead,
        },
    }
    changes.publish(storage, changes.Changes(generation=generation, kinds={}, losers={}, details=details))
    nightly.found.sink.before_change(last, ending.live_records(Ledger(storage).contents))
    plan = replace(like, generation=generation, slices=(), targets=None, changes=generation)
    if not plans.publish(storage, plan):
        raise PlanMismatch(f"{storage.uri}: another run has planned generation {generation}", hint="try again")
    return plan


def _shared_out(totals: Mapping[int, Any], moving: int) -> tuple[list[list[int]], list[list[int]]]:
    """[file, rows] that move, and the base's books of what stays: [file, unchanged, skipped, duplicates]."""
    live, books = [], []
    for file, rows in sorted(totals.items()):
        held = rows.written + rows.unchanged
        count = min(moving, held)
        moving -= count
        live.append([file, count])
        books.append([file, held - count, rows.skipped, rows.duplicates])
    return live, books


def _num_rows(record: WindowRecord) -> int:
    return sum(b.written for b in record.books)


def _record_of(path: Path) -> WindowRecord:
    import json

    metadata = pq.read_metadata(path).metadata or {}
    return replace(record_from_json(json.loads(metadata[b"embedctl.window"])), part=path.name)
