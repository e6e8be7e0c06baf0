"""`embed`: the one way a job runs, first time, resumed, or already done.

plan (made or found) -> lease on slices -> execution (adopt, pipeline, finalise) -> summary.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from embedctl import plan as plans
from embedctl.errors import Locked, PlanMismatch, SourceChanged
from embedctl.events import Listener, Summary
from embedctl.job import adopt, planning, wiring
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination, default_destination, open_destination
from embedctl.job.execution import Execution
from embedctl.job.replay import Replay
from embedctl.job.signals import obeyed
from embedctl.job.summary import skipped_summary, summary_of
from embedctl.job.swap import embed_swapped
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.models.folder import ModelFolder
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sinks.base import Sink
from embedctl.sinks.parquet import ParquetSink
from embedctl.sources.files import discover, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter
from embedctl.storage import LocalStorage


def embed(spec: JobSpec, listener: Listener) -> Summary:
    """Run the job to its end, or to the first error that must stop it.

    :raises EmbedctlError: see errors.py; what was committed stays, and the same command goes on from there.
    """
    try:
        return _embed(spec, listener) if spec.swap_alias is None else embed_swapped(spec, listener, _embed)
    except Locked as exc:
        if spec.if_locked != "skip":
            raise
        listener.note(f"{exc}; stepped aside")
        return skipped_summary(spec.to or default_destination(spec.inputs))


def _embed(spec: JobSpec, listener: Listener) -> Summary:
    began = time.monotonic()
    halt = Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)):
        files = discover(spec.inputs, spec.format)
        destination = open_destination(spec)
        storage = destination.storage
        with contextlib.ExitStack() as stack:
            stack.callback(storage.drop_own_scratch)
            stack.callback(destination.sink.close)
            plan, folders = _find_or_make(spec, files, destination, listener, halt)
            ledger = Ledger(storage)
            if _is_done(plan, destination.sink, ledger):
                _tidy(plan, destination, listener)
                return summary_of(plan, storage, ledger, Meter(), began, new_dead=0, status="already done")
            mine = [s for s in plan.slices if s.index % spec.num_shards == spec.shard_index]
            lease.append(
                stack.enter_context(
                    locks.lease(
                        storage, slices=[s.index for s in mine], wait=spec.if_locked == "wait", listener=listener
                    )
                )
            )
            execution = Execution(
                spec=spec,
                plan=plan,
                storage=storage,
                sink=destination.sink,
                listener=listener,
                halt=halt,
                lease=lease[0],
                began=began,
            )
            return execution.run(mine, folders)


def _is_done(plan: Plan, sink: Sink, ledger: Ledger) -> bool:
    """Whether there is nothing to do: finished, nothing lost since, and standard input the same as then.

    :raises BooksError, PlanMismatch: parts are gone after a retry; standard input differs.
    """
    if not ending.is_finalised(plan, ledger.contents) or ending.has_lost(plan, sink, ledger.contents):
        return False
    if plan.is_stream and plan.spec["limit"] is None and plan.generation == 1:
        records = ledger.contents.of_generation(1)
        Replay(records).confirm(wiring.blocks_of(plan), plan.files[0], records[-1])
    return True


def _tidy(plan: Plan, destination: Destination, listener: Listener) -> None:
    """Remove parts that a run on another host, overtaken meanwhile, has put beside the finished ones."""
    storage, sink = destination.storage, destination.sink
    if not isinstance(sink, ParquetSink) or not sink.superseded(ending.live_records(Ledger(storage).contents)):
        return
    slices = [s.index for s in plan.slices]
    with locks.lease(storage, names=["plan", "finalise"], slices=slices, listener=listener):
        newest, contents = plans.load(storage), Ledger(storage).contents
        if newest is None or newest.generation != plan.generation or not ending.is_finalised(plan, contents):
            return
        for name in sink.superseded(ending.live_records(contents)):
            listener.note(f"{name} was superseded, and is removed")
            storage.delete(name)


def _find_or_make(
    spec: JobSpec,
    files: Sequence[SourceFile],
    destination: Destination,
    listener: Listener,
    halt: Halt,
) -> tuple[Plan, Sequence[ModelFolder] | None]:
    """The destination's plan, checked against the spec, or a new one, published while nobody else can.

    A new one is only published when the destination can take its outputs.
    """
    storage = destination.storage
    plan = plans.load(storage)
    if plan is None:
        made = planning.draft(spec, files)
        if isinstance(destination.sink, ParquetSink):
            adopt.refuse_foreign(storage, made.plan)
        wait = spec.if_locked == "wait" or spec.num_shards > 1  # shards start together, and planning is soon over
        with locks.lease(storage, names=["plan"], wait=wait, listener=listener):
            halt.check()
            found = plans.load(storage)
            if found is None:
                destination.sink.prepare(made.plan)
                return _publish(made, spec, storage), made.folders
        plan = found
    if plan.is_loaded:
        raise PlanMismatch(
            f"{storage.uri}: its vectors were loaded, not embedded", hint="choose another destination with --to"
        )
    first = plans.load(storage, 1) or plan
    plans.check(first, spec, storage.uri)
    contents = Ledger(storage).contents
    if plan.generation > 1 and not ending.is_finalised(plan, contents):
        what = "sync" if plan.is_sync else "retry"
        command = f"sync {' '.join(plan.inputs)} --to" if plan.is_sync else "retry"
        raise PlanMismatch(
            f"{storage.uri}: a {what} was begun and not finished",
            hint=f"finish it with: embedctl {command} {storage.uri}",
        )
    adopt.refuse_damaged(storage, plan, contents)
    check_snapshot(plan, files, storage)
    return plan.moved_to(files), None


def _publish(made: planning.Draft, spec: JobSpec, storage: LocalStorage) -> Plan:
    """The caller holds the lease on planning."""
    plan = made.plan
    if spec.vector_type in ("int8", "uint8") and not plan.is_stream:
        plan = replace(plan, int8_ranges=planning.int8_ranges(plan, made.folders))
    storage.drop_scratch(lambda: locks.live_owners(storage))
    remember_job(plan, storage)
    plans.publish(storage, plan)
    return plan


def remember_job(plan: Plan, storage: LocalStorage) -> None:
    """Put the job's name into the ledger. :raises PlanMismatch: the ledger is another job's, whose plan is gone."""
    ledger = Ledger(storage)
    others = [e["job"] for e in ledger.contents.events if e["kind"] == "job" and e["job"] != plan.job]
    if others:
        raise PlanMismatch(
            f"{storage.uri}: its plan is gone, and what it holds was made with other settings or files",
            hint="bring .embedctl/plan-0001.json back, or choose another destination with --to",
        )
    ledger.append({"kind": "job", "job": plan.job})


def check_snapshot(plan: Plan, files: Sequence[SourceFile], storage: LocalStorage) -> None:
    if snapshot(files) == plan.snapshot:
        return
    planned, found = {f.uri: f for f in plan.files}, {f.uri: f for f in files}
    changes = [
        f"{len(names)} {what} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in (
            ("new", found.keys() - planned.keys()),
            ("gone", planned.keys() - found.keys()),
            (
                "changed",
                {
                    u
                    for u in found.keys() & planned.keys()
                    if (found[u].size_bytes, found[u].version) != (planned[u].size_bytes, planned[u].version)
                },
            ),
        )
        if names
    ]
    raise SourceChanged(
        f"{storage.uri} was planned over other files: {'; '.join(changes)}",
        hint=f"embedctl sync {' '.join(plan.inputs)} --to {storage.uri}"
        if plan.id_column
        else "put the files back as they were, or start a new job with another --to",
    )
