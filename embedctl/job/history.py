"""The last runs over a destination: when, what, how many rows, how it ended. A diary for people; nothing else reads it.

Enters: what a run was, as it begins and as it ends. Leaves: `.embedctl/history.json`, the newest `KEPT` runs, changed
by compare-and-swap. A run without an end whose process is gone is one that was killed. Losing the file loses only
memories; a run is never stopped because it cannot be written.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from embedctl.errors import SinkError
from embedctl.job.destination import state_of
from embedctl.ledger import locks
from embedctl.reports.outcome import Outcome, stamp
from embedctl.spec import JobSpec
from embedctl.storage import STATE, LocalStorage, etag_of

FILE = f"{STATE}/history.json"
KEPT = 200
_OWNER = ("host", "boot", "pid", "start")

Run = dict[str, Any]


def runs(storage: LocalStorage) -> list[Run]:
    """The runs, newest first. `status` of one without an end: running, killed, or unknown (on another host)."""
    found = sorted(_read(storage)[0], key=lambda run: str(run["began"]), reverse=True)
    return [{k: v for k, v in _told(run).items() if k not in ("boot", "start")} for run in found]


@dataclass(slots=True, kw_only=True)
class Diary:
    """One run's own entry. Safe from several threads; never raises. `trouble` is the last reason it could not write.

    A first run makes the destination's state folder itself, so `begin` may have to be asked again: cheap, and nothing
    once the entry stands.
    """

    spec: JobSpec
    job: str
    command: str
    began: datetime
    trouble: str | None = None
    _id: str = field(default_factory=lambda: os.urandom(6).hex(), init=False)
    _stands: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def begin(self) -> None:
        """Write that the run has begun, as soon as there is a place for it."""
        if not self._stands and self.trouble is None:
            with self._lock:
                if not self._stands:
                    self._stands = self._write(lambda kept: [*map(_settled, kept), self._entry()])

    def end(self, outcome: Outcome) -> None:
        """Write how it ended; nowhere, where there is no destination, as after a mistyped option."""
        with self._lock:
            mine = {**self._entry(), **_ending(outcome)}
            self._write(lambda kept: [*(run for run in kept if run["id"] != self._id), mine])

    def _entry(self) -> Run:
        me = locks.myself()
        return {
            "id": self._id,
            "job": self.job,
            "command": self.command,
            "began": stamp(self.began),
            "ended": None,
            **{k: me[k] for k in _OWNER},
        }

    def _write(self, change: Callable[[list[Run]], list[Run]]) -> bool:
        try:
            storage = state_of(self.spec)
            if storage is None:
                return False
            try:
                _change(storage, change)
            finally:
                storage.drop_own_scratch()
        except (SinkError, OSError) as exc:
            self.trouble = str(exc)
            return False
        return True


def _ending(outcome: Outcome) -> Run:
    seconds = max(outcome.seconds, 1e-9)
    return {
        "ended": stamp(outcome.ended),
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "seconds": round(outcome.seconds, 3),
        "rows": outcome.summary.rows.to_json() if outcome.summary and outcome.summary.recipe else None,
        "run_rows": outcome.run_rows,
        "run_tokens": outcome.run_tokens,
        "rows_per_s": round(outcome.run_rows / seconds, 1),
        "tokens_per_s": round(outcome.run_tokens / seconds, 1),
        "error": outcome.error,
    }


_UNENDED: Mapping[str, Any] = {
    "status": None,
    "exit_code": None,
    "seconds": None,
    "rows": None,
    "run_rows": None,
    "run_tokens": None,
    "rows_per_s": None,
    "tokens_per_s": None,
    "error": None,
}


def _told(run: Run) -> Run:
    """The entry with a status, whatever it was left with."""
    if run.get("status"):
        return {**_UNENDED, **run}
    alive = locks.alive(run)
    return {**_UNENDED, **run, "status": "unknown" if alive is None else "running" if alive else "killed"}


def _settled(run: Run) -> Run:
    """An entry whose process is gone says so for good: its process id may come back."""
    return {**run, "status": "killed"} if not run.get("status") and locks.alive(run) is False else run


def _read(storage: LocalStorage) -> tuple[list[Run], str | None]:
    """An unreadable diary is begun anew."""
    content = storage.read(FILE)
    found: list[Run] = []
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        found = [r for r in json.loads(content or b"")["runs"] if {"id", "began", *_OWNER} <= r.keys()]
    return found, etag_of(content)


def _change(storage: LocalStorage, change: Callable[[list[Run]], list[Run]]) -> None:
    while True:
        before, etag = _read(storage)
        after = change(before)[-KEPT:]
        lines = ",\n".join(json.dumps(run) for run in after)
        if storage.replace_if_match(FILE, f'{{"version": 1, "runs": [\n{lines}\n]}}\n'.encode(), etag):
            return
