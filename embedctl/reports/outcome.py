"""How one run of one job ended: what every report is made from.

Enters: a job's summary, or what stopped it. Leaves: an `Outcome`, JSON-ready, without secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK
from embedctl.events import SUMMARY_VERSION, Summary

COMPLETE = frozenset({EXIT_OK, EXIT_NEW_DEAD})
"""Exit codes after which the destination holds all it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run. `job`: its name in the job file, else its destination. `began` is in UTC. `run_rows` and `run_tokens`
    are this run's, where `summary` tells the whole destination's. `error` and `hint` say what stopped it; `notes` what
    it said on the way."""

    job: str
    command: str
    destination: str
    began: datetime
    seconds: float
    exit_code: int
    status: str
    run_rows: int = 0
    run_tokens: int = 0
    summary: Summary | None = None
    error: str | None = None
    hint: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether this run saw to it that the destination holds all it should; one that stepped aside did not."""
        return self.exit_code in COMPLETE and not self.status.startswith("skipped")

    @property
    def ended(self) -> datetime:
        return self.began + timedelta(seconds=self.seconds)

    def to_json(self) -> dict[str, Any]:
        """The summary that `--json` prints, or the failure, with what a reader far away needs to place it."""
        told: Mapping[str, Any] = (
            self.summary.to_json()
            if self.summary
            else {"version": SUMMARY_VERSION, "status": self.status, "destination": self.destination}
        )
        failure = {"error": self.error, "hint": self.hint} if self.error else {}
        return {
            **told,
            "exit_code": self.exit_code,
            **failure,
            "job": self.job,
            "command": self.command,
            "began": stamp(self.began),
            "ended": stamp(self.ended),
            "run_rows": self.run_rows,
            "notes": list(self.notes),
        }

    def sentence(self) -> str:
        """The end in one line."""
        if self.error:
            return f"{self.job}: {self.command} failed with exit code {self.exit_code}: {self.error}"
        rows = self.summary.rows if self.summary else None
        counts = (
            f", {rows.read:,} rows read, {rows.written:,} written, {rows.unchanged:,} unchanged, {rows.dead:,} dead"
            if rows and rows.read
            else ""
        )
        return f"{self.job}: {self.status}{counts}, {self.seconds:.1f} s, exit code {self.exit_code}"


def stamp(moment: datetime) -> str:
    """`2026-12-01T03:00:00.123Z` of a moment in UTC."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
