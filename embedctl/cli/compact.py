"""`embedctl compact`: fewer, fuller parts."""

from __future__ import annotations

import typer

from embedctl.cli.console import listening, show_summary
from embedctl.cli.options import Json, Quiet
from embedctl.cli.status import Destination

EPILOG = """[bold]Examples[/bold]
embedctl compact docs.embeddings
embedctl compact docs.embeddings --json"""


def add_to(app: typer.Typer) -> None:
    app.command(name="compact", epilog=EPILOG)(command)


def command(destination: Destination, as_json: Json = False, quiet: Quiet = False) -> int:
    """Merge the small parts that many syncs leave, as a new version; nothing is embedded again."""
    from embedctl.job import versions

    with listening(quiet=quiet) as listener:
        summary = versions.compact(destination, listener)
    return show_summary(summary, as_json=as_json, quiet=quiet)
