"""`embedctl run`: the jobs of a job file, one after the other. Made for cron: silent unless something is wrong."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from embedctl.cli import failures
from embedctl.cli.conduct import Task, carry_out
from embedctl.cli.console import say
from embedctl.cli.options import REPORT_OPTIONS, Json, Quiet, job_options
from embedctl.cli.words import aligned, summary_lines
from embedctl.errors import EXIT_CODES, EXIT_OK, RESUMABLE, STOPPED, UsageError, worst
from embedctl.reports.outcome import Outcome

if TYPE_CHECKING:
    from embedctl.job.jobfile import Job

EPILOG = r"""[bold]Examples[/bold]
embedctl run job.toml
embedctl run nightly.toml weekly.toml --json
embedctl run job.toml --only docs --dry-run
embedctl run job.toml --if-locked skip --metrics-textfile /var/lib/node_exporter/embedctl.prom
embedctl run --schema > job.schema.json

A job file has a table \[job.NAME] for each job, with `command` and options as keys, and maybe \[defaults].
${NAME} and ${NAME:-default} are taken from the environment. Relative paths start at the file's folder.
A failed job does not stop the others. The exit code is the gravest of all jobs', in this order, least first:
0, 9, 3, 7, 8, 4, 5, 10, 6, 2, 11, 1, 130, 143."""

JOBFILES = typer.Argument(metavar="JOBFILE", help="TOML files with jobs.", show_default=False)


def add_to(app: typer.Typer) -> None:
    app.command(name="run", epilog=EPILOG)(command)


@job_options(REPORT_OPTIONS | {"if_locked", "offline"})
def command(
    *,
    flags: Mapping[str, Any],
    files: Annotated[Optional[list[Path]], JOBFILES] = None,  # noqa: UP045 - evaluated by Typer at run time
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--only", metavar="NAME", help="Run only the job of this name.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Tell what each job would do; write nothing.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", metavar="", help="Print the JSON Schema of job files, for editors.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the jobs of a job file, all checked before the first starts.

    Off a terminal nothing is said of jobs that went well; --log-format text or --log-file tells all.
    """
    if schema:
        from embedctl.cli.jobschema import job_schema

        say(sys.stdout, [json.dumps(job_schema(), indent=2)])
        return EXIT_OK
    if not files:
        raise UsageError("no job file given", hint="embedctl run job.toml; embedctl init corpus/ writes one")
    from embedctl.job.commands import COMMANDS
    from embedctl.job.jobfile import chosen, read

    jobs = chosen(read(files, flags, COMMANDS), only or [])
    if dry_run:
        from embedctl.cli.rehearsal import rehearse

        return rehearse([_at_home(job) for job in jobs], as_json=as_json)
    return _run_all(jobs, live=sys.stderr.isatty() and not quiet, as_json=as_json)


def _run_all(jobs: Sequence[Job], *, live: bool, as_json: bool) -> int:
    """:raises Told: somebody stopped one job, and so all."""
    outcomes: list[Outcome] = []
    failure: BaseException | None = None
    for job in jobs:
        outcome, failure = _run(_at_home(job), live=live, several=len(jobs) > 1)
        outcomes.append(outcome)
        if outcome.exit_code in STOPPED or (failure is not None and not isinstance(failure, Exception)):
            break
    code = _end(outcomes, [job.name for job in jobs], live=live, as_json=as_json)
    if code in STOPPED and failure is not None:
        raise failures.Told(failure, stdout=True)
    return code


def _at_home(job: Job) -> Job:
    """The job with a destination that is named the same from every folder, where its paths start elsewhere."""
    to = job.spec.to
    if job.folder == Path.cwd() or (to and "://" in to):
        return job
    from embedctl.job.destination import default_destination

    with contextlib.chdir(job.folder):
        to = to or default_destination(job.spec.inputs)
    return replace(job, spec=replace(job.spec, to=str(job.folder / to)))


def _run(job: Job, *, live: bool, several: bool) -> tuple[Outcome, BaseException | None]:
    from embedctl.job.commands import call_of

    if live and several:
        say(sys.stderr, [f"== {job.name}"])
    call = call_of(job.command)
    task = Task(
        command=job.command, spec=job.spec, job=job.name, hide=job.hide, call=lambda heard: call(job.spec, heard)
    )
    with contextlib.chdir(job.folder):
        outcome, failure = carry_out(task, quiet=not live)
    logged = job.spec.log_format is not None and job.spec.log_file is None
    if not logged and (live or outcome.exit_code):
        say(sys.stderr, _told(outcome, failure, with_notes=not live))
    return outcome, failure


def _told(outcome: Outcome, failure: BaseException | None, *, with_notes: bool) -> list[str]:
    """How one job ended, for people."""
    notes = [f"{outcome.job}: note: {note}" for note in outcome.notes] if with_notes else []
    if failure is not None:
        again = "the same command again; it goes on where this one stopped"
        hint = outcome.hint or (again if outcome.exit_code in RESUMABLE else None)
        return [*notes, f"{outcome.job}: error: {outcome.error}", *([f"  try: {hint}"] if hint else [])]
    assert outcome.summary is not None
    return [
        *notes,
        *(f"{outcome.job}: {line}" if not line[0].isspace() else line for line in summary_lines(outcome.summary)),
    ]


def _end(outcomes: Sequence[Outcome], names: Sequence[str], *, live: bool, as_json: bool) -> int:
    code = worst(o.exit_code for o in outcomes)
    left = list(names[len(outcomes) :])
    status = "done" if code == EXIT_OK else "interrupted" if code in STOPPED else "not all well"
    if as_json:
        jobs = [o.to_json() for o in outcomes]
        say(
            sys.stdout, [json.dumps({"version": 1, "status": status, "exit_code": code, "jobs": jobs, "not_run": left})]
        )
    if len(names) > 1 and (live or code):
        cells = [[o.job, o.command, o.status, f"exit code {o.exit_code}"] for o in outcomes]
        cells += [[name, "", "not run", ""] for name in left]
        say(sys.stderr, aligned(cells))
        say(sys.stderr, [f"{status}: exit code {code} ({EXIT_CODES.get(code, '')})"] if code else [])
    return code
