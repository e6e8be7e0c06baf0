"""`sync`: makes a destination equal to its corpus. What did not change is not embedded again, or not even read.

finish what an earlier one left -> look (first pass, guards) -> next plan -> run over the changed rows -> old rows out.
It can be killed anywhere; the same command goes on, from the list of changes if there is one, else by looking again.
"""

from __future__ import annotations

import contextlib
import time

from embedctl import plan as plans
from embedctl.errors import GuardRefused, Locked, PlanMismatch, UsageError
from embedctl.events import Listener, Rows, Summary
from embedctl.job import adopt, planning, run
from embedctl.job import finalise as ending
from embedctl.job.destination import default_destination, open_destination, refuse_lost
from embedctl.job.nightly import Nightly, check_ids, told
from embedctl.job.signals import obeyed
from embedctl.job.summary import skipped_summary
from embedctl.job.sync_state import state_of
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.sinks.parquet import ParquetSink
from embedctl.sources.files import STDIN, discover, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt
from embedctl.storage import STATE


def sync(spec: JobSpec, listener: Listener, *, dry_run: bool = False) -> Summary:
    """Bring the destination to the corpus as it is now; the first time, embed it. `dry_run`: only tell.

    :raises GuardRefused: too many rows would go, or too few would stay; nothing was changed.
    :raises PlanMismatch: other settings or another model than the destination's. And all that `embed` raises.
    """
    if STDIN in spec.inputs:
        raise UsageError("sync compares files, and standard input is none", hint="save it to a file first")
    if spec.num_shards > 1:
        raise UsageError("--num-shards: a sync is one run", hint="leave it out, or use --workers")
    if spec.swap_alias is not None:
        return _beside(spec, listener, dry_run=dry_run)
    try:
        if _is_first(spec):
            return _first(spec, listener, dry_run=dry_run)
        return _sync(spec, listener, dry_run)
    except Locked as exc:
        if spec.if_locked != "skip":
            raise
        listener.note(f"{exc}; stepped aside")
        return skipped_summary(spec.to or default_destination(spec.inputs))


def _beside(spec: JobSpec, listener: Listener, *, dry_run: bool) -> Summary:
    """Readers see no mixture where a new collection is filled beside what is served: all rows are embedded again."""
    if dry_run:
        raise UsageError("--dry-run: with --swap-alias all rows are embedded again", hint="leave out --swap-alias")
    return run.embed(spec, listener)


def _is_first(spec: JobSpec) -> bool:
    """Whether the destination is still to be filled for the first time, from the files as they were planned."""
    found = open_destination(spec)
    try:
        plan = plans.load(found.storage) if (found.storage.root / STATE).is_dir() else None
        if plan is None:
            return True
        if plan.is_loaded:
            raise PlanMismatch(
                f"{found.uri}: its vectors were loaded, not embedded", hint="choose another destination with --to"
            )
        if plan.generation > 1 or ending.is_finalised(plan, Ledger(found.storage).contents):
            return False
        return not plan.is_stream and snapshot(discover(spec.inputs, spec.format)) == plan.snapshot
    finally:
        found.sink.close()


def _first(spec: JobSpec, listener: Listener, *, dry_run: bool) -> Summary:
    """The first time all rows are new. :raises UsageError: rows have no ids."""
    plan = planning.draft(spec, discover(spec.inputs, spec.format)).plan
    check_ids(plan)
    counted = sum(ending.planned_rows(plan).values())
    if spec.min_rows is not None and 0 < counted < spec.min_rows:
        raise GuardRefused(
            f"the corpus holds {counted:,} rows, fewer than --min-rows {spec.min_rows}", hint="is the corpus whole?"
        )
    if _taken_over(spec, plan, listener, dry_run=dry_run):
        return _sync(spec, listener, dry_run)
    if not dry_run:
        summary = run.embed(spec, listener)
        _prepare_next(spec)
        return summary
    counts = {"added": sum(ending.planned_rows(plan).values()) or None, "changed": 0, "payload": 0, "deleted": 0}
    return told(spec.to or default_destination(spec.inputs), plan, Rows(), {"changes": counts, "examples": {}}, 0.0)


def _taken_over(spec: JobSpec, draft: Plan, listener: Listener, *, dry_run: bool) -> bool:
    """Whether parts whose state is gone were made a destination again. :raises UsageError: it is a store's."""
    found = open_destination(spec)
    try:
        if not isinstance(found.sink, ParquetSink) and plans.load(found.storage) is None:
            refuse_lost(found)
        if not isinstance(found.sink, ParquetSink) or not adopt.parts_of(found.storage.root):
            return False
        if dry_run:
            raise PlanMismatch(
                f"{found.uri}: its state is gone, so there is no telling what a sync would do",
                hint="the same command without --dry-run takes its parts over",
            )
        with locks.lease(found.storage, names=["plan"], listener=listener):
            taken = plans.load(found.storage) is None and adopt.take_over(found.storage, draft)
        if taken:
            listener.note("its state was gone: its parts are taken over, and the whole corpus is read")
        return taken
    finally:
        found.sink.close()


def _prepare_next(spec: JobSpec) -> None:
    """Write the state of the rows, so that the next sync need not read them back."""
    found = open_destination(spec)
    try:
        plan, contents = plans.load(found.storage), Ledger(found.storage).contents
        if plan is not None and ending.is_finalised(plan, contents):
            found.sink.prepare(plan)
            state_of(plan, contents, found.sink, found.storage)
    finally:
        found.sink.close()
        found.storage.drop_own_scratch()


def _sync(spec: JobSpec, listener: Listener, dry_run: bool) -> Summary:
    began, halt = time.monotonic(), Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)), contextlib.ExitStack() as stack:
        files = discover(spec.inputs, spec.format)
        found = open_destination(spec)
        stack.callback(found.storage.drop_own_scratch)
        stack.callback(found.sink.close)
        last = plans.load(found.storage)
        assert last is not None
        wait = spec.if_locked == "wait"
        slices = [s.index for s in last.slices]
        held = locks.lease(found.storage, names=["plan"], slices=slices, wait=wait, listener=listener)
        lease.append(stack.enter_context(held))
        nightly = Nightly(
            spec=spec, found=found, listener=listener, halt=halt, lease=lease[0], began=began, dry_run=dry_run
        )
        return nightly.run(files)
