"""`embedctl verify`: a destination re-read and checked."""

from __future__ import annotations

from typing import Annotated

import typer

from embedctl.cli.console import listening, show_checks
from embedctl.cli.options import Json, Quiet
from embedctl.cli.status import Destination, State
from embedctl.errors import EXIT_OK, BooksError, LimitReached, UsageError

EPILOG = """[bold]Examples[/bold]
embedctl verify corpus.embeddings
embedctl verify corpus.embeddings --sample 500 --json"""


def add_to(app: typer.Typer) -> None:
    app.command(name="verify", epilog=EPILOG)(command)


def command(
    destination: Destination,
    sample: Annotated[
        str, typer.Option("--sample", metavar="ROWS", help="Rows to embed again on the plain path; 0: none.")
    ] = "64",
    state: State = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check counts, ids, norms, NaN and recipe, and embed a random sample again.

    Exits with 11 when a check fails, with 9 when all is well so far and the job is not finished. What cannot be
    checked, as when the source is gone, is told as "not checked".
    """
    if not sample.isdecimal():
        raise UsageError(f"--sample: {sample!r} is not a whole number", hint="--sample 64")
    from embedctl.query.verify import verify

    with listening(quiet=quiet) as listener:
        report = verify(destination, sample=int(sample), state=state, listener=listener)
    show_checks(report, as_json=as_json)
    if not report["ok"]:
        return BooksError.exit_code
    return EXIT_OK if report["finished"] else LimitReached.exit_code
