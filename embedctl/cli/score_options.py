"""The options of rerank and classify that embed has not, and how both commands run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedctl.cli.conduct import Task, conduct
from embedctl.cli.options import MODEL, OPTIONS, OUTPUT, ROWS, Option, spec_of
from embedctl.errors import UsageError
from embedctl.spec import JobSpec

QUERY_COLUMN = "query"
SCORE_OPTIONS: dict[str, Option] = {
    "query_column": Option(panel=ROWS, help="Column of the first text of each pair.", metavar="NAME"),
    "query_template": Option(
        panel=ROWS, help="First text built from columns, like '{title}: {question}'.", metavar="TEMPLATE"
    ),
    "candidates_column": Option(panel=ROWS, help="Column of lists of passages, texts or structs.", metavar="NAME"),
    "candidate_text": Option(
        panel=ROWS, help="Field of the structs that is the text. Default: `text`, or the only one.", metavar="NAME"
    ),
    "candidate_id": Option(
        panel=ROWS,
        help="Field of the structs to write as `candidate_id`. Default: `id`, `_id`, `docid`.",
        metavar="NAME",
    ),
    "top_k": Option(panel=OUTPUT, help="Keep so many candidates of each query, best first. Default: all.", metavar="N"),
    "activation": Option(panel=MODEL, help="What is done to raw scores. Default: what the model says."),
    "threshold": Option(panel=OUTPUT, help="Least score of a label, where a text may have several.", metavar="X"),
}
_NOT_EMBEDDING = {
    "text_column": Option(
        panel=ROWS, help="Column of the texts, or passages. Default: `text`, or the only text column.", metavar="NAME"
    ),
    "text_template": OPTIONS["text_template"],
    "to": Option(
        panel=OUTPUT,
        help="Destination folder. Default: <stem>.scores in the working folder.",
        metavar="FOLDER",
        short="-o",
    ),
    "keep": Option(panel=ROWS, help="Columns to copy beside the scores.", metavar="NAME,…"),
    "model": Option(
        panel=MODEL,
        help="Folder, hub id or name of a reranker or classifier; several as NAME=MODEL.",
        metavar="MODEL",
        short="-m",
    ),
}
_SHARED = frozenset({
    "format", "id_column", "where", "limit", "sample", "on_duplicate", "model", "revision", "prompt_name", "prompt",
    "max_length", "dtype", "on_overlong", "trust_remote_code", "allow_pickle", "offline", "token_count", "truncated",
    "on_error", "max_dead", "time_limit", "if_locked", "device", "attention", "batch_tokens", "threads", "memory",
    "compile", "window_rows", "window_bytes", "slice_bytes", "num_shards", "shard_index", "workers", "log_format",
    "log_file", "metrics_textfile", "notify_url", "notify_on",
})  # fmt: skip


def shared() -> frozenset[str]:
    """What both commands take of embed's options."""
    return _SHARED


def rerank_options() -> dict[str, Option]:
    return {**{k: o for k, o in SCORE_OPTIONS.items() if k != "threshold"}, **_NOT_EMBEDDING}


def classify_options() -> dict[str, Option]:
    own = ("query_column", "query_template", "activation", "threshold")
    return {**{k: SCORE_OPTIONS[k] for k in own}, **_NOT_EMBEDDING}


def scoring_spec(task: str, flags: Mapping[str, Any], inputs: list[str] | None, config: Path | None) -> JobSpec:
    """The validated job. :raises UsageError: a bad value, no input or no model."""
    spec = spec_of({**flags, "task": task}, inputs, config, task)
    if not spec.model:
        raise UsageError(
            f"no model given: embedctl {task} has no default one",
            hint=f"embedctl {task} {spec.inputs[0]} --model MODEL",
        )
    if task == "rerank" and spec.query_column is None and spec.query_template is None:
        spec = replace(spec, query_column=QUERY_COLUMN)
    if spec.to is None:
        from embedctl.job.destination import default_destination

        spec = replace(spec, to=default_destination(spec.inputs).removesuffix("embeddings") + "scores")
    if "://" in str(spec.to):
        raise UsageError(f"--to: {spec.to} is a vector store; scores go into a folder", hint="--to FOLDER")
    return spec


def run(spec: JobSpec, *, as_json: bool, quiet: bool) -> int:
    from embedctl import job

    return conduct(
        Task(command=spec.task, spec=spec, call=lambda listener: job.embed(spec, listener)),
        as_json=as_json,
        quiet=quiet,
    )
