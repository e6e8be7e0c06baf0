"""Parts that outlived their ledger, or all of their state: made a destination again from what their footers tell.

Enters: a folder of parts and its newest plan, or one drafted anew from the command. Leaves: a ledger of the parts'
windows, in which all rows stand as unchanged, each in a file that the next sync finds out: losing the state costs a
read of the corpus. Refused: parts of several jobs or other settings, a part that cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import plan as plans
from embedctl.codec import record_from_json
from embedctl.errors import BooksError, PlanMismatch
from embedctl.job import finalise as ending
from embedctl.job.delete_list import is_begun
from embedctl.ledger.segments import Contents, Ledger
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowRecord
from embedctl.sinks import parquet, versions
from embedctl.sinks.base import UNIT_COLUMNS
from embedctl.sinks.parts import window_in
from embedctl.sources import changes
from embedctl.storage import STATE, LocalStorage

REBUILT = "rebuilt"
"""Kind of the event that a generation's books were made from parts: where its rows are from is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part as its footer tells it. recipe: None where it tells none."""

    name: str
    job: str
    recipe: str | None
    record: WindowRecord
    columns: Sequence[str]


def parts_of(root: Path) -> list[Part]:
    """Parts of embedctl's in a folder, by name, superseded ones too. :raises BooksError: one cannot be read."""
    return [_part(root / p.name) for p in sorted(root.glob("*.parquet")) if window_in(p.name) is not None]


def is_damaged(storage: LocalStorage, plan: Plan, contents: Contents) -> bool:
    """Whether the ledger of a later generation is gone, or the end of it: such a generation begins with books and
    windows, and what it was to do is removed only after the ledger says that it is finished. Or the newest plan is."""
    if _is_older(storage, plan, contents):
        return True
    if plan.generation == 1 or ending.is_finalised(plan, contents):
        return False
    bare = not contents.windows and not any(e["kind"] != "job" for e in contents.events)
    return bare or _was_finished(storage, plan)


def refuse_damaged(storage: LocalStorage, plan: Plan, contents: Contents) -> None:
    """:raises BooksError: see `is_damaged`."""
    if is_damaged(storage, plan, contents):
        what = "newest plan is gone" if _is_older(storage, plan, contents) else "ledger is gone, or the end of it"
        raise BooksError(f"{storage.uri}: its {what}", hint=f"embedctl state rebuild {storage.uri}")


def _is_older(storage: LocalStorage, plan: Plan, contents: Contents) -> bool:
    """Whether the ledger, or a part where that is gone too, is of a later generation than any plan. A plan is there
    before them, so that one which another run has just made is found by looking again."""
    told = _generation_in(contents)
    if not ending.is_finalised(plan, contents):
        keys = (window_in(p.name) for p in storage.root.glob("*.parquet"))
        told = max([told, *(k[0].generation for k in keys if k is not None)])
    return told > plan.generation and told > (plans.load(storage) or plan).generation


def _generation_in(contents: Contents) -> int:
    events = [int(e["generation"]) for e in contents.events if e["kind"] in (ending.BASE, ending.FINALISED)]
    return max([0, *events, *(k.generation for k in contents.windows)])


def is_rebuilt(plan: Plan, contents: Contents) -> bool:
    """Whether all files must be read to know where the rows of this generation are from."""
    return any(e["kind"] == REBUILT and e["generation"] == plan.generation for e in contents.events)


def mend(storage: LocalStorage, plan: Plan) -> tuple[Plan, int]:
    """Write the ledger of the newest plan from the parts, and first a plan in place of one that is gone: the plan, and
    how many windows. The caller holds the lease on planning.

    :raises BooksError: a part cannot be read, or is another job's. :raises PlanMismatch: the plan that is gone was not
    like this one.
    """
    found = parts_of(storage.root)
    if not _is_older(storage, plan, Ledger(storage).contents):
        return plan, _restore(storage, plan, found)
    other = [p.name for p in found if p.recipe != plan.recipe]
    if other:
        raise PlanMismatch(
            f"{storage.root / other[0]}: its plan is gone, and it was made with other settings than the plan before",
            hint=f"bring it back from a copy, or move {STATE}/plan-*.json away: embedctl sync with the settings it was "
            "made with takes it over",
        )
    return _stand_in(storage, plan, found)


def _stand_in(storage: LocalStorage, like: Plan, found: Sequence[Part]) -> tuple[Plan, int]:
    """A finished generation after all that the parts and the ledger know of; nothing tells which files it was of."""
    known = _generation_in(Ledger(storage).contents)
    generation = 1 + max([known, *(p.record.key.generation for p in found)])
    plan = replace(like, generation=generation, snapshot="", slices=(), targets=None, changes=generation)
    changes.clear(storage, generation - 1)
    plans.publish(storage, plan)
    return plan, _restore(storage, plan, found)


def _restore(storage: LocalStorage, plan: Plan, found: Sequence[Part]) -> int:
    foreign = [p.name for p in found if p.job != plan.job]
    if foreign:
        raise BooksError(f"{storage.root / foreign[0]}: a part of another job", hint="move it to a folder of its own")
    newest: dict[WindowKey, Part] = {}
    for part in found:
        if part.record.key not in newest or part.record.revision > newest[part.record.key].record.revision:
            newest[part.record.key] = part
    records = [newest[k].record for k in sorted(newest)]
    ledger = Ledger(storage)
    ledger.append({"kind": "job", "job": plan.job}, *records)
    records = ending.live_records(ledger.contents)
    events: list[dict[str, Any]] = []
    synced = _newest_sync(storage, plan)
    known = ending.base_of(ledger.contents)
    if synced is not None and (known is None or known["generation"] < synced.generation):
        events.append(_base(storage, synced, records))
    if _was_finished(storage, plan):
        events.append({"kind": ending.FINALISED, "generation": plan.generation, "round": 0})
    events.append({"kind": REBUILT, "generation": plan.generation})
    ledger.append(*events)
    live = {r.part for r in records}
    for part in found:
        if part.name not in live:
            storage.delete(part.name)
    return len(records)


def refuse_foreign(storage: LocalStorage, draft: Plan) -> None:
    """:raises PlanMismatch: parts whose plan is gone are there, and not all of this draft's own first generation."""
    found = parts_of(storage.root)
    if not found or _all_of(storage, draft, found):
        return
    alike = {p.job for p in found} == {found[0].job} and found[0].recipe == draft.recipe and draft.id_column
    raise PlanMismatch(
        f"{storage.uri}: its plan is gone, and its parts are of another corpus or other settings",
        hint=f"embedctl sync {' '.join(draft.inputs)} --to {storage.uri}, with the same settings, takes them over"
        if alike
        else "bring .embedctl/ back from a copy, or choose another --to",
    )


def take_over(storage: LocalStorage, draft: Plan) -> bool:
    """Publish a plan for parts whose plan is gone, and their ledger; False where the draft's own job made them all.

    draft: what the command would plan. :raises PlanMismatch: the parts were made with other settings.
    """
    found = parts_of(storage.root)
    if not found or _all_of(storage, draft, found):
        return False
    _check_alike(storage, draft, found)
    _stand_in(storage, replace(draft, job=found[0].job), found)
    return True


def _all_of(storage: LocalStorage, draft: Plan, found: Sequence[Part]) -> bool:
    later = _generation_in(Ledger(storage).contents) > 1
    return not later and all(p.job == draft.job and p.record.key.generation == 1 for p in found)


def _check_alike(storage: LocalStorage, draft: Plan, found: Sequence[Part]) -> None:
    hint = "bring .embedctl/ back from a copy, repeat the settings they were made with, or choose another --to"
    jobs = {p.job for p in found}
    if len(jobs) > 1:
        raise PlanMismatch(f"{storage.uri}: its plan is gone, and its parts are of {len(jobs)} jobs", hint=hint)
    needed = {"id", *draft.keep, *(o.name for o in draft.outputs)}
    for part in found:
        columns = set(part.columns)
        if part.recipe != draft.recipe or not needed <= columns or columns - needed - set(UNIT_COLUMNS):
            raise PlanMismatch(
                f"{storage.root / part.name}: its plan is gone, and it was made with other settings or another model",
                hint=hint,
            )
    if draft.spec["vector_type"] in ("int8", "uint8"):
        raise PlanMismatch(
            f"{storage.uri}: the ranges of its {draft.spec['vector_type']} vectors are gone with its plan", hint=hint
        )


def _newest_sync(storage: LocalStorage, plan: Plan) -> Plan | None:
    for generation in range(plan.generation, 1, -1):
        found = plans.load(storage, generation)
        if found is not None and found.is_sync:
            return found
    return None


def _base(storage: LocalStorage, synced: Plan, records: Sequence[WindowRecord]) -> dict[str, Any]:
    """The books that this sync took over: as its list of changes says, else all older rows as unchanged ones."""
    if changes.is_whole(storage, synced.generation):
        return dict(changes.load(storage, synced.generation).details["base"])
    rows = sum(b.written for r in records if r.key.generation < synced.generation for b in r.books)
    counts = dict.fromkeys(("added", "changed", "payload", "deleted"), 0)
    books = [[0, rows, 0, 0]] if rows else []
    return {"kind": ending.BASE, "generation": synced.generation, "books": books, "counts": counts}


def _was_finished(storage: LocalStorage, plan: Plan) -> bool:
    """A sync's list of changes, and a delete's list of ids, are removed when it is finished; a sync's readers have been
    led to its version before."""
    if plan.is_sync and not plan.snapshot:  # see _stand_in; and what compacts or rolls back to one
        return not changes.is_whole(storage, plan.generation)
    if plan.is_sync:
        now = versions.current(storage)
        led = now is None or versions.generation_of(now) >= plan.generation
        return led and not changes.is_whole(storage, plan.generation)
    return plan.targets == () and not is_begun(storage, plan)


def _part(path: Path) -> Part:
    try:
        footer = pq.read_metadata(path)
        metadata = footer.metadata or {}
        job, window = metadata[parquet.JOB], metadata[parquet.WINDOW]
        return Part(
            name=path.name,
            job=job.decode(),
            recipe=json.loads(metadata.get(parquet.MODEL, b"{}")).get("recipe"),
            record=replace(record_from_json(json.loads(window)), part=path.name),
            columns=footer.schema.to_arrow_schema().names,
        )
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as exc:
        raise BooksError(
            f"{path}: not a readable part ({exc})", hint="move it away: the next sync embeds its rows again"
        ) from exc
