"""`embedctl plan`: what a job would do, before it does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from embedctl.cli.console import listening, show_report
from embedctl.cli.options import OPTIONS, Config, Inputs, Json, Quiet, job_options, spec_of

EPILOG = """[bold]Examples[/bold]
embedctl plan corpus.parquet
embedctl plan 'shards/*.parquet' --model BAAI/bge-small-en-v1.5 --max-length 512 --json"""


def add_to(app: typer.Typer) -> None:
    app.command(name="plan", epilog=EPILOG)(command)


@job_options(OPTIONS.keys() - {"vector_column"})
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Tell rows, token lengths, truncation, slices, time and output size, without embedding.

    Takes the options of `embed`. Writes nothing.
    """
    spec = spec_of(flags, inputs, config, "plan")
    from embedctl import job

    with listening(quiet=quiet) as listener:
        report = job.plan(spec, listener)
    show_report(report, as_json=as_json)
    return 0
