"""A run as log lines: text, or one JSON object a line, to stderr or appended to a file.

The file is opened anew for every line, so that whoever rotates it need not tell us. Progress is at most one line every
`LINE_EVERY_S` of the run's own clock. A log that cannot be written later on never ends a run.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from embedctl.errors import UsageError
from embedctl.events import Progress
from embedctl.reports.outcome import Outcome, stamp

LINE_EVERY_S = 10.0


class RunLog:
    """A listener. `to` is a stream, or the file to append to; `words` tells progress in a line."""

    def __init__(
        self, *, to: TextIO | Path, as_json: bool, job: str, command: str, words: Callable[[Progress], str]
    ) -> None:
        """:raises UsageError: the file cannot be appended to."""
        self._to, self._as_json, self._words = to, as_json, words
        self._who = {"job": job, "command": command}
        self._lock = threading.Lock()
        self._last_s = 0.0
        if isinstance(to, Path):
            try:
                to.open("a", encoding="utf-8").close()
            except OSError as exc:
                raise UsageError(
                    f"--log-file: cannot append to {to}: {exc.strerror}", hint="name a file in a folder that exists"
                ) from exc

    @property
    def on_stream(self) -> bool:
        return not isinstance(self._to, Path)

    def started(self, destination: str) -> None:
        self._say("info", "started", f"{self._who['command']} started, to {destination}", {"destination": destination})

    def progress(self, now: Progress) -> None:
        if now.elapsed_s - self._last_s < LINE_EVERY_S:
            return
        self._last_s = now.elapsed_s
        fields: dict[str, Any] = {
            "rows": now.rows,
            "rows_total": now.rows_total,
            "tokens": now.tokens,
            "dead": now.dead,
            "elapsed_s": round(now.elapsed_s, 3),
            "bottleneck": now.bottleneck,
        }
        self._say("info", "progress", self._words(now), fields)

    def note(self, message: str) -> None:
        self._say("warning", "note", message, {})

    def ended(self, outcome: Outcome) -> None:
        level = "error" if outcome.error else "warning" if outcome.exit_code else "info"
        said = {k: v for k, v in outcome.to_json().items() if k not in ("job", "command", "notes")}
        words = f"{outcome.sentence().removeprefix(f'{outcome.job}: ')}"
        self._say(level, "failed" if outcome.error else "finished", words, said)

    def _say(self, level: str, event: str, message: str, fields: dict[str, Any]) -> None:
        now = stamp(datetime.now(UTC))
        if self._as_json:
            line = json.dumps({"time": now, "level": level, "event": event, **self._who, "message": message, **fields})
        else:
            flat = " ".join(message.split())
            line = f"{now} {level.upper():<7} {self._who['job']}: {flat}"
        with self._lock, contextlib.suppress(OSError, ValueError):
            if isinstance(self._to, Path):
                with self._to.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{line}\n")
            else:
                self._to.write(f"{line}\n")
                self._to.flush()
