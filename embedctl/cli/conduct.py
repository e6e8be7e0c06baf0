"""One job, carried out: run, and told to whoever should hear of it: people, log, metrics, telemetry, webhook.

Enters: what to run, as a `Task`. Leaves: an `Outcome` and what stopped it, if anything did. Reports come after the job
and never change how it ended: one that fails is a note on stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embedctl.cli import failures
from embedctl.cli.console import listening, say, show_summary
from embedctl.cli.words import progress_words
from embedctl.errors import STOPPED, EmbedctlError, UsageError
from embedctl.events import Listener, Progress, Summary
from embedctl.reports.log import RunLog
from embedctl.reports.outcome import Outcome
from embedctl.spec import JobSpec

MOST_NOTES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`call` runs the job and gives its summary. `job`: its name, None for the destination's. `hide` takes secrets out
    of text that leaves. `calm`: off a terminal nothing is said of a run that went well, as cron wants it. `dry`: it
    changes nothing, so it leaves no trace either."""

    command: str
    spec: JobSpec
    call: Callable[[Listener], Summary]
    job: str | None = None
    hide: Callable[[str], str] = lambda text: text
    calm: bool = False
    dry: bool = False


@dataclass(slots=True)
class _Ear:
    """Hears a run for all: remembers notes and the last progress, and passes both on, secrets taken out."""

    others: list[Listener]
    hide: Callable[[str], str]
    on_life: Callable[[], None]
    notes: list[str]
    last: Progress | None = None

    def progress(self, now: Progress) -> None:
        self.last = now
        self.on_life()
        for other in self.others:
            other.progress(now)

    def note(self, message: str) -> None:
        message = self.hide(message)
        if len(self.notes) < MOST_NOTES:
            self.notes.append(message)
        for other in self.others:
            other.note(message)


def conduct(task: Task, *, as_json: bool, quiet: bool) -> int:
    """Run one job for one command, and show its end. Quiet runs still say what went wrong.

    :raises BaseException: what stopped the job, after every report.
    """
    calm = task.calm and not as_json and not sys.stderr.isatty()
    quiet = quiet or calm
    outcome, failure = carry_out(task, quiet=quiet)
    if quiet and outcome.exit_code and not _logs_here(task.spec):
        say(sys.stderr, [f"note: {note}" for note in outcome.notes])
    if failure is not None:
        raise failures.Told(failure, stdout=False) if _logs_json_here(task.spec) else failure
    assert outcome.summary is not None
    if calm and not outcome.exit_code:
        return outcome.exit_code
    hushed = (quiet and not outcome.exit_code) or _logs_here(task.spec)
    return show_summary(outcome.summary, as_json=as_json, quiet=hushed)


def carry_out(task: Task, *, quiet: bool) -> tuple[Outcome, BaseException | None]:
    """Run one job and report it. Never raises; a log that cannot be written is a failure before the job begins."""
    from embedctl.job.destination import default_destination, without_secrets
    from embedctl.job.history import Diary

    spec = task.spec
    began, start = datetime.now(UTC), time.monotonic()
    destination = task.hide(without_secrets(spec.to or default_destination(spec.inputs)))
    job = task.job or destination
    log, failure = _log(spec, job, task.command)
    diary = Diary(spec=spec, job=job, command=task.command, began=began)
    begin = _nothing if task.dry else diary.begin
    summary: Summary | None = None
    with listening(quiet=quiet or _logs_here(spec)) as console:
        ear = _Ear([console, *([log] if log else [])], task.hide, begin, [])
        if log:
            log.started(destination)
        begin()
        try:
            summary = None if failure else _hidden(task.call(ear), task.hide)
        except BaseException as exc:
            failure = _without(exc, task.hide)
    outcome = Outcome(
        job=job,
        command=task.command,
        destination=summary.destination if summary else destination,
        began=began,
        seconds=time.monotonic() - start,
        notes=tuple(ear.notes),
        **_own(ear.last),
        **(_end(summary) if summary else _stop(failure, task)),
    )
    if log:
        log.ended(outcome)
    if not task.dry:
        diary.end(outcome)
        _report(spec, outcome, log, diary.trouble)
    return outcome, failure


def _nothing() -> None:
    pass


def _own(last: Progress | None) -> dict[str, Any]:
    return {"run_rows": last.rows - last.resumed_rows, "run_tokens": last.tokens} if last else {}


def _end(summary: Summary) -> dict[str, Any]:
    return {"summary": summary, "exit_code": summary.exit_code, "status": summary.status}


def _stop(failure: BaseException | None, task: Task) -> dict[str, Any]:
    assert failure is not None
    code, message, hint = failures.words(failure, [task.command])
    status = "interrupted" if code in STOPPED else "error"
    return {
        "exit_code": code,
        "status": status,
        "error": task.hide(message) or status,
        "hint": hint and task.hide(hint),
    }


def _report(spec: JobSpec, outcome: Outcome, log: RunLog | None, trouble: str | None) -> None:
    """Metrics, telemetry, webhook: each on its own, none able to stop the next. `trouble`: of the history."""
    from embedctl.reports import notify, otlp, textfile

    _note(log, trouble and f"the history could not be written: {trouble}")
    if spec.metrics_textfile:
        with _noted(log, f"--metrics-textfile: {spec.metrics_textfile}"):
            textfile.write(Path(spec.metrics_textfile), outcome)
    stopped = outcome.exit_code in STOPPED  # whoever stopped it will not wait long
    if otlp.wanted() and not stopped:
        with _noted(log, "telemetry"):
            _note(log, otlp.export(outcome))
    if spec.notify_url and (spec.notify_on == "always" or outcome.exit_code):
        with _noted(log, "--notify-url"):
            bound = {"tries": 1, "timeout_s": 2.0} if stopped else {}
            _note(log, notify.post(spec.notify_url, outcome, **bound))  # type: ignore[arg-type]


@contextlib.contextmanager
def _noted(log: RunLog | None, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
        _note(log, f"{what}: {reason}")


def _note(log: RunLog | None, message: str | None) -> None:
    if message is None:
        return
    if log:
        log.note(message)
    if log is None or not log.on_stream:
        with contextlib.suppress(OSError, ValueError):
            say(sys.stderr, [f"note: {message}"])


def _log(spec: JobSpec, job: str, command: str) -> tuple[RunLog | None, BaseException | None]:
    if not spec.log_file and not spec.log_format:
        return None, None
    to = Path(spec.log_file) if spec.log_file else sys.stderr
    try:
        return RunLog(to=to, as_json=spec.log_format == "json", job=job, command=command, words=progress_words), None
    except UsageError as exc:
        return None, exc


def _logs_here(spec: JobSpec) -> bool:
    """Whether stderr carries log lines, in place of progress and summary."""
    return spec.log_format is not None and spec.log_file is None


def _logs_json_here(spec: JobSpec) -> bool:
    return _logs_here(spec) and spec.log_format == "json"


def _without(exc: BaseException, hide: Callable[[str], str]) -> BaseException:
    if isinstance(exc, EmbedctlError):
        exc.args = tuple(hide(a) if isinstance(a, str) else a for a in exc.args)
        exc.hint = hide(exc.hint) if exc.hint else None
    return exc


def _hidden(summary: Summary, hide: Callable[[str], str]) -> Summary:
    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(v) for v in value]
        return hide(value) if isinstance(value, str) else value

    return replace(summary, destination=hide(summary.destination), details=clean(dict(summary.details)))
