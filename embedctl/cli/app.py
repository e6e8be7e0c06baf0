"""The command. `main` takes an argument vector and gives an exit code; all errors end here, in words.

Nothing heavy is imported on the way to `--help`: each command imports what it runs when it runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import embedctl
from embedctl.cli import bench, doctor, embed, failures, models, plan, retry, search, status, verify
from embedctl.cli import eval as evaluate

EPILOG = """[bold]Start here[/bold]
embedctl embed corpus.parquet

[bold]Exit codes[/bold]
0 done · 1 internal error · 2 usage or config · 3 done, with new dead letters
4 source missing, unreadable or changed · 5 sink failed · 6 plan, recipe or replay mismatch
7 locked · 8 guard refused · 9 limit reached, more to do · 10 encoder failed
11 verify or books failed · 130/143 interrupted
After 5, 7, 9, 10, 130 and 143 the same command goes on where it stopped."""

app = typer.Typer(
    name="embedctl",
    help="Turn a corpus into vectors, exactly once. Kill it at any moment; run it again, and it goes on.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"embedctl {embedctl.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


for _command in (embed, plan, status, verify, retry, bench, search, evaluate, models, doctor):
    _command.add_to(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Results on stdout, everything else on stderr; returns the exit code, never raises."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):  # None where the caller closed it: nobody listens, and the run goes on
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  as long as the process lives
    try:
        with failures.terminable():
            code = app(args=args, prog_name="embedctl", standalone_mode=False)
            sys.stdout.flush()
    except BaseException as exc:
        if isinstance(exc, BrokenPipeError) or isinstance(exc.__context__, BrokenPipeError):
            return _reader_gone()
        return failures.tell(exc, args)
    if code == failures.INTERRUPTED:
        return failures.tell(KeyboardInterrupt(), args)
    return code if isinstance(code, int) else 0


def _reader_gone() -> int:
    """Nothing more can be said on stdout, and the interpreter must not try when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return failures.BROKEN_PIPE
