"""`embedctl load`: vectors that are in Parquet already, into a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from embedctl.cli.conduct import Task, conduct
from embedctl.cli.options import REPORT_OPTIONS, Config, Inputs, Json, Quiet, job_options, spec_of

EPILOG = """[bold]Examples[/bold]
embedctl load corpus.embeddings --to qdrant://localhost:6334/docs --create
embedctl load corpus.embeddings --to qdrant://localhost:6334/docs --swap-alias docs
embedctl load vectors.parquet --id-column doc_id --vector-column emb --to qdrant-edge://./docs.qdrant
embedctl load vectors.parquet --vector-column dense=emb --vector-column sparse=weights --keep url --to out/"""

OPTIONS = frozenset({
    "to", "format", "id_column", "keep", "vector_column", "where", "limit", "sample", "on_duplicate", "vector_type",
    "dim", "model", "on_error", "max_dead", "if_locked", "threads", "window_rows", "window_bytes", "slice_bytes",
    "num_shards", "shard_index", "state", "create", "distance", "quantization", "index", "index_field", "on_disk",
    "shards", "max_points_per_s", "swap_alias", "keep_old",
})  # fmt: skip


def add_to(app: typer.Typer) -> None:
    app.command(name="load", epilog=EPILOG)(command)


@job_options(OPTIONS | REPORT_OPTIONS)
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Load vectors that are in Parquet or Arrow files already. Needs no model.

    A folder that embedctl wrote is carried over whole: ids, chunks, kept columns, books and the model's card.
    Of other tables all columns but the vectors are kept, unless --keep says which; a null, wrong-sized, NaN or zero
    vector is a dead letter. The same command resumes, and does nothing when all is done.
    """
    spec = spec_of(flags, inputs, config, "load")
    from embedctl.job.transfer import load

    task = Task(command="load", spec=spec, call=lambda listener: load(spec, listener))
    return conduct(task, as_json=as_json, quiet=quiet)
