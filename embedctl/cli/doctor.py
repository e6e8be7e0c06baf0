"""`embedctl doctor`: what this machine gives a job, and why."""

from __future__ import annotations

import typer

from embedctl.cli.console import show_report
from embedctl.cli.options import Json

EPILOG = """[bold]Examples[/bold]
embedctl doctor
embedctl doctor --json"""


def add_to(app: typer.Typer) -> None:
    app.command(name="doctor", epilog=EPILOG)(command)


def command(as_json: Json = False) -> int:
    """Tell device, instruction sets, attention kernel and why, versions, and models on this machine.

    Works without torch, and says what to install.
    """
    from embedctl.cli.inventory import machine

    show_report(machine(), as_json=as_json)
    return 0
