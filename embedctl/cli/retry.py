"""`embedctl retry`: the dead letters once more, after a fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import typer

from embedctl.cli.conduct import Task, conduct
from embedctl.cli.options import REPORT_OPTIONS, Json, Quiet, job_options, overrides
from embedctl.cli.status import Destination
from embedctl.settings import resolve
from embedctl.spec import JobSpec

EPILOG = """[bold]Examples[/bold]
embedctl retry corpus.embeddings
embedctl retry corpus.embeddings --batch-tokens 2048 --json"""

CHANGEABLE = frozenset(f.name for f in fields(JobSpec) if f.metadata["kind"] in ("tuning", "policy")) - {
    "window_rows",
    "window_bytes",
    "slice_bytes",
}


def add_to(app: typer.Typer) -> None:
    app.command(name="retry", epilog=EPILOG)(command)


@job_options(CHANGEABLE | REPORT_OPTIONS | {"offline", "state"})
def command(*, flags: Mapping[str, Any], destination: Destination, as_json: Json = False, quiet: Quiet = False) -> int:
    """Embed the dead letters of a destination again, as a new generation.

    Rows that now succeed move from dead to written; the others keep their reason.
    """
    changed = overrides(flags)
    from embedctl import job

    task = Task(
        command="retry",
        spec=resolve({**flags, "to": destination}),
        call=lambda listener: job.retry(destination, changed, listener),
    )
    return conduct(task, as_json=as_json, quiet=quiet)
