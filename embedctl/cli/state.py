"""`embedctl state`: what embedctl knows of a destination, beside the vectors."""

from __future__ import annotations

import typer

from embedctl.cli.console import listening, show_report
from embedctl.cli.options import Json, Quiet
from embedctl.cli.status import Destination, State

EPILOG = """[bold]Examples[/bold]
embedctl state rebuild qdrant://localhost:6334/docs
embedctl state rebuild corpus.embeddings --json"""


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        name="state", help="Look after what is known of a destination beside its vectors.", no_args_is_help=True,
        epilog=EPILOG,
    )  # fmt: skip
    group.command(name="rebuild", epilog=EPILOG)(rebuild)
    group.callback()(_group)
    app.add_typer(group)


def _group() -> None:
    pass


def rebuild(destination: Destination, state: State = None, as_json: Json = False, quiet: Quiet = False) -> int:
    """Make plan and ledger of a destination again from what it holds, when its state is lost.

    A window of which a vector is missing is done anew by the command that made it. Changes no vector.
    """
    from embedctl.job.rebuild import rebuild

    with listening(quiet=quiet) as listener:
        report = rebuild(destination, state=state, listener=listener)
    show_report(report, as_json=as_json)
    return 0
