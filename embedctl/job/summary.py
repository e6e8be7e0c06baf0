"""How a run ended, from the ledger."""

from __future__ import annotations

import time
from typing import Any

from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK
from embedctl.events import Rows, Summary
from embedctl.job import finalise as ending
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.stages.flow import Meter
from embedctl.storage import STATE, LocalStorage


def summary_of(
    plan: Plan,
    storage: LocalStorage,
    ledger: Ledger,
    meter: Meter,
    began: float,
    *,
    new_dead: int,
    run_tokens: int = 0,
    status: str = "done",
) -> Summary:
    records = ending.live_records(ledger.contents)
    rows = ending.totals(ledger.contents)
    tokens, padded = sum(r.tokens for r in records), sum(r.padded_tokens for r in records)
    details: dict[str, Any] = {"model": plan.model["name"], "dim": plan.outputs[0].dim, "generation": plan.generation}
    details |= {"run_tokens": run_tokens}
    if plan.is_loaded:
        details["loaded"] = True
    if rows.dead:
        details["dead_letters"] = f"{storage.root}/{STATE}/dead_letters.jsonl"
    return Summary(
        status=status,
        exit_code=EXIT_NEW_DEAD if new_dead else EXIT_OK,
        destination=storage.uri,
        recipe=plan.recipe,
        rows=rows,
        units=sum(r.units for r in records),
        tokens=tokens,
        truncated=sum(r.truncated for r in records),
        padding=max(0.0, padded / tokens - 1) if tokens else 0.0,
        seconds={"total": time.monotonic() - began, **meter.busy_s},
        details=details,
    )


def skipped_summary(destination: str) -> Summary:
    """Another run holds the destination, and this one was told to step aside."""
    return Summary(
        status="skipped: locked", exit_code=EXIT_OK, destination=destination, recipe="", rows=Rows(), units=0, tokens=0,
        truncated=0, padding=0.0, seconds={"total": 0.0},
    )  # fmt: skip
