"""`sync`: makes a destination equal to its corpus. What did not change is not embedded again, or not even read.

finish what an earlier sync left -> look (first pass, guards) -> next plan -> execution over the changed rows -> old rows out.
A sync can be killed anywhere; the same command goes on, from the list of changes if there is one, else by looking again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embedctl import failpoints
from embedctl import plan as plans
from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK, Locked, PlanMismatch, UsageError
from embedctl.events import Listener, Rows, Summary
from embedctl.job import finalise as ending
from embedctl.job import planning, run, sync_drop
from embedctl.job.destination import Destination, default_destination, open_destination
from embedctl.job.execution import Execution
from embedctl.job.signals import obeyed
from embedctl.job.summary import skipped_summary, summary_of
from embedctl.job.sync_look import Look, Looker, guard
from embedctl.job.sync_reuse import reuse
from embedctl.job.sync_state import letters_of, state_of
from embedctl.ledger import locks
from embedctl.ledger.segments import RETIRED, Contents, Ledger
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sinks import versions
from embedctl.sources import changes
from embedctl.sources.files import STDIN, discover, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter
from embedctl.storage import STATE

REUSED = ("added", "changed", "payload", "deleted")


def sync(spec: JobSpec, listener: Listener, *, dry_run: bool = False) -> Summary:
    """Bring the destination to the corpus as it is now; the first time, embed it. `dry_run`: only tell.

    :raises GuardRefused: too many rows would go, or too few would stay; nothing was changed.
    :raises PlanMismatch: other settings or another model than the destination's. And all that `embed` raises.
    """
    if STDIN in spec.inputs:
        raise UsageError("sync compares files, and standard input is none", hint="save it to a file first")
    if spec.num_shards > 1:
        raise UsageError("--num-shards: a sync is one run", hint="leave it out, or use --workers")
    try:
        if _is_first(spec):
            return _first(spec, listener, dry_run=dry_run)
        return _sync(spec, listener, dry_run)
    except Locked as exc:
        if spec.if_locked != "skip":
            raise
        listener.note(f"{exc}; stepped aside")
        return skipped_summary(spec.to or default_destination(spec.inputs))


def _is_first(spec: JobSpec) -> bool:
    """Whether the destination is still to be filled for the first time, from the files as they were planned."""
    found = open_destination(spec)
    try:
        plan = plans.load(found.storage) if (found.storage.root / STATE).is_dir() else None
        if plan is None:
            return True
        if plan.generation > 1 or ending.is_finalised(plan, Ledger(found.storage).contents):
            return False
        return not plan.is_stream and snapshot(discover(spec.inputs, spec.format)) == plan.snapshot
    finally:
        found.sink.close()


def _first(spec: JobSpec, listener: Listener, *, dry_run: bool) -> Summary:
    """The first time all rows are new. :raises UsageError: rows have no ids."""
    plan = planning.draft(spec, discover(spec.inputs, spec.format)).plan
    _check_ids(plan)
    if not dry_run:
        summary = run.embed(spec, listener)
        _prepare_next(spec)
        return summary
    counts = {"added": sum(ending.planned_rows(plan).values()) or None, "changed": 0, "payload": 0, "deleted": 0}
    return _told(spec.to or default_destination(spec.inputs), plan, Rows(), {"changes": counts, "examples": {}}, 0.0)


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


def _check_ids(plan: Plan) -> None:
    if plan.id_column is None:
        raise UsageError(
            "sync knows a row by its id, and these rows have none: without one a moved row is a new row",
            hint="--id-column NAME; a corpus that only grows by whole files can be embedded file by file instead",
        )
    if plan.spec["on_duplicate"] == "keep":
        raise UsageError("--on-duplicate: keep leaves ids that stand twice, and sync knows a row by its id",
                         hint="--on-duplicate first")  # fmt: skip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """One sync of a destination that is there, under the lease on planning."""

    spec: JobSpec
    found: Destination
    listener: Listener
    halt: Halt
    lease: locks.Lease
    began: float
    dry_run: bool

    def run(self, files: Sequence[SourceFile]) -> Summary:
        """See `sync`."""
        storage, sink = self.found.storage, self.found.sink
        last = plans.load(storage)
        assert last is not None
        _check_ids(last)
        self._check_settings(last)
        sink.prepare(last)
        contents = Ledger(storage).contents
        earlier: Summary | None = None
        if last.is_sync and not ending.is_finalised(last, contents):
            earlier = self._finish_earlier(last, contents)
        lost = self._mend(last)
        contents = Ledger(storage).contents
        done = ending.is_finalised(last, contents)
        if done and not lost and snapshot(files) == last.snapshot:
            return earlier or self._nothing(last)
        look = Looker(
            spec=self.spec, last=last, contents=contents, sink=sink, storage=storage, listener=self.listener,
            halt=self.halt, began=self.began, lost=lost, dry_run=self.dry_run,
        ).look(files)  # fmt: skip
        guard(look, self.spec)
        if self.dry_run:
            rows = _rows_of(look)
            details = {"changes": dict(look.counts), "examples": dict(look.examples), "generation": last.generation}
            return _told(storage.uri, look.plan, rows, details, time.monotonic() - self.began)
        return self._execute(self._publish(last, look, done))

    def _check_settings(self, last: Plan) -> None:
        """:raises PlanMismatch: other settings or another model than what the destination was made with."""
        hint = (
            "embed all again beside the old and switch when done with --migrate; repeat the old settings; "
            "or choose another destination with --to"
        )
        found = plans.contradictions(last, self.spec)
        if found:
            raise PlanMismatch(f"{self.found.uri} was made with other settings: {'; '.join(found)}", hint=hint)
        for folder, one in zip(planning.open_models(self.spec), last.passes, strict=True):
            if folder.fingerprint() != one.model["fingerprint"]:
                raise PlanMismatch(
                    f"{one.asked}: its weights or tokenizer are not the ones {self.found.uri} was made with", hint=hint
                )

    def _finish_earlier(self, last: Plan, contents: Contents) -> Summary | None:
        """Complete a sync that was stopped after its list of changes was whole, whatever the corpus is now."""
        if self.dry_run:
            raise PlanMismatch(
                f"{self.found.uri}: a sync was begun and not finished, so there is no telling what the next would do",
                hint="finish it first: the same command without --dry-run",
            )
        lost = self.found.sink.reconcile(ending.live_records(contents)).lost
        if any(r.part and r.key.generation < last.generation for r in lost):
            return None  # its old rows cannot be taken out any more: the next generation begins with what is there
        self.listener.note(f"going on with the sync to generation {last.generation}")
        return self._execute(last)

    def _mend(self, last: Plan) -> bool:
        """Bring the ledger to what the destination holds; whether windows are gone, whose rows are new again."""
        storage, sink = self.found.storage, self.found.sink
        ledger = Ledger(storage)
        sink.prepare(last)
        reconciled = sink.reconcile(ending.live_records(ledger.contents))
        if self.dry_run:
            return bool(reconciled.lost)
        if reconciled.adopted:
            ledger.append(*reconciled.adopted)
        if reconciled.lost:
            self.listener.note(f"{len(reconciled.lost)} windows are gone; their rows are embedded again")
            for record in reconciled.lost:
                if record.part is None:  # a store may still hold some of its points
                    changed = replace(record, revision=ledger.contents.next_revision(record.key))
                    sink.drop_rows(record, changed, range(len(sink.rows(record)[0])))
            keys = [[r.key.generation, r.key.slice, r.key.window] for r in reconciled.lost]
            ledger.append({"kind": RETIRED, "keys": keys})
        return bool(reconciled.lost)

    def _nothing(self, last: Plan) -> Summary:
        """No file changed."""
        storage = self.found.storage
        summary = summary_of(last, storage, Ledger(storage), Meter(), self.began, new_dead=0, status="already in sync")
        counts = {**dict.fromkeys(REUSED, 0), "files_read": 0, "files_unread": len(last.files)}
        return replace(summary, details={**summary.details, "changes": counts})

    def _publish(self, last: Plan, look: Look, finished: bool) -> Plan:
        """From here on the sync goes on by itself, whatever becomes of the files."""
        storage, generation = self.found.storage, look.plan.generation
        sync_drop.put_array(storage, generation, sync_drop.DROPS, look.drops)
        sync_drop.put_array(storage, generation, sync_drop.CARRIED, look.carried)
        books = [[f, b.unchanged, b.skipped, b.duplicates] for f, b in sorted(look.books.items())]
        details = {
            "state": look.state.name,
            "windows": [list(w) for w in look.state.windows],
            "watermark": look.watermark,
            "base": {"kind": ending.BASE, "generation": generation, "books": books, "counts": dict(look.counts)},
        }
        listed = changes.Changes(generation=generation, kinds=look.kinds, losers=look.losers, details=details)
        changes.publish(storage, listed)
        failpoints.hit("changes-whole")
        if finished:
            self.found.sink.before_change(last, ending.live_records(Ledger(storage).contents))
        plan = replace(look.plan, slices=changes.slices_of(storage, listed))
        failpoints.hit("before-plan")
        if not plans.publish(storage, plan):
            raise PlanMismatch(f"{storage.uri}: another run has planned generation {generation}", hint="try again")
        failpoints.hit("after-plan")
        return plan

    def _execute(self, plan: Plan) -> Summary:
        """Embed what is to be embedded, take out what is to go, switch readers."""
        storage, sink = self.found.storage, self.found.sink
        ledger = Ledger(storage)
        base = changes.load(storage, plan.generation).details["base"]
        if base not in ledger.contents.events:
            ledger.append(base)
        before = _known(letters_of(storage, _until(ledger.contents, plan.generation)))
        execution = Execution(
            spec=self.spec, plan=plan, storage=storage, sink=sink, listener=self.listener, halt=self.halt,
            lease=self.lease, began=self.began,
        )  # fmt: skip
        reuse(plan, storage, execution.ledger, sink, self._check, execution.committed)
        summary = execution.run(list(plan.slices), None)
        contents = Ledger(storage).contents
        new = _known(letters_of(storage, contents)) - before
        if isinstance(self.spec.keep_versions, int):
            versions.prune(storage, self.spec.keep_versions)
        if ending.is_finalised(plan, contents):
            changes.clear(storage, plan.generation)
        code = EXIT_NEW_DEAD if new and self.spec.max_dead is None else EXIT_OK
        return replace(summary, exit_code=code, details={**summary.details, "changes": base["counts"]})

    def _check(self) -> None:
        self.halt.check()
        self.lease.check()


def _until(contents: Contents, generation: int) -> Contents:
    """The ledger as it was before this generation began."""
    before = Contents()
    before.events = [e for e in contents.events if e["kind"] != ending.BASE or e["generation"] < generation]
    before.windows = {k: r for k, r in contents.windows.items() if k.generation < generation}
    return before


def _known(letters: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """What tells a dead row that was dead before, wherever it stands now."""
    return {(m["id"] or f"{m['file']}:{m['position']}", m["reason"]) for m in letters}


def _rows_of(look: Look) -> Rows:
    books = look.books.values()
    written = sum(look.counts[k] for k in ("added", "changed", "payload"))
    known = {k: sum(getattr(b, k) for b in books) for k in ("unchanged", "skipped", "duplicates")}
    dead = look.counts["dead"]
    return Rows(read=written + sum(known.values()) + dead, written=written, dead=dead, **known)


def _told(destination: str, plan: Plan, rows: Rows, details: dict[str, Any], seconds: float) -> Summary:
    return Summary(
        status="dry run: nothing was changed", exit_code=EXIT_OK, destination=destination, recipe=plan.recipe, rows=rows,
        units=0, tokens=0, truncated=0, padding=0.0, seconds={"total": seconds}, details=details,
    )  # fmt: skip
