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
from embedctl.cli import (
    bench,
    classify,
    compact,
    delete,
    doctor,
    embed,
    export,
    failures,
    history,
    init,
    load,
    models,
    plan,
    rerank,
    retry,
    run,
    search,
    state,
    status,
    sync,
    verify,
    versions,
)
from embedctl.cli import eval as evaluate
from embedctl.errors import EXIT_CODES, RESUMABLE, SinkError

_GOES_ON = ", ".join(map(str, sorted(RESUMABLE)))
EPILOG = f"""[bold]Start here[/bold]
embedctl embed corpus.parquet

[bold]Exit codes[/bold]
{" · ".join(f"{code} {what}" for code, what in EXIT_CODES.items()).replace("`", "")}
After {_GOES_ON} the same command goes on where it stopped."""

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


for _command in (
    embed,
    sync,
    versions,
    compact,
    rerank,
    classify,
    plan,
    run,
    init,
    status,
    history,
    verify,
    retry,
    load,
    export,
    bench,
    search,
    evaluate,
    models,
    delete,
    state,
    doctor,
):
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
            return _stdout_gone(failures.BROKEN_PIPE)
        if isinstance(exc, OSError) and _is_stdout_full():
            full = SinkError(f"standard output: {exc.strerror}; the result could not be shown", hint=_AGAIN)
            return _stdout_gone(failures.tell(full, [a for a in args if a != "--json"]))
        return failures.tell(exc, args)
    if code == failures.INTERRUPTED:
        return failures.tell(KeyboardInterrupt(), args)
    return code if isinstance(code, int) else 0


_AGAIN = "point standard output somewhere else, then run the same command again: what is done is not done twice"


def _is_stdout_full() -> bool:
    """Whether nothing can be written there, now as before; what failed to be written is not kept to be tried again."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _stdout_gone(code: int) -> int:
    """Nothing more can be said on stdout, and the interpreter must not try when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
