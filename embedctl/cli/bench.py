"""`embedctl bench`: how fast a corpus embeds here, and what would make it faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from embedctl.cli.console import listening, show_report
from embedctl.cli.options import Config, Inputs, Json, Quiet, job_options, spec_of

EPILOG = """[bold]Examples[/bold]
embedctl bench corpus.parquet
embedctl bench 'shards/*.jsonl.zst' --text-column body --model ./my-model --json
embedctl bench corpus.parquet --dtype float32 --rounds 5"""

OPTIONS = (
    "format", "text_column", "text_template", "where", "limit", "model", "revision", "max_length", "dtype", "device",
    "threads", "offline",
)  # fmt: skip
TEXTS = 2000

Rounds = Annotated[int, typer.Option("--rounds", metavar="N", help="Rounds, in turns; medians count.", min=1)]


def add_to(app: typer.Typer) -> None:
    app.command(name="bench", epilog=EPILOG)(command)


@job_options(only=OPTIONS)
def command(
    *,
    flags: Mapping[str, Any],
    inputs: Inputs = None,
    config: Config = None,
    rounds: Rounds = 3,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure tokens/s on a sample of a corpus, beside what else is installed, and advise settings.

    Also tells how near the encoder comes to what this machine can do, and how near its vectors come to float32.
    Writes nothing.
    """
    spec = spec_of(flags, inputs, config, "bench")
    from embedctl.bench import user

    with listening(quiet=quiet) as listener:
        told = user.bench(user.limited(spec, TEXTS), num_rounds=rounds, listener=listener)
    show_report(told if as_json else user.brief(told), as_json=as_json)
    return 0
