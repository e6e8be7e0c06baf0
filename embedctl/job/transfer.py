"""`load`: vectors that are in Parquet already, into any destination, with the promises of `embed` and no model.

Enters: a folder that embedctl wrote, or tables of any origin (see `vectors`). Leaves: the destination finished. A
folder's windows, ids, chunks, books, dead letters and plans are carried over as they are, so that the destination is
the one that the same job would have made there. Refused: an unfinished folder, a destination of another job, a source
that changed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from embedctl import plan as plans
from embedctl.errors import Locked, PlanMismatch, UsageError
from embedctl.events import Listener, Summary
from embedctl.job import finalise as ending
from embedctl.job import vectors
from embedctl.job.carrying import CARRIED, Carrying, Folder, check_same, open_folder
from embedctl.job.destination import Destination, open_destination
from embedctl.job.export import HEADER
from embedctl.job.loading import Loading
from embedctl.job.run import check_snapshot, remember_job
from embedctl.job.signals import obeyed
from embedctl.job.summary import skipped_summary, summary_of
from embedctl.job.swap import swapped
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sources.files import discover, snapshot
from embedctl.spec import JobSpec, flag
from embedctl.stages.flow import Halt, Meter
from embedctl.storage import STATE, LocalStorage


def load(spec: JobSpec, listener: Listener) -> Summary:
    """Run to the end, or to the first error that must stop it; the same command goes on from there.

    :raises EmbedctlError: see errors.py.
    """
    if spec.to is None:
        raise UsageError("--to: where shall the vectors go?", hint="--to qdrant://localhost:6334/docs --create")
    try:
        return _load(spec, listener) if spec.swap_alias is None else _swapped(spec, listener)
    except Locked as exc:
        if spec.if_locked != "skip":
            raise
        listener.note(f"{exc}; stepped aside")
        return skipped_summary(spec.to)


def _swapped(spec: JobSpec, listener: Listener) -> Summary:
    folder = folder_of(spec.inputs)
    files = [] if folder is not None else tables_of(spec)

    def is_ours(plan: Plan, storage: LocalStorage) -> bool:
        if folder is not None:
            known = [e["digest"] for e in Ledger(storage).contents.events if e["kind"] == CARRIED]
            return plan.job == folder.newest.job and known == [folder.digest()]
        return plan.is_loaded and plan.snapshot == snapshot(files) and not plans.contradictions(plan, spec)

    recipe = folder.newest.recipe if folder is not None else vectors.draft(spec, files).recipe
    return swapped(spec, listener, _load, is_ours, lambda: recipe)


def folder_of(inputs: Sequence[str]) -> Folder | None:
    """The one folder that embedctl wrote, or None where the inputs are tables of any origin.

    :raises UsageError: such a folder among other inputs. :raises PlanMismatch, BooksError: see `open_folder`.
    """
    ours = [i for i in inputs if (Path(i) / STATE).is_dir() and not (Path(i) / HEADER).is_file()]
    if ours and len(inputs) > 1:
        raise UsageError(f"{ours[0]}: was made by embedctl, and is loaded alone", hint="one command a folder")
    return open_folder(Path(ours[0])) if ours else None


def carried_spec(spec: JobSpec, plan: Plan) -> JobSpec:
    """The folder's own job, written where and how `spec` says. :raises UsageError: `spec` asks for other rows."""
    default = JobSpec()
    for name in default.of_kind("rows", "recipe"):
        if getattr(spec, name) != getattr(default, name):
            raise UsageError(
                f"{flag(name)}: a folder that embedctl wrote is loaded as it is", hint=f"leave out {flag(name)}"
            )
    own = {f.name: getattr(spec, f.name) for f in fields(spec) if f.metadata["kind"] in ("policy", "run")}
    return JobSpec(**{**plan.asked(), **own})


def tables_of(spec: JobSpec) -> list[SourceFile]:
    """The files of tables; a folder that `export` wrote is its parts."""
    paths: list[str] = []
    for text in spec.inputs:
        exported = (Path(text) / HEADER).is_file()
        paths += sorted(str(p) for p in Path(text).glob("*.parquet")) if exported else [text]
    return discover(paths, spec.format)


def _load(spec: JobSpec, listener: Listener) -> Summary:
    began, halt = time.monotonic(), Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)), contextlib.ExitStack() as stack:
        folder = folder_of(spec.inputs)
        files = [] if folder is not None else tables_of(spec)
        if folder is not None:
            spec = carried_spec(spec, folder.newest)
        found = open_destination(spec)
        stack.callback(found.storage.drop_own_scratch)
        stack.callback(found.sink.close)
        plan = folder.newest if folder is not None else _find_or_make(spec, files, found, listener)
        if _is_done(plan, folder, found):
            ledger = Ledger(found.storage)
            return summary_of(plan, found.storage, ledger, Meter(), began, new_dead=0, status="already done")
        mine = [s for s in plan.slices if folder is not None or s.index % spec.num_shards == spec.shard_index]
        wait = spec.if_locked == "wait"
        names = ["plan"] if folder is not None else []
        lease.append(
            stack.enter_context(
                locks.lease(found.storage, names=names, slices=[s.index for s in mine], wait=wait, listener=listener)
            )
        )
        if folder is not None:
            return Carrying(
                spec=spec, plan=plan, storage=found.storage, sink=found.sink, listener=listener, halt=halt,
                lease=lease[0], began=began, folder=folder,
            ).carry()  # fmt: skip
        return Loading(
            spec=spec, plan=plan, storage=found.storage, sink=found.sink, listener=listener, halt=halt, lease=lease[0],
            began=began, outputs_of=vectors.Reading(plan=plan).windows,
        ).run(mine, None)  # fmt: skip


def _is_done(plan: Plan, folder: Folder | None, found: Destination) -> bool:
    """:raises PlanMismatch, SourceChanged: the destination is another job's, or another state of the folder's."""
    known = plans.load(found.storage)
    ledger = Ledger(found.storage)
    if known is None:
        return False
    if known.job != plan.job:
        raise PlanMismatch(
            f"{found.uri}: holds another job ({known.job}, this is {plan.job})",
            hint="choose another destination with --to",
        )
    if folder is not None:
        check_same(folder, ledger)
    return (
        known.generation == plan.generation
        and ending.is_finalised(plan, ledger.contents)
        and not ending.has_lost(plan, found.sink, ledger.contents)
    )


def _find_or_make(spec: JobSpec, files: Sequence[SourceFile], found: Destination, listener: Listener) -> Plan:
    """The destination's plan, checked against the spec, or a new one, published while nobody else can."""
    plan = plans.load(found.storage)
    if plan is None:
        made = vectors.draft(spec, files)
        wait = spec.if_locked == "wait" or spec.num_shards > 1
        with locks.lease(found.storage, names=["plan"], wait=wait, listener=listener):
            plan = plans.load(found.storage)
            if plan is None:
                found.sink.prepare(made)
                found.storage.drop_scratch(lambda: locks.live_owners(found.storage))
                remember_job(made, found.storage)
                plans.publish(found.storage, made)
                return made
    if not plan.is_loaded:
        raise PlanMismatch(
            f"{found.uri}: its vectors were embedded, not loaded", hint="choose another destination with --to"
        )
    plans.check(plan, spec, found.uri)
    check_snapshot(plan, files, found.storage)
    return plan.moved_to(files)
