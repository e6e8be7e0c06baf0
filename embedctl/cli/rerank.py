"""`embedctl rerank`: scores of a query with its passages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from embedctl.cli.options import Config, Inputs, Json, Quiet, job_options
from embedctl.cli.score_options import rerank_options, run, scoring_spec, shared

EPILOG = """[bold]Examples[/bold]
embedctl rerank pairs.parquet --query-column q --text-column passage --model BAAI/bge-reranker-base
embedctl rerank runs.jsonl --query-column query --candidates-column hits --top-k 10 --model ./reranker --json
embedctl rerank pairs.parquet --query-template '{title}: {q}' --text-template '{name}\\n{body}' --model ./reranker

A row is a query with one passage, or with a list of candidates: texts, or structs with a text and perhaps an id.
Columns of the result: id, kept columns, score; of candidates one row each, best first, with rank, candidate (its place
in the list, from 0) and candidate_id. A query or passage that is null or empty makes its whole row a dead letter.
Scores are those of sentence-transformers' CrossEncoder, its activation included; --activation none gives raw ones.

The same command resumes a run that was stopped; status, retry and verify take the folder as they take embed's."""


def add_to(app: typer.Typer) -> None:
    app.command(name="rerank", epilog=EPILOG)(command)


@job_options(shared(), rerank_options())
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Score how well passages answer their query, with a cross-encoder or a decoder reranker."""
    return run(scoring_spec("rerank", flags, inputs, config), as_json=as_json, quiet=quiet)
