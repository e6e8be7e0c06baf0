"""What a job would do, without doing it: files found, columns and model understood, state of the destination.

Enters: a `JobSpec` and its command. Leaves: JSON-ready facts. Writes nothing, embeds nothing. Refuses what the job
would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedctl import plan as plans
from embedctl.events import Silent
from embedctl.job import finalise as ending
from embedctl.job import planning
from embedctl.job.destination import default_destination, open_destination, state_of, without_secrets
from embedctl.job.run import check_snapshot
from embedctl.job.sync import sync
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sources.files import STDIN, discover
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage


def rehearse(command: str, spec: JobSpec) -> dict[str, Any]:
    """:raises EmbedctlError: what the job would fail with before its first row."""
    if command == "load":  # its inputs may be a folder of ours, which is no corpus
        told: dict[str, Any] = {"destination": _destination(spec)}
        files: Sequence[SourceFile] = ()
    else:
        files = discover(spec.inputs, spec.format)
        told = {"destination": _destination(spec), "files": len(files), "bytes": sum(f.size_bytes for f in files)}
    storage = state_of(spec)
    plan = plans.load(storage) if storage else None
    if storage is None or plan is None:
        return {**told, "would": "start anew", **(_start(command, spec, files))}
    if command == "sync":
        return {**told, "would": "sync", **sync(spec, Silent(), dry_run=True).details}
    return {**told, **_standing(command, spec, files, storage, plan)}


def _destination(spec: JobSpec) -> str:
    return without_secrets(spec.to or default_destination(spec.inputs))


def _start(command: str, spec: JobSpec, files: Sequence[SourceFile]) -> dict[str, Any]:
    """What a new destination would be made of."""
    if "://" not in (spec.to or ""):
        open_destination(spec)
    if command == "load" or STDIN in spec.inputs:
        return {}
    made = planning.draft(spec, files).plan
    columns = {"text": list(made.text_columns), "id": made.id_column, "keep": list(made.keep)}
    return {"columns": columns, "model": made.model["name"]}


def _standing(
    command: str, spec: JobSpec, files: Sequence[SourceFile], storage: LocalStorage, plan: Plan
) -> dict[str, Any]:
    """What would become of a destination that is there."""
    if command == "embed":
        plans.check(plans.load(storage, 1) or plan, spec, storage.uri)
        check_snapshot(plan, files, storage)
    held = [h for h in locks.holders(storage) if h["alive"] is not False]
    done = ending.is_finalised(plan, Ledger(storage).contents)
    would = "do nothing: it is done" if done else "go on where the last run stopped"
    if held:
        would = f"find it locked by process {held[0]['pid']} on {held[0]['host']} (--if-locked {spec.if_locked})"
    return {"would": would, "generation": plan.generation, "model": plan.model["name"]}
