"""What a job would do, without doing it: files found, columns and model understood, state of the destination.

Enters: a `JobSpec` and its command. Leaves: JSON-ready facts. Writes nothing, embeds nothing. Refuses what the job
would refuse.
"""

from __future__ import annotations

from typing import Any

from embedctl import plan as plans
from embedctl.job import finalise as ending
from embedctl.job import planning
from embedctl.job.destination import default_destination, open_destination, state_of, without_secrets
from embedctl.job.run import check_snapshot
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.sources.files import STDIN, discover
from embedctl.spec import JobSpec


def rehearse(command: str, spec: JobSpec) -> dict[str, Any]:
    """:raises EmbedctlError: what the job would fail with before its first row."""
    files = discover(spec.inputs, spec.format)
    told: dict[str, Any] = {
        "destination": without_secrets(spec.to or default_destination(spec.inputs)),
        "files": len(files),
        "bytes": sum(f.size_bytes for f in files),
    }
    storage = state_of(spec)
    plan = plans.load(storage) if storage else None
    if storage is None or plan is None:
        if "://" not in (spec.to or ""):
            open_destination(spec)
        if STDIN in spec.inputs:
            return {**told, "would": "start anew"}
        made = planning.draft(spec, files).plan
        columns = {"text": list(made.text_columns), "id": made.id_column, "keep": list(made.keep)}
        return {**told, "would": "start anew", "columns": columns, "model": made.model["name"]}
    if command == "embed":
        plans.check(plans.load(storage, 1) or plan, spec, storage.uri)
        check_snapshot(plan, files, storage)
    held = [h for h in locks.holders(storage) if h["alive"] is not False]
    done = ending.is_finalised(plan, Ledger(storage).contents)
    would = "do nothing: it is done" if done and command == "embed" else "go on" if not done else f"{command} again"
    if held:
        would = f"find it locked by process {held[0]['pid']} on {held[0]['host']} (--if-locked {spec.if_locked})"
    return {**told, "would": would, "generation": plan.generation, "model": plan.model["name"]}
