"""`embedctl export`: a store's contents as Parquet."""

from __future__ import annotations

from typing import Annotated

import typer

from embedctl.cli.console import listening, show_report
from embedctl.cli.options import Json, Quiet
from embedctl.cli.status import State

EPILOG = """[bold]Examples[/bold]
embedctl export qdrant://localhost:6334/docs --to docs.parquet.d
embedctl export qdrant-edge://./docs.qdrant --to out/ --json"""

Store = Annotated[str, typer.Argument(metavar="STORE", help="URI of a collection or table.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    app.command(name="export", epilog=EPILOG)(command)


def command(
    store: Store,
    to: Annotated[
        str, typer.Option("--to", "-o", metavar="FOLDER", help="New folder for the parts.", show_default=False)
    ],
    state: State = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Write all of a store to a folder of Parquet parts, whoever filled it.

    Columns are the id, the payload and one for each vector. The same command resumes after a kill; at the end the
    store's exact count must be what was written.
    """
    from embedctl.job.export import export

    with listening(quiet=quiet) as listener:
        report = export(store, to, state=state, listener=listener)
    show_report(report, as_json=as_json)
    return 0
