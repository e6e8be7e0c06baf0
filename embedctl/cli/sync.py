"""`embedctl sync`: nightly re-index, only what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from embedctl.cli.conduct import Task, conduct
from embedctl.cli.options import OPTIONS, Config, Inputs, Json, Quiet, job_options, spec_of

EPILOG = """[bold]Examples[/bold]
embedctl sync corpus/ --to docs.embeddings --id-column doc_id
embedctl sync corpus/ --to docs.embeddings --dry-run
embedctl sync 'shards/*.parquet' --to docs.embeddings --max-delete 10% --min-rows 1000000 --if-locked skip --quiet
embedctl sync corpus/ --to qdrant-edge://./docs.qdrant --json
embedctl sync corpus/ --to docs.embeddings --model new-model --migrate --time-limit 4h

The first time it embeds everything. Give the same flags every night: they are part of what the vectors are.
Exit codes of its own: 8 a guard refused and nothing was changed, 9 the time limit is over and more is to do."""

DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar="", help="Tell what would be added, changed and deleted; change nothing.")
]


def add_to(app: typer.Typer) -> None:
    app.command(name="sync", epilog=EPILOG)(command)


@job_options(OPTIONS.keys() - {"vector_column"})
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Make a destination equal to a corpus: new rows added, changed ones replaced, vanished ones removed.

    Rows are known by their id and compared by content. Files that did not change are not read.
    """
    spec = spec_of(flags, inputs, config, "sync")
    from embedctl import job

    task = Task(
        command="sync",
        spec=spec,
        call=lambda heard: job.sync(spec, heard, dry_run=dry_run),
        calm=not dry_run,
        dry=dry_run,
    )
    return conduct(task, as_json=as_json, quiet=quiet)
