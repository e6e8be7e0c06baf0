"""`embedctl history`: the last runs over a destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from embedctl.cli.console import show_table
from embedctl.cli.options import Json
from embedctl.cli.status import Destination, State
from embedctl.cli.words import duration
from embedctl.errors import UsageError

EPILOG = """[bold]Examples[/bold]
embedctl history corpus.embeddings
embedctl history corpus.embeddings -n 50 --json"""

COLUMNS = ("began", "command", "status", "exit_code", "run_rows", "rows_per_s", "tokens_per_s", "took", "holds")


def add_to(app: typer.Typer) -> None:
    app.command(name="history", epilog=EPILOG)(command)


def command(
    destination: Destination,
    number: Annotated[str, typer.Option("--number", "-n", metavar="RUNS", help="Show so many, newest first.")] = "10",
    state: State = None,
    as_json: Json = False,
) -> int:
    """Tell the last runs: when, what, how many rows and how fast, and how each ended.

    Failed and interrupted runs too; one that was killed is told by its missing end. Nothing else reads this.
    """
    if not number.isdecimal() or not int(number):
        raise UsageError(f"--number: {number!r} is not a count of runs", hint="--number 10")
    from embedctl.job.destination import state_of
    from embedctl.job.history import runs
    from embedctl.spec import JobSpec

    storage = state_of(JobSpec(to=destination, state=state))
    if storage is None:
        raise UsageError(f"{destination}: no embeddings made by embedctl there", hint="embedctl embed corpus.parquet")
    last = runs(storage)[: int(number)]
    show_table("runs", last if as_json else [_shown(run) for run in last], COLUMNS, as_json=as_json)
    return 0


def _shown(run: Mapping[str, Any]) -> dict[str, Any]:
    rows = run["rows"]
    return {
        **run,
        "began": str(run["began"])[:19].replace("T", " ") + " UTC",
        "took": None if run["seconds"] is None else duration(run["seconds"]),
        "holds": rows and _held(rows),
    }


def _held(rows: Mapping[str, int]) -> str:
    dead = f", {rows['dead']:,} dead" if rows["dead"] else ""
    return f"{rows['written'] + rows['unchanged']:,} rows{dead}"
