"""`embedctl search`: the rows nearest to words, or to a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from embedctl.cli.console import listening, show_hits
from embedctl.cli.options import Json, Quiet, job_options, overrides
from embedctl.cli.status import Destination, State
from embedctl.errors import UsageError

EPILOG = """[bold]Examples[/bold]
embedctl search corpus.embeddings "how to merge two dictionaries"
embedctl search corpus.embeddings --like row-17 -k 5
embedctl search corpus.embeddings "tax law" --where "lang = 'en'" --json
embedctl search qdrant://localhost:6334/docs "tax law" --hybrid"""

MACHINE = frozenset({"device", "threads", "offline"})

Prompt = Annotated[
    Optional[str],  # noqa: UP045 - evaluated by Typer at run time
    typer.Option("--prompt", metavar="TEXT", help="Text put before every query.", show_default=False),
]
PromptName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--prompt-name",
        metavar="NAME",
        help="One of the model's own prompts, put before every query. Default: `query` where the model has it, "
        "else the model's default prompt.",
        show_default=False,
    ),
]
Model = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--model", "-m", metavar="MODEL", help="Where the corpus's model lies, if it was moved.", show_default=False
    ),
]
Words = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="QUERY", help="What to look for, in words.", show_default=False),
]
Rows = Annotated[str, typer.Option("-k", metavar="ROWS", help="How many rows to show.")]
Where = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--where",
        metavar="SQL",
        help="Only rows for which this SQL condition over id and kept columns holds; of a store also its own filter.",
        show_default=False,
    ),
]
Like = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--like",
        metavar="ID",
        help="Look for the neighbours of this row; ID#N of its chunk N. Needs no model.",
        show_default=False,
    ),
]
Queries = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--queries", metavar="FILE", help='Many queries in one pass: JSONL of {"id", "text"}.', show_default=False
    ),
]
Using = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--using", metavar="OUTPUT", help="Search this output. Default: the first one.", show_default=False),
]
Hybrid = Annotated[
    bool, typer.Option("--hybrid", metavar="", help="Search dense and sparse outputs and fuse them by rank (RRF).")
]
Exact = Annotated[bool, typer.Option("--exact", metavar="", help="Let a store look at every vector, past its index.")]


def add_to(app: typer.Typer) -> None:
    app.command(name="search", epilog=EPILOG)(command)


@job_options(MACHINE)
def command(
    *,
    flags: Mapping[str, Any],
    destination: Destination,
    query: Words = None,
    k: Rows = "10",
    where: Where = None,
    like: Like = None,
    queries: Queries = None,
    prompt: Prompt = None,
    prompt_name: PromptName = None,
    model: Model = None,
    using: Using = None,
    hybrid: Hybrid = False,
    exact: Exact = False,
    state: State = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show the rows nearest to a query: exactly in a folder of Parquet, by its own index in a store.

    The query is embedded as the corpus was, but with the model's prompt for queries where it has one.
    Reads only; safe beside a running job, of which it sees what is committed.
    """
    _check(destination, (query, like, queries), k, using if hybrid else None)
    machine = overrides(flags)
    from embedctl.query.queries import Asking, Query, read_queries
    from embedctl.query.search import Wanted, search

    asking = Asking(prompt=prompt, prompt_name=prompt_name, model=model, **machine)
    asked = read_queries(queries) if queries else [Query(id="1", text=query)] if query is not None else []
    wanted = Wanted(k=int(k), where=where, using=using, hybrid=hybrid, exact=exact, state=state)
    with listening(quiet=quiet) as listener:
        report = search(destination, asked, like=like, wanted=wanted, asking=asking, listener=listener)
    show_hits(report, as_json=as_json)
    return 0


def _check(destination: str, asked: tuple[object, ...], k: str, using: str | None) -> None:
    if sum(given is not None for given in asked) != 1:
        raise UsageError(
            "give one of: a query, --like, --queries", hint=f"embedctl search {destination} 'what to look for'"
        )
    if not k.isdecimal() or int(k) < 1:
        raise UsageError(f"-k: {k!r} is not a whole number of at least 1", hint="-k 10")
    if using is not None:
        raise UsageError("--using and --hybrid: give one of them")
