"""The checks that any destination allows: finished, books, ids; and all there are for a store, which is not read back.

Enters: a plan, its state and its sink. Leaves: checks, each ok, not ok, or not checked with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embedctl.errors import BooksError, EmbedctlError
from embedctl.job import finalise as ending
from embedctl.job.duplicates import find
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.sinks.base import Sink
from embedctl.storage import LocalStorage

FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """ok is None where it could not be checked; detail then says why."""

    name: str
    ok: bool | None
    detail: str


def report(storage: LocalStorage, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "version": 1,
        "destination": storage.uri,
        "ok": all(c.ok is not False for c in checks),
        "finished": all(c.ok is not None for c in checks if c.name == FINISHED),
        "checks": [{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks],
    }


def finished(plan: Plan, done: bool) -> Check:
    detail = (
        f"generation {plan.generation} is finished" if done else "the job is not finished; run the same command again"
    )
    return Check(name=FINISHED, ok=True if done else None, detail=detail)


def books(plan: Plan, storage: LocalStorage, sink: Sink) -> Check:
    contents = Ledger(storage).contents
    try:
        if ending.is_complete(plan, contents):
            ending.check_books(plan, contents, sink)
        rows = ending.totals(contents)
    except BooksError as exc:
        return Check(name="books", ok=False, detail=str(exc))
    told = " + ".join(f"{v} {k}" for k, v in rows.to_json().items() if k != "read" and v) or "0 written"
    sound = rows.balanced() and min(rows.to_json().values()) >= 0
    return Check(name="books", ok=sound, detail=f"{rows.read} read = {told}")


def ids(plan: Plan, storage: LocalStorage, sink: Sink, records: Sequence[WindowRecord]) -> Check:
    if plan.id_column is not None and plan.spec["on_duplicate"] == "keep":
        return Check(name="ids", ok=None, detail="not checked: duplicates were kept on request")
    if not ending.is_complete(plan, Ledger(storage).contents):
        return Check(name="ids", ok=None, detail="not checked: the job is not finished")
    by_key = {r.key: r for r in records}
    counts = [sum(b.written for b in r.books) for r in records]
    again = sum(1 for _ in find(list(by_key), counts, lambda k: sink.rows(by_key[k])[0], storage.scratch))
    return Check(name="ids", ok=not again, detail=f"{sum(counts)} ids, {again or 'none'} twice")


def of_store(plan: Plan, storage: LocalStorage, sink: Sink, records: Sequence[WindowRecord]) -> list[Check]:
    """A store is counted, not read back."""
    try:
        sink.prepare(plan)
        sink.reconcile(records)
        checks = [
            Check(name="store", ok=True, detail=f"{sink.count(records)} vectors of this job, none foreign"),
            books(plan, storage, sink),
            ids(plan, storage, sink, records),
        ]
    except EmbedctlError as exc:
        checks = [Check(name="store", ok=False, detail=str(exc))]
    finally:
        sink.close()
    told = "not checked: the vectors of a store are not read back"
    return [*checks, Check(name="vectors", ok=None, detail=told), Check(name="sample", ok=None, detail=told)]
