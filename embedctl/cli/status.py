"""`embedctl status`: what a destination holds."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from embedctl.cli.console import show_report
from embedctl.cli.options import Json

EPILOG = """[bold]Examples[/bold]
embedctl status corpus.embeddings
embedctl status corpus.embeddings --dead"""

Destination = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="The folder an earlier run wrote to.", show_default=False)
]

State = Annotated[
    Optional[str],  # noqa: UP045 - evaluated by Typer at run time
    typer.Option(
        "--state", metavar="DIR", help="Where a store's state is, if --state was given then.", show_default=False
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command(name="status", epilog=EPILOG)(command)


def command(
    destination: Destination,
    dead: Annotated[
        bool, typer.Option("--dead", metavar="", help="List every dead letter: file, position, id, reason.")
    ] = False,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Tell what is committed, what is dead, whether the job is done, and who holds it.

    Reads only; safe beside a running job.
    """
    from embedctl import job

    report = dict(job.status(destination, state=state))
    if dead:
        report["dead_letters"] = list(job.dead_letters(destination, state=state))
    show_report(report, as_json=as_json)
    return 0
