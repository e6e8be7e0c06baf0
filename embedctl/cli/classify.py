"""`embedctl classify`: labels of texts, or of pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from embedctl.cli.options import Config, Inputs, Json, Quiet, job_options
from embedctl.cli.score_options import classify_options, run, scoring_spec, shared

EPILOG = """[bold]Examples[/bold]
embedctl classify reviews.parquet --text-column body --model ./sentiment
embedctl classify posts.jsonl --model ./toxicity --threshold 0.3 --keep author --json
embedctl classify pairs.parquet --query-column premise --text-column hypothesis --model ./nli

Columns of the result: id, kept columns, label and score of the likeliest label, and scores of all, in the order of the
model's labels (in the file's metadata). A model of several labels a text gives labels, those with at least --threshold,
and scores. A model of one label gives score alone.
Scores are those of transformers' text-classification pipeline: softmax, sigmoid or neither, by the kind of problem.

The same command resumes a run that was stopped; status, retry and verify take the folder as they take embed's."""


def add_to(app: typer.Typer) -> None:
    app.command(name="classify", epilog=EPILOG)(command)


@job_options(shared(), classify_options())
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Label texts with a classifier: the likeliest label, or all that apply."""
    return run(scoring_spec("classify", flags, inputs, config), as_json=as_json, quiet=quiet)
