"""`embedctl models`: the models known by name."""

from __future__ import annotations

import typer

from embedctl.cli.console import show_table
from embedctl.cli.options import Json

EPILOG = """[bold]Examples[/bold]
embedctl models
embedctl models --json"""


COLUMNS = ("name", "here", "dim", "max_length", "size_mb", "licence", "from")


def add_to(app: typer.Typer) -> None:
    app.command(name="models", epilog=EPILOG)(command)


def command(as_json: Json = False) -> int:
    """List the models known by name, and which of them are on this machine.

    Any other sentence-transformers or transformers folder works by its path, and any hub id where there is a hub.
    """
    from embedctl.cli.inventory import known_models

    show_table("models", known_models(), COLUMNS, as_json=as_json)
    return 0
