"""Prometheus metrics of the last run of each job, as a file for node-exporter's textfile collector.

Enters: an `Outcome` and a path (the collector reads `*.prom`). Leaves: the file, swapped whole, so that no scrape sees
half of it. Several jobs may share one file: lines of other jobs are kept as they are, and a failed run keeps the time
of the last good one. Refused: a path whose folder is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from embedctl import __version__
from embedctl.reports.outcome import Outcome

_HELP = {
    "embedctl_last_run_timestamp_seconds": "When the last run of the job ended.",
    "embedctl_last_success_timestamp_seconds": "When a run last ended with exit code 0 or 3.",
    "embedctl_last_run_exit_code": "Exit code of the last run.",
    "embedctl_last_run_duration_seconds": "How long the last run took.",
    "embedctl_last_run_busy_seconds": "How long each stage of the last run worked.",
    "embedctl_last_run_rows": "Rows that the last run read.",
    "embedctl_last_run_tokens": "Tokens that the last run encoded.",
    "embedctl_rows": "Rows of the job by what became of them.",
    "embedctl_vectors": "Vectors in the destination.",
    "embedctl_run_info": "What ran last; always 1.",
}
_SUCCESS = "embedctl_last_success_timestamp_seconds"
_LINE = re.compile(r'^(?P<name>embedctl_\w+)\{(?P<labels>job="(?P<job>(?:[^"\\]|\\.)*)".*)\} (?P<value>\S+)$')

Samples = dict[str, list[tuple[str, str, str]]]
"""Metric -> (job as written, all labels as written, value) of each sample."""


def write(path: Path, outcome: Outcome) -> None:
    """:raises OSError: the folder is missing, or the file cannot be written."""
    with _alone(path.parent):
        samples = _read(path)
        mine = _escaped(outcome.job)
        known = next((v for job, _, v in samples.get(_SUCCESS, []) if job == mine), None)
        kept = {name: [s for s in found if s[0] != mine] for name, found in samples.items()}
        for name, labels, value in _of(outcome, known):
            shown = ",".join([f'job="{mine}"', *(f'{k}="{_escaped(v)}"' for k, v in labels.items())])
            kept.setdefault(name, []).append((mine, shown, value))
        _swap(path, _text(kept))


def _of(outcome: Outcome, last_success: str | None) -> Iterator[tuple[str, Mapping[str, str], str]]:
    ended = repr(round(outcome.ended.timestamp(), 3))
    yield "embedctl_last_run_timestamp_seconds", {}, ended
    if outcome.complete or last_success is not None:
        yield _SUCCESS, {}, ended if outcome.complete else str(last_success)
    yield "embedctl_last_run_exit_code", {}, str(outcome.exit_code)
    yield "embedctl_last_run_duration_seconds", {}, repr(round(outcome.seconds, 3))
    yield "embedctl_last_run_rows", {}, str(outcome.run_rows)
    yield "embedctl_last_run_tokens", {}, str(outcome.run_tokens)
    info = {"command": outcome.command, "destination": outcome.destination, "version": __version__}
    yield "embedctl_run_info", info, "1"
    summary = outcome.summary
    if summary is None:
        return
    for stage, seconds in summary.seconds.items():
        if stage != "total":
            yield "embedctl_last_run_busy_seconds", {"stage": stage}, repr(round(seconds, 3))
    if summary.recipe:  # a run that stepped aside knows nothing of the rows
        for state, count in summary.rows.to_json().items():
            yield "embedctl_rows", {"state": state}, str(count)
        yield "embedctl_vectors", {}, str(summary.units)


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _read(path: Path) -> Samples:
    """What the file holds of ours; anything else in it is dropped."""
    found: Samples = {}
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            match = _LINE.match(line)
            if match and match["name"] in _HELP:
                found.setdefault(match["name"], []).append((match["job"], match["labels"], match["value"]))
    return found


def _text(samples: Samples) -> str:
    lines = []
    for name, help in _HELP.items():
        if samples.get(name):
            lines += [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value}" for _, labels, value in sorted(samples[name])]
    return "\n".join(lines) + "\n"


def _swap(path: Path, text: str) -> None:
    handle, staged = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)  # node-exporter is another user
        os.replace(staged, path)
    except OSError:
        Path(staged).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two jobs that end at once must not undo each other's lines; the folder itself is locked, so nothing is left."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
