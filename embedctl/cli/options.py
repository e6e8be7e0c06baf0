"""The options of a job: one row per `JobSpec` field, so that flags, `EMBEDCTL_*` variables, TOML keys and help agree.

Every option is None when not given; values travel as text and `settings.resolve` brings them to their types, so a bad
value reads the same from a flag, a variable or a file.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from embedctl.errors import UsageError
from embedctl.settings import resolve
from embedctl.spec import JobSpec, flag

ROWS = "Rows and text"
MODEL = "Model"
OUTPUT = "Output"
CHUNKS = "Chunks"
BAD_ROWS = "Bad rows and guards"
SPEED = "Speed"
SYNC = "Sync"
STORES = "Vector stores"
MANY = "Several processes and machines"
REPORTS = "Logs and reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How one field shows on the command line. `short` is a one-letter flag."""

    panel: str
    help: str
    metavar: str = "TEXT"
    short: str | None = None


def _row(panel: str, help: str, metavar: str = "TEXT", short: str | None = None) -> Option:
    return Option(panel=panel, help=help, metavar=metavar, short=short)


OPTIONS: dict[str, Option] = {
    "to": _row(OUTPUT, "Destination folder. Default: <stem>.embeddings in the working folder.", "FOLDER", "-o"),
    "vector_type": _row(OUTPUT, "How vectors are stored. int8 and uint8 ranges come from a sample, once."),
    "output": _row(OUTPUT, "Of dense, sparse, multivector, one or several. Default: the model's first.", "KIND,…"),
    "sparse_top_k": _row(OUTPUT, "Keep only so many of the greatest numbers of a sparse vector.", "N"),
    "sparse_threshold": _row(OUTPUT, "Keep only numbers of sparse vectors greater than this.", "X"),
    "pool_factor": _row(OUTPUT, "Late interaction: merge like tokens, one vector left of so many.", "X"),
    "muvera": _row(OUTPUT, "Late interaction as one dense vector: `default` or `k_sim=5,dim_proj=16,…`.", "SETTINGS"),
    "token_count": _row(OUTPUT, "Also write a column `token_count`."),
    "truncated": _row(OUTPUT, "Also write a column `truncated`."),
    "format": _row(ROWS, "Format of the inputs. Default: by file name."),
    "text_column": _row(ROWS, "Column to embed. Default: `text`, or the only text column.", "NAME"),
    "text_template": _row(ROWS, "Text built from columns, like '{title}\\n\\n{body}'.", "TEMPLATE"),
    "image_column": _row(ROWS, "Column of pictures to embed in place of text: bytes, or paths.", "NAME"),
    "audio_column": _row(ROWS, "Column of sounds to embed in place of text: bytes, or paths.", "NAME"),
    "id_column": _row(ROWS, "Column of ids. Default: `id`, `_id` or `docid`, else file and row.", "NAME"),
    "keep": _row(ROWS, "Columns to copy beside the vectors.", "NAME,…"),
    "vector_column": _row(ROWS, "Column of vectors, or OUTPUT=COLUMN. Default: every column of vectors.", "NAME"),
    "where": _row(ROWS, "Embed only rows for which this SQL condition holds.", "SQL"),
    "limit": _row(ROWS, "Read only this many rows.", "ROWS"),
    "sample": _row(ROWS, "Embed a fixed pseudo-random share of the rows.", "1%|0.01"),
    "on_duplicate": _row(ROWS, "What happens to a row whose id came before."),
    "model": _row(
        MODEL,
        "Name from `embedctl models`, folder, or hub id; several as NAME=MODEL. Default: all-MiniLM-L6-v2.",
        "MODEL",
        "-m",
    ),
    "revision": _row(MODEL, "Branch, tag or commit of a hub model.", "REV"),
    "engine": _row(MODEL, "Who computes: auto, torch, onnx or onnx:FILE, a file of the model's folder.", "ENGINE"),
    "prompt_name": _row(MODEL, "One of the model's own prompts, by name.", "NAME"),
    "prompt": _row(MODEL, "Text put before every document.", "TEXT"),
    "pooling": _row(MODEL, "Pooling, where the model's own is not wanted."),
    "max_length": _row(MODEL, "Longest sequence, special tokens included. Default: the model's.", "TOKENS"),
    "dim": _row(MODEL, "Matryoshka: keep this many dimensions, then renormalise.", "N"),
    "dtype": _row(MODEL, "Compute type; auto is bfloat16 where the hardware has it, else float32."),
    "on_overlong": _row(MODEL, "What happens to a text longer than --max-length."),
    "trust_remote_code": _row(MODEL, "Let the model's folder run its own Python code."),
    "allow_pickle": _row(MODEL, "Load weights from pickle files where there is no safetensors."),
    "offline": _row(MODEL, "Never ask a hub."),
    "chunk": _row(
        CHUNKS, "Cut documents: tokens:N, sentence:N or semantic:N, counted in the model's tokens.", "KIND:TOKENS"
    ),
    "overlap": _row(CHUNKS, "Tokens that neighbouring chunks share.", "TOKENS"),
    "chunk_pool": _row(CHUNKS, "One vector a document: chunks averaged by tokens, renormalised."),
    "on_error": _row(BAD_ROWS, "Set bad rows aside, or stop at the first."),
    "max_dead": _row(BAD_ROWS, "Accept up to this many dead rows (exit 0); stop above it (exit 8).", "N|P%"),
    "max_delete": _row(SYNC, "Refuse to take out more rows than this (exit 8).", "N|P%"),
    "min_rows": _row(SYNC, "Refuse a corpus of fewer rows than this (exit 8).", "ROWS"),
    "updated_column": _row(SYNC, "Take rows that are not newer by this column as unchanged.", "NAME"),
    "keep_versions": _row(SYNC, "Versions to keep under .embedctl/versions.", "N"),
    "migrate": _row(SYNC, "With another model or other settings: embed all again beside the old, then switch."),
    "time_limit": _row(SPEED, "End at a window after this long (exit 9); the same command goes on.", "4h|90m"),
    "if_locked": _row(BAD_ROWS, "What to do when another run holds the destination."),
    "device": _row(SPEED, "cpu, cuda, cuda:1… Default: the best there is.", "DEVICE"),
    "attention": _row(SPEED, "Attention kernel. Default: see `embedctl doctor`.", "KERNEL"),
    "batch_tokens": _row(SPEED, "Tokens in one forward pass.", "TOKENS"),
    "threads": _row(SPEED, "CPU threads. Default: what the cgroup grants.", "N"),
    "memory": _row(SPEED, "Memory to plan for, like 8GiB. Default: the cgroup's.", "SIZE"),
    "compile": _row(SPEED, "CPU kernels compiled for this processor. Default: where a C compiler is found."),
    "window_rows": _row(SPEED, "Most rows in a window, the unit of commit and resume.", "ROWS"),
    "window_bytes": _row(SPEED, "Most raw text in a window.", "SIZE"),
    "slice_bytes": _row(SPEED, "Aim for slices of this many bytes.", "SIZE"),
    "num_shards": _row(MANY, "Split the planned slices among this many runs.", "N"),
    "shard_index": _row(MANY, "Which of them this run is, from 0.", "I"),
    "workers": _row(MANY, "Worker processes on this machine.", "N"),
    "state": _row(STORES, "Folder for plan and ledger of a store. Default: under $XDG_STATE_HOME.", "DIR"),
    "create": _row(STORES, "Make the collection where it does not exist."),
    "distance": _row(STORES, "Distance of a new collection. Default: the model's similarity.", "NAME"),
    "quantization": _row(STORES, "Quantization of a new collection. Default: none.", "NAME"),
    "index": _row(STORES, "Vector index of a new PostgreSQL or LanceDB table. Default: the store's.", "NAME"),
    "index_field": _row(STORES, "Payload field to index in a new collection, and how.", "NAME:KIND"),
    "on_disk": _row(STORES, "A new collection's vectors on disk, or in memory. Default: on disk, sparse in memory."),
    "shards": _row(STORES, "Shards of a new collection. Default: the server's.", "N"),
    "max_points_per_s": _row(STORES, "Write no faster, to spare a collection that is in use.", "POINTS"),
    "swap_alias": _row(
        STORES, "Load into a collection beside what this alias serves; move the alias at the end.", "NAME"
    ),
    "keep_old": _row(STORES, "With --swap-alias: collections to keep of those it served before.", "N"),
    "log_format": _row(REPORTS, "Log lines, with times, in place of progress."),
    "log_file": _row(REPORTS, "Append the log to this file, not to stderr.", "PATH"),
    "metrics_textfile": _row(REPORTS, "Write Prometheus metrics for node-exporter's textfile collector.", "PATH"),
    "notify_url": _row(REPORTS, "POST the summary, as JSON, to this address at the end.", "URL"),
    "notify_on": _row(REPORTS, "When to do so."),
}

REPORT_OPTIONS = frozenset(name for name, option in OPTIONS.items() if option.panel == REPORTS)
"""What a command that does jobs takes, whatever else it takes."""

INPUTS = typer.Argument(metavar="INPUT", help="Files, folders, globs or URIs; - is standard input.", show_default=False)
CONFIG = typer.Option(
    "--config", "-c", metavar="FILE", help="TOML file with any of these options as keys.", show_default=False
)
JSON = typer.Option("--json", metavar="", help="Print one JSON object on stdout.")
QUIET = typer.Option("--quiet", "-q", metavar="", help="No progress and no summary on stderr; errors still show.")

Inputs = Annotated[Optional[list[str]], INPUTS]  # noqa: UP045 - evaluated by Typer at run time
Config = Annotated[Optional[Path], CONFIG]  # noqa: UP045
Json = Annotated[bool, JSON]
Quiet = Annotated[bool, QUIET]


def job_options(
    only: Collection[str] | None = None, more: Mapping[str, Option] | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of the table (or `only` these), gathered into its `flags` keyword. `more`: rows that
    the command has before those of the table, or in place of them."""
    options = {**(more or {}), **{k: o for k, o in OPTIONS.items() if k not in (more or {})}}
    names = [name for name in options if only is None or name in only or name in (more or {})]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
        table = {f.name: f for f in fields(JobSpec)}
        added = [_parameter(table[name], options[name]) for name in names]

        @functools.wraps(command)
        def run(**values: Any) -> int:
            return command(flags={name: _given(values.pop(name)) for name in names}, **values)

        every = sorted([*own, *added], key=lambda p: p.kind)
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        del run.__wrapped__
        return run

    return decorate


def spec_of(flags: Mapping[str, Any], inputs: list[str] | None, config: Path | None, command: str = "embed") -> JobSpec:
    """The validated job. :raises UsageError: a bad value, wherever it came from."""
    spec = resolve({**flags, "inputs": tuple(inputs) if inputs else None}, config=config)
    if not spec.inputs:
        raise UsageError("no input given", hint=f"embedctl {command} corpus.parquet")
    return spec


def overrides(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Only what a flag or an `EMBEDCTL_*` variable says of these options, validated, each in its own type."""
    spec = resolve(flags)
    return {k: getattr(spec, k) for k, v in flags.items() if v is not None or f"EMBEDCTL_{k.upper()}" in os.environ}


def _given(value: Any) -> Any:
    return value or None if isinstance(value, list) else value


def _parameter(field: Field[Any], option: Option) -> inspect.Parameter:
    names = [flag(field.name), *([option.short] if option.short else [])]
    choices: tuple[str, ...] = field.metadata["choices"]
    kind: Any = str | None
    metavar = "NAME" if choices else option.metavar
    if "bool" in str(field.type):
        kind, metavar = bool | None, ""
        if field.default is None:
            names = [f"{names[0]}/--no-{names[0].removeprefix('--')}"]
    elif "tuple" in str(field.type):
        kind = list[str] | None
    shown = typer.Option(
        *names,
        help=_help(field, option),
        metavar=metavar,
        rich_help_panel=option.panel,
        show_default=False,
        autocompletion=_completer(choices) if choices else None,
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, shown]
    )


def _completer(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [c for c in choices if c.startswith(incomplete)]

    return complete


def _help(field: Field[Any], option: Option) -> str:
    """The table's words, then what is allowed and what is the default where the spec says so."""
    choices, default = field.metadata["choices"], _shown_default(field)
    parts = [option.help]
    if len(choices) > 1:
        parts.append(f"One of {', '.join(choices)}.")
    elif choices:
        parts.append(f"Only: {choices[0]}.")
    if default:
        parts.append(f"Default: {default}.")
    return " ".join(parts)


def _shown_default(field: Field[Any]) -> str:
    value = field.default
    if value is MISSING or value is None or isinstance(value, bool) or value == ():
        return ""
    if field.name.endswith("_bytes"):
        return f"{value >> 20}MiB"
    return ",".join(value) if isinstance(value, tuple) else str(value)
