"""`embedctl embed`: the main job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from embedctl.cli.conduct import Task, conduct
from embedctl.cli.options import OPTIONS, Config, Inputs, Json, Quiet, job_options, spec_of

EPILOG = """[bold]Examples[/bold]
embedctl embed corpus.parquet
embedctl embed 'shards/*.jsonl.zst' --text-column body --id-column doc_id --to out/ --json
embedctl embed corpus.parquet --text-template '{title}\\n\\n{body}' --keep title,url --where "lang = 'en'"
embedctl embed corpus.parquet --limit 1000
embedctl embed photos/ --image-column image --model clip-vit-base-patch32
zcat dump.jsonl.gz | embedctl embed - --format jsonl --to out/

Every option is also a variable (EMBEDCTL_TEXT_COLUMN=body) and a TOML key (text-column = "body").
A flag beats a variable, a variable beats the --config file."""


def add_to(app: typer.Typer) -> None:
    app.command(name="embed", epilog=EPILOG)(command)


@job_options(OPTIONS.keys() - {"vector_column"})
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Embed a corpus into Parquet files of vectors.

    The same command resumes a run that was stopped, and does nothing when all is done.
    """
    spec = spec_of(flags, inputs, config)
    from embedctl import job

    task = Task(command="embed", spec=spec, call=lambda listener: job.embed(spec, listener))
    return conduct(task, as_json=as_json, quiet=quiet)
