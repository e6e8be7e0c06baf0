"""`embedctl init`: a commented job file, after a look at the corpus."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from embedctl.cli.console import say
from embedctl.cli.options import Inputs, Json, Quiet
from embedctl.cli.words import size
from embedctl.errors import UsageError

if TYPE_CHECKING:
    from embedctl.job.look import Look

EPILOG = """[bold]Examples[/bold]
embedctl init corpus/
embedctl init 'shards/*.parquet' --to vectors/ --file nightly.toml
embedctl init corpus.jsonl --model BAAI/bge-small-en-v1.5 --force"""

FILE = typer.Option("--file", "-f", metavar="PATH", help="The job file to write.")
TO = typer.Option("--to", "-o", metavar="FOLDER", help="Destination of the job.", show_default=False)
MODEL = typer.Option("--model", "-m", metavar="MODEL", help="Model of the job.", show_default=False)
FORMAT = typer.Option("--format", metavar="NAME", help="Format of the inputs. Default: by name.", show_default=False)
COMMAND = typer.Option("--command", metavar="NAME", help="What the job does.", show_default=False)
FORCE = typer.Option("--force", metavar="", help="Replace a job file that is there.")


def add_to(app: typer.Typer) -> None:
    app.command(name="init", epilog=EPILOG)(command)


def command(
    inputs: Inputs = None,
    file: Annotated[Path, FILE] = Path("job.toml"),
    to: Annotated[Optional[str], TO] = None,  # noqa: UP045 - evaluated by Typer at run time
    model: Annotated[Optional[str], MODEL] = None,  # noqa: UP045
    format: Annotated[Optional[str], FORMAT] = None,  # noqa: UP045
    does: Annotated[Optional[str], COMMAND] = None,  # noqa: UP045
    force: Annotated[bool, FORCE] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Look at a corpus and write a job file that runs as it is, with a comment on every choice.

    Never replaces a file without --force.
    """
    if not inputs:
        raise UsageError("no input given", hint="embedctl init corpus/")
    if file.exists() and not force:
        raise UsageError(f"{file} is there already", hint="embedctl init ... --force replaces it; --file names another")
    from embedctl.job.commands import COMMANDS
    from embedctl.job.look import look

    if does is not None and does not in COMMANDS:
        raise UsageError(f"--command: {does!r} is not one of {', '.join(sorted(COMMANDS))}", hint="--command embed")
    seen = look(inputs, format)
    chosen = model or _model_here()
    does = does or ("sync" if seen.id and not seen.id_repeats and "sync" in COMMANDS else "embed")
    job = {**_job(seen, inputs, file, to, chosen, does), **({"format": format} if format else {})}
    _write(file, "\n".join(_lines(seen, job, file)) + "\n", force=force)
    if not quiet:
        say(sys.stderr, [*_said(seen, job), f"  try: embedctl run {file} --dry-run", f"  try: embedctl run {file}"])
    say(sys.stdout, [json.dumps({"version": 1, "file": str(file), "job": job}) if as_json else str(file)])
    return 0


def _job(seen: Look, inputs: list[str], file: Path, to: str | None, model: str, does: str) -> dict[str, Any]:
    """The keys of the job; paths as they are named from the job file's folder."""
    from embedctl.job.destination import default_destination

    to = to or default_destination(inputs)
    keys: dict[str, Any] = {
        "command": does,
        "inputs": [_from(file, i) for i in inputs],
        "to": to if "://" in to else _from(file, to),
        "text_column": seen.text,
    }
    return {**keys, **({"id_column": seen.id} if seen.id else {}), "model": model}


def _from(file: Path, path: str) -> str:
    if "://" in path or os.path.isabs(path):
        return path
    return path if file.parent == Path() else os.path.relpath(path, file.parent)


def _model_here() -> str:
    """The default model, or the first known one that opens without a hub where that one does not."""
    from embedctl.cli.inventory import known_models
    from embedctl.spec import DEFAULT_MODEL

    here = [row["name"] for row in known_models() if row["here"]]
    return DEFAULT_MODEL if DEFAULT_MODEL in here or not here else str(here[0])


def _said(seen: Look, job: dict[str, Any]) -> list[str]:
    sample = " ".join(seen.sample.split())
    text = sample if len(sample) <= 60 else f"{sample[:59]}…"
    return [
        _files(seen),
        f"  text   {seen.text}: {text}",
        f"  id     {seen.id or 'none: rows are named by file and position'}",
        f"  model  {job['model']}",
        f"  to     {job['to']}",
    ]


def _files(seen: Look) -> str:
    many = "file" if seen.files == 1 else "files"
    return f"{seen.files:,} {many} of {', '.join(seen.formats)}, {size(seen.size_bytes)}"


def _lines(seen: Look, job: dict[str, Any], file: Path) -> list[str]:
    """The file, line by line."""
    return [
        f"# embedctl run {file.name}              runs it; --dry-run tells what it would do",
        "# embedctl run --schema > job.schema.json   is for editors: take one # off the next line then",
        "##:schema ./job.schema.json",
        "# Every option of `embedctl embed --help` is a key. ${NAME} is taken from the environment, $$ is a dollar.",
        "",
        f"[job.{_name(job['to'])}]",
        f"command = {_toml(job['command'])}",
        f"inputs = {_toml(job['inputs'])}  # {_files(seen)}",
        *([f"format = {_toml(job['format'])}"] if "format" in job else []),
        f"to = {_toml(job['to'])}",
        "",
        *_column_lines(seen),
        "",
        f"model = {_toml(job['model'])}  # others: embedctl models",
        '# dtype = "float32"          # default: bfloat16 where the hardware has it',
        '# chunk = "tokens:400"       # several vectors a document; default: one, cut at the model\'s length',
        "",
        '# max-dead = "0.1%"          # so many bad rows are no failure',
        '# if-locked = "skip"         # when the last run still goes on, this one ends with exit code 0',
        '# log-file = "embedctl.log"  # log-format = "json" for machines',
        '# metrics-textfile = "/var/lib/node_exporter/embedctl.prom"',
        '# notify-url = "${EMBEDCTL_HOOK}"',
        '# notify-on = "failure"',
    ]


def _column_lines(seen: Look) -> list[str]:
    lines = [
        f"text-column = {_toml(seen.text)}" + (f"  # or {', '.join(map(repr, seen.texts[:5]))}" if seen.texts else "")
    ]
    if seen.texts:
        template = "\n\n".join(f"{{{n}}}" for n in (seen.texts[0], seen.text))
        lines.append(f"# text-template = {_toml(template)}  # several columns in place of one")
    if seen.id:
        repeats = "  # repeats within the first rows: of rows with one id the first is taken" if seen.id_repeats else ""
        lines.append(f"id-column = {_toml(seen.id)}{repeats}")
    else:
        near = f"{_toml(seen.unique[0])}  # does not repeat in the first {seen.rows:,} rows" if seen.unique else '"…"'
        lines.append(f"# id-column = {near}")
        lines.append("# Without one, rows are named by file and position, and `sync` cannot tell which have changed.")
    if seen.scalars:
        lines.append(f"# keep = {_toml(list(seen.scalars[:6]))}  # copied beside the vectors")
    return [_one_line(line) for line in lines]


def _one_line(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else " " for c in line)


def _name(to: str) -> str:
    """A bare TOML key from the destination's name."""
    stem = re.sub(r"\.embeddings$", "", to.rstrip("/").rpartition("/")[2].partition("?")[0])
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "corpus"


def _toml(value: Any) -> str:
    """A TOML string or list of strings; a dollar that would begin a reference is doubled."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text = json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return text.replace("$", "$$")


def _write(file: Path, text: str, *, force: bool) -> None:
    """Whole or not at all. :raises UsageError: the folder is missing, or the file came to be meanwhile."""
    try:
        handle, staged = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            os.chmod(staged, 0o644)
            if force:
                os.replace(staged, file)
            else:
                os.link(staged, file)
        finally:
            Path(staged).unlink(missing_ok=True)
    except OSError as exc:
        raise UsageError(f"--file: cannot write {file}: {exc.strerror}", hint="name another with --file") from exc
