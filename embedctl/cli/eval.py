"""`embedctl eval`: retrieval measures of a destination over judged queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from embedctl.cli.console import listening, show_report
from embedctl.cli.options import Json, Quiet, job_options, overrides
from embedctl.cli.search import MACHINE, Exact, Hybrid, Model, Prompt, PromptName, Using
from embedctl.cli.status import Destination, State

EPILOG = """[bold]Examples[/bold]
embedctl eval corpus.embeddings --queries queries.jsonl --qrels qrels.tsv
embedctl eval corpus.int8 --queries queries.jsonl --qrels qrels.tsv --json
embedctl eval qdrant://localhost:6334/docs --queries queries.jsonl --qrels qrels.tsv --hybrid"""
Queries = Annotated[
    Path, typer.Option("--queries", metavar="FILE", help='JSONL of {"id", "text"}.', show_default=False)
]
Qrels = Annotated[
    Path,
    typer.Option(
        "--qrels",
        metavar="FILE",
        help="Judgements: query, document, score apart by tabs, or TREC's four columns.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command(name="eval", epilog=EPILOG)(command)


@job_options(MACHINE)
def command(
    *,
    flags: Mapping[str, Any],
    destination: Destination,
    queries: Queries,
    qrels: Qrels,
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
    """Tell nDCG@10, MRR@10 and recall@100 of a destination, by trec_eval's measures.

    Run it before and after a change of dtype, vector type, dimension or model.
    A document of several chunks counts once, with its best.
    Queries without a relevant document are left out and counted.
    """
    machine = overrides(flags)
    from embedctl.query.evaluate import evaluate
    from embedctl.query.queries import Asking
    from embedctl.query.search import Wanted

    asking = Asking(prompt=prompt, prompt_name=prompt_name, model=model, **machine)
    wanted = Wanted(using=using, hybrid=hybrid, exact=exact, state=state)
    with listening(quiet=quiet) as listener:
        report = evaluate(destination, queries=queries, qrels=qrels, wanted=wanted, asking=asking, listener=listener)
    show_report(report, as_json=as_json)
    return 0
