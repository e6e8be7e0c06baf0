"""`embedctl delete`: rows out of a destination, by id."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from embedctl.cli.console import listening, show_report
from embedctl.cli.options import Json, Quiet
from embedctl.cli.status import Destination, State

EPILOG = """[bold]Examples[/bold]
embedctl delete corpus.embeddings --ids gone.txt --dry-run
embedctl delete qdrant://localhost:6334/docs --ids gone.txt
embedctl delete corpus.embeddings --ids gone.parquet --column doc_id --json"""


def add_to(app: typer.Typer) -> None:
    app.command(name="delete", epilog=EPILOG)(command)


def command(
    destination: Destination,
    ids: Annotated[
        Path,
        typer.Option(
            "--ids",
            metavar="FILE",
            help="Ids, one a line; or Parquet, JSONL, CSV with a column of them.",
            show_default=False,
        ),
    ],
    column: Annotated[
        Optional[str],  # noqa: UP045 - evaluated by Typer at run time
        typer.Option(
            "--column", metavar="NAME", help="That column. Default: `id`, else the first one.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Tell what would go; change nothing.")] = False,
    state: State = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Take rows out of a finished destination, all chunks of each.

    The rows count as skipped from then on: running the job again does not bring them back. A sync does, while they are
    in the corpus. A delete that was killed is finished by the next one.
    """
    from embedctl.job.delete import delete, read_ids

    with listening(quiet=quiet) as listener:
        report = delete(destination, read_ids(ids, column), state=state, dry_run=dry_run, listener=listener)
    show_report(report, as_json=as_json)
    return 0
