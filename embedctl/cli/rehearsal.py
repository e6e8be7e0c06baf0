"""`embedctl run --dry-run`: each job's facts, or what it would fail with."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embedctl.cli import failures
from embedctl.cli.console import say
from embedctl.cli.words import report_lines
from embedctl.errors import EXIT_OK, EmbedctlError, worst

if TYPE_CHECKING:
    from embedctl.job.jobfile import Job


def rehearse(jobs: Sequence[Job], *, as_json: bool) -> int:
    """Show what the jobs would do; the exit code is the gravest they would fail with before their first row."""
    told = [_told(job) for job in jobs]
    code = worst(one["exit_code"] for one in told)
    if as_json:
        say(sys.stdout, [json.dumps({"version": 1, "status": "dry run", "exit_code": code, "jobs": told})])
    else:
        for number, one in enumerate(told):
            say(
                sys.stdout,
                [*([""] if number else []), *report_lines({k: v for k, v in one.items() if k != "exit_code"})],
            )
    return code


def _told(job: Job) -> dict[str, Any]:
    from embedctl.job.rehearsal import rehearse as facts_of

    who = {"job": job.name, "command": job.command, "exit_code": EXIT_OK}
    try:
        with contextlib.chdir(job.folder):
            facts = facts_of(job.command, job.spec)
    except EmbedctlError as exc:
        code, message, hint = failures.words(exc, [job.command])
        return {**who, "exit_code": code, "error": job.hide(message), "hint": hint and job.hide(hint)}
    return {**who, **facts, "destination": job.hide(facts["destination"])}
