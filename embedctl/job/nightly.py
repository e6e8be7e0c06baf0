"""One night of a sync: a destination that is there, brought to its corpus as it is now, under a lease.

Enters: the destination and the files. Leaves: the next generation, finished, or a telling of what it would be. Refused:
other settings or another model than the destination's, rows without ids, what the guards refuse.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embedctl import failpoints
from embedctl import plan as plans
from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK, GuardRefused, PlanMismatch, UsageError
from embedctl.events import Listener, Rows, Summary
from embedctl.job import adopt, passes, sync_drop
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination
from embedctl.job.execution import Execution
from embedctl.job.summary import summary_of
from embedctl.job.sync_look import Look, Looker, guard
from embedctl.job.sync_merge import merge
from embedctl.job.sync_reuse import reuse
from embedctl.job.sync_state import letters_of
from embedctl.ledger import locks
from embedctl.ledger.segments import RETIRED, Contents, Ledger
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sinks import versions
from embedctl.sinks.parquet import ParquetSink
from embedctl.sources import changes
from embedctl.sources.files import is_untouched, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter

SMALL_PARTS = 100
"""So many are no reason to advise a compaction."""
REUSED = ("added", "changed", "payload", "deleted")


def check_ids(plan: Plan) -> None:
    if plan.id_column is None:
        raise UsageError(
            "sync knows a row by its id, and these rows have none: without one a moved row is a new row",
            hint="--id-column NAME; a corpus that only grows by whole files can be embedded file by file instead",
        )
    if plan.spec["on_duplicate"] == "keep":
        raise UsageError("--on-duplicate: keep leaves ids that stand twice, and sync knows a row by its id",
                         hint="--on-duplicate first")  # fmt: skip


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
        check_ids(last)
        last = self._restored(last)
        if self._migrates(last):
            from embedctl.job.migrate import Migration

            return Migration(nightly=self).run(last, files)
        self._check_settings(last)
        sink.prepare(last)
        contents = Ledger(storage).contents
        earlier: Summary | None = None
        if last.is_sync and not ending.is_finalised(last, contents):
            earlier = self._finish_earlier(last, contents)
        lost = self._mend(last)
        contents = Ledger(storage).contents
        done = ending.is_finalised(last, contents)
        # Rows that were deleted by id are in the corpus still, if the corpus is to say what there is; and a file of
        # which an unfinished run has embedded the beginning looks as if that were all of it.
        lost = lost or not done or last.targets == () or adopt.is_rebuilt(last, contents)
        if done and not lost and _is_untouched(last, files):
            return earlier or self._nothing(last)
        look = Looker(
            spec=self.spec, last=last, contents=contents, sink=sink, storage=storage, listener=self.listener,
            halt=self.halt, began=self.began, lost=lost, dry_run=self.dry_run,
        ).look(files)  # fmt: skip
        if self.dry_run:
            return self._told(last, look)
        guard(look, self.spec)
        return self.execute(self._publish(last, look, done))

    def _told(self, last: Plan, look: Look) -> Summary:
        """What would be done, also where a guard would refuse it: that is when people ask."""
        details = {"changes": dict(look.counts), "examples": dict(look.examples), "generation": last.generation}
        seconds = time.monotonic() - self.began
        summary = told(self.found.storage.uri, look.plan, _rows_of(look), details, seconds)
        try:
            guard(look, self.spec)
        except GuardRefused as exc:
            self.listener.note(f"a guard would refuse this: {exc}")
            return replace(summary, status="dry run: a guard would refuse this", exit_code=exc.exit_code)
        return summary

    def _migrates(self, last: Plan) -> bool:
        """Whether all is to be embedded again beside the old, or a migration was killed as readers were switched.

        :raises PlanMismatch: that one is to be finished first, with its own settings.
        """
        from embedctl.job.migrate import under_way

        if under_way(last, self.found.storage):
            self._check_settings(last)
            return True
        if not self.spec.migrate or self.dry_run:
            return False
        try:
            self._check_settings(last)
        except PlanMismatch:
            return True
        return False

    def _check_settings(self, last: Plan) -> None:
        """:raises PlanMismatch: other settings or another model than what the destination was made with."""
        hint = (
            "embed all again beside the old and switch when done with --migrate; repeat the old settings; "
            "or choose another destination with --to"
        )
        found = plans.contradictions(last, self.spec)
        if found:
            raise PlanMismatch(f"{self.found.uri} was made with other settings: {'; '.join(found)}", hint=hint)
        for folder, one in zip(passes.open_models(self.spec), last.passes, strict=True):
            if folder.fingerprint() != one.model["fingerprint"]:
                raise PlanMismatch(
                    f"{one.asked}: its weights or tokenizer are not the ones {self.found.uri} was made with", hint=hint
                )

    def _restored(self, last: Plan) -> Plan:
        """The newest plan. :raises BooksError: it, or the ledger, is gone, and is not to be made again here."""
        storage, contents = self.found.storage, Ledger(self.found.storage).contents
        if self.dry_run or not isinstance(self.found.sink, ParquetSink):
            adopt.refuse_damaged(storage, last, contents)
        if not adopt.is_damaged(storage, last, contents):
            return last
        if not self.spec.migrate:
            self._check_settings(last)
        plan, windows = adopt.mend(storage, last)
        what = "ledger" if plan is last else "newest plan"
        self.listener.note(f"its {what} was gone: {windows} windows stand in the parts; the whole corpus is read")
        return plan

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
        return self.execute(last)

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

    def execute(self, plan: Plan) -> Summary:
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
        merge(plan, storage, execution.ledger, sink, self._check)
        reuse(plan, storage, execution.ledger, sink, self._check, execution.committed)
        summary = execution.run(list(plan.slices), None)
        contents = Ledger(storage).contents
        new = _known(letters_of(storage, contents)) - before
        if isinstance(self.spec.keep_versions, int):
            versions.prune(storage, self.spec.keep_versions)
        if ending.is_finalised(plan, contents):
            sync_drop.clear(plan, storage, ending.first_generation(contents))
            self._advise(plan, contents)
        code = EXIT_NEW_DEAD if new and self.spec.max_dead is None else EXIT_OK
        return replace(summary, exit_code=code, details={**summary.details, "changes": base["counts"]})

    def _advise(self, plan: Plan, contents: Contents) -> None:
        """Nights leave small parts behind, and readers open every one."""
        rows = [sum(b.written for b in r.books) for r in ending.live_records(contents) if r.part]
        small = sum(count <= plan.spec["window_rows"] // 2 for count in rows)
        if small > max(SMALL_PARTS, len(rows) // 2):
            self.listener.note(f"{small} of {len(rows)} parts are small: embedctl compact {self.found.uri}")

    def _check(self) -> None:
        self.halt.check()
        self.lease.check()


def _is_untouched(last: Plan, files: Sequence[SourceFile]) -> bool:
    before = {f.uri: f for f in last.files}
    return snapshot(files) == last.snapshot and all(is_untouched(before.get(f.uri), f) for f in files)


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


def told(destination: str, plan: Plan, rows: Rows, details: dict[str, Any], seconds: float) -> Summary:
    return Summary(
        status="dry run: nothing was changed", exit_code=EXIT_OK, destination=destination, recipe=plan.recipe,
        rows=rows, units=0, tokens=0, truncated=0, padding=0.0, seconds={"total": seconds}, details=details,
    )  # fmt: skip
