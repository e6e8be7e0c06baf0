"""`embedctl versions`: the complete states of a Parquet destination, and the way back to one."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from embedctl.cli.console import listening, show_summary, show_table
from embedctl.cli.options import Json, Quiet
from embedctl.cli.status import Destination

EPILOG = """[bold]Examples[/bold]
embedctl versions docs.embeddings
embedctl versions docs.embeddings --rollback docs__4f1bbad8_12

Readers that resolve DESTINATION/.embedctl/current once see one version whole, whatever runs meanwhile."""

Rollback = Annotated[
    Optional[str],  # noqa: UP045 - evaluated by Typer at run time
    typer.Option("--rollback", metavar="VERSION", help="Go back to this version.", show_default=False),
]


def add_to(app: typer.Typer) -> None:
    app.command(name="versions", epilog=EPILOG)(command)


def command(destination: Destination, rollback: Rollback = None, as_json: Json = False, quiet: Quiet = False) -> int:
    """List the versions of a destination, or go back to one.

    Going back leads readers to the older version at once, and makes it the newest; the next sync starts from it.
    """
    from embedctl.job import versions

    if rollback is not None:
        with listening(quiet=quiet) as listener:
            summary = versions.roll_back(destination, rollback, listener)
        return show_summary(summary, as_json=as_json, quiet=quiet)
    listed = versions.versions(destination)["versions"]
    columns = ("name", "generation", "units", "parts", "size_bytes", "current")
    show_table("versions", listed, columns, as_json=as_json)
    return 0
