"""`sync --migrate`: the corpus embedded anew with another model or other settings, beside the old, then switched.

Enters: a destination and settings that are not its own. Leaves: the same destination, made with them, as its next
generation. The new one grows under `.embedctl/next/`, a destination of its own, over as many nights as it takes; only
when it is complete and equal to the corpus are its parts linked in, and readers switched. Refused: stores.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embedctl import failpoints
from embedctl import plan as plans
from embedctl.errors import GuardRefused, UsageError
from embedctl.events import Summary
from embedctl.job import finalise as ending
from embedctl.job import passes, planning
from embedctl.job.destination import Destination
from embedctl.job.execution import Execution
from embedctl.job.nightly import Nightly
from embedctl.job.summary import summary_of
from embedctl.ledger import dead, rows_state
from embedctl.ledger.segments import RETIRED, Ledger
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sinks import versions
from embedctl.sinks.parquet import ParquetSink
from embedctl.sources.files import snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Meter
from embedctl.storage import STATE, LocalStorage

NEXT = f"{STATE}/next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """`nightly`: the sync of the destination as it stands, whose lease is held."""

    nightly: Nightly

    def run(self, last: Plan, files: Sequence[SourceFile]) -> Summary:
        """Go on with what is under way, or begin.

        :raises GuardRefused: the new one would hold far fewer rows. :raises LimitReached: more to do.
        """
        found = self.nightly.found
        if not isinstance(found.sink, ParquetSink):
            raise UsageError(
                f"--migrate: {found.uri} is a store, where the new vectors need a collection of their own",
                hint="embed into another collection with --to, or switch an alias to it with --swap-alias",
            )
        storage = LocalStorage(found.storage.root / NEXT, uri=f"{found.uri} (the next version)")
        beside = Destination(uri=storage.uri, storage=storage, sink=ParquetSink(storage))
        plan = self._begun(storage, last, files)
        spec = replace(self.nightly.spec, migrate=False)
        inner = replace(self.nightly, found=beside, spec=spec)
        if not ending.is_finalised(plan, Ledger(storage).contents) and snapshot(files) == plan.snapshot:
            beside.sink.prepare(plan)
            execution = Execution(
                spec=spec, plan=plan, storage=storage, sink=beside.sink, listener=self.nightly.listener,
                halt=self.nightly.halt, lease=self.nightly.lease, began=self.nightly.began,
            )  # fmt: skip
            execution.run(list(plan.slices), None)
        else:
            inner.run(files)
        return self.take_over(last, storage)

    def _begun(self, storage: LocalStorage, last: Plan, files: Sequence[SourceFile]) -> Plan:
        """The newest plan beside, or a new one; one of other settings is begun again."""
        spec = self.nightly.spec
        plan = plans.load(storage) if (storage.root / STATE).is_dir() else None
        if plan is not None and (plans.contradictions(plan, spec) or self._other_model(plan)):
            self.nightly.listener.note("the migration under way had other settings; it begins again")
            shutil.rmtree(storage.root)
            plan = None
        if plan is not None:
            return plan
        made = planning.draft(spec, files)
        plan = replace(made.plan, generation=last.generation + 1)
        if spec.vector_type in ("int8", "uint8"):
            plan = replace(plan, int8_ranges=planning.int8_ranges(plan, made.folders))
        if plan.id_column is None:
            raise UsageError("sync knows a row by its id, and these rows have none", hint="--id-column NAME")
        Ledger(storage).append({"kind": "job", "job": plan.job}, _first_base(plan.generation))
        plans.publish(storage, plan)
        return plan

    def _other_model(self, plan: Plan) -> bool:
        folders = passes.open_models(self.nightly.spec)
        return any(f.fingerprint() != p.model["fingerprint"] for f, p in zip(folders, plan.passes, strict=True))

    def take_over(self, last: Plan, beside: LocalStorage) -> Summary:
        """The complete one becomes the destination's newest generation; every step can be killed and done again."""
        found, storage = self.nightly.found, self.nightly.found.storage
        plan = plans.load(beside)
        assert plan is not None
        theirs = Ledger(beside).contents
        _guard(ending.totals(Ledger(storage).contents), ending.totals(theirs), self.nightly.spec)
        if ending.is_finalised(last, Ledger(storage).contents):
            found.sink.prepare(last)
            found.sink.before_change(last, ending.live_records(Ledger(storage).contents))
        records = ending.live_records(theirs)
        for record in records:
            if record.part:
                self.nightly.halt.check()
                _link(beside, storage, record.part)
        failpoints.hit("migrate-linked")
        for record in ending.current_dead(theirs):
            _copy_letters(beside, storage, record.key.stem)
        base = ending.base_of(theirs)
        assert base is not None
        first = min([int(base["generation"]), *(r.key.generation for r in records)])
        plans.publish(storage, plan)
        failpoints.hit("migrate-planned")
        ledger = Ledger(storage)
        ranges = [e for e in theirs.events if e["kind"] == "int8_ranges"]
        ledger.append({"kind": RETIRED, "before": first}, base, *ranges, *records)
        found.sink.prepare(plan)
        ending.check_books(plan, ledger.contents, found.sink)
        dead.merge(storage, [(r.key, r.revision) for r in ending.current_dead(ledger.contents)])
        found.sink.finish(plan, ending.live_records(ledger.contents))
        failpoints.hit("migrate-switched")
        ledger.append({"kind": ending.FINALISED, "generation": plan.generation, "round": 0})
        ledger.compact()
        _take_state(beside, storage)
        shutil.rmtree(beside.root, ignore_errors=True)
        versions.prune(storage, self.nightly.spec.keep_versions)
        return summary_of(plan, storage, ledger, Meter(), self.nightly.began, new_dead=0, status="migrated")


def under_way(last: Plan, storage: LocalStorage) -> bool:
    """Whether readers were about to be switched to a complete migration when it was killed."""
    beside = LocalStorage(storage.root / NEXT)
    plan = plans.load(beside) if (beside.root / STATE).is_dir() else None
    return plan is not None and plan.job == last.job and plan.generation == last.generation


def _first_base(generation: int) -> dict[str, object]:
    """The books begin here, although it is not the first generation."""
    return {"kind": ending.BASE, "generation": generation, "books": [], "counts": {}}


def _guard(before: object, after: object, spec: JobSpec) -> None:
    """:raises GuardRefused: the new one holds fewer rows than the guards allow."""
    held, now = _live(before), _live(after)
    text = spec.max_delete
    limit = float(text[:-1]) / 100 * held if text.endswith("%") else int(text)
    if held - now > limit:
        raise GuardRefused(
            f"the migrated corpus holds {now:,} rows, {held - now:,} fewer than before, above --max-delete {text}",
            hint=f"is the corpus whole? if they should go: --max-delete {held - now}",
        )
    if spec.min_rows is not None and now < spec.min_rows:
        raise GuardRefused(f"the migrated corpus holds {now:,} rows, fewer than --min-rows {spec.min_rows}")


def _live(rows: object) -> int:
    return int(getattr(rows, "written")) + int(getattr(rows, "unchanged"))  # noqa: B009


def _link(beside: LocalStorage, storage: LocalStorage, part: str) -> None:
    target = storage.root / part
    if not target.exists():
        os.link(beside.root / part, target)


def _copy_letters(beside: LocalStorage, storage: LocalStorage, stem: str) -> None:
    for entry in beside.list(dead.FOLDER):
        content = beside.read(entry.name)
        if entry.name.rpartition("/")[2].startswith(stem) and content is not None:
            storage.put_if_absent(entry.name, content, mode=0o600)


def _take_state(beside: LocalStorage, storage: LocalStorage) -> None:
    """The state of the rows, so that the next sync need not read them back."""
    rows_state.drop_others(storage, None)
    for entry in beside.list(rows_state.FOLDER):
        content = beside.read(entry.name)
        if content is not None:
            storage.put_if_absent(entry.name, content)
