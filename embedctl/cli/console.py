"""What people see. Progress and summaries go to stderr, results to stdout. The only module that imports rich.

A bar is drawn only on a terminal; elsewhere progress is a plain line at most every ten seconds of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO

from embedctl.cli.words import (
    aligned,
    checks_lines,
    hit_cells,
    hit_columns,
    progress_words,
    report_lines,
    summary_lines,
    table_lines,
)
from embedctl.events import Listener, Progress, Silent, Summary

LINE_EVERY_S = 10.0


class _Stopping(Listener, Protocol):
    def stop(self) -> None: ...


class PlainListener:
    """Progress as lines, for logs. Lines are spaced by the run's own clock."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_s = 0.0

    def progress(self, now: Progress) -> None:
        if now.elapsed_s - self._last_s >= LINE_EVERY_S:
            self._last_s = now.elapsed_s
            self._say(progress_words(now))

    def note(self, message: str) -> None:
        self._say(f"note: {message}")

    def stop(self) -> None:
        pass

    def _say(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # a run does not die because nobody reads its log


class RichListener:
    """Progress as one live line on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True, highlight=False)
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()

    def progress(self, now: Progress) -> None:
        done, total = share(now)
        self._bar.update(self._task, description=progress_words(now), completed=done, total=total)

    def note(self, message: str) -> None:
        self._console.print(f"note: {message}", markup=False, soft_wrap=True)

    def stop(self) -> None:
        self._bar.stop()


def share(now: Progress) -> tuple[float, float | None]:
    """(done, total) in rows, or in bytes where the rows are not known yet; total None where neither is."""
    if now.rows_total:
        return now.rows, now.rows_total
    return now.bytes_read, now.bytes_total


@contextlib.contextmanager
def listening(*, quiet: bool) -> Iterator[Listener]:
    """The listener that fits stderr: a bar on a terminal, lines elsewhere, silence when asked."""
    if quiet:
        yield Silent()
        return
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    listener: _Stopping = RichListener() if live else PlainListener(sys.stderr)
    try:
        yield listener
    finally:
        listener.stop()


def show_summary(summary: Summary, *, as_json: bool, quiet: bool) -> int:
    """The end of a run: words on stderr; the destination, or the object, on stdout. Returns the exit code."""
    if not quiet:
        say(sys.stderr, summary_lines(summary))
    say(sys.stdout, [json.dumps(summary.to_json()) if as_json else summary.destination])
    return summary.exit_code


def show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """A nested report as aligned lines, or as one object."""
    say(sys.stdout, [json.dumps(report)] if as_json else report_lines(report))


def show_checks(report: Mapping[str, Any], *, as_json: bool) -> None:
    """A list of checks, each passed, failed or not checked."""
    say(sys.stdout, [json.dumps(report)] if as_json else checks_lines(report))


def show_table(name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Rows of equal keys: these columns aligned, or all of them as `{"version", NAME: [...]}`."""
    say(sys.stdout, [json.dumps({"version": 1, name: list(rows)})] if as_json else table_lines(rows, columns))


def show_hits(report: Mapping[str, Any], *, as_json: bool) -> None:
    """The hits of each query: a table on a terminal, aligned lines elsewhere, or one object."""
    if as_json:
        say(sys.stdout, [json.dumps(report)])
        return
    for number, query in enumerate(report["queries"]):
        if len(report["queries"]) > 1:
            say(sys.stdout, [*([""] if number else []), f"{query['id']}: {query['text']}"])
        columns = hit_columns(query["hits"])
        cells = [hit_cells(hit, columns) for hit in query["hits"]]
        if not cells:
            say(sys.stdout, ["nothing found"])
        elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            say(sys.stdout, _drawn(columns, cells))
        else:
            say(sys.stdout, aligned([columns, *cells]))


def _drawn(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """A rich table as lines, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in columns:
        number = column in ("rank", "score")
        # An id is there to be copied: folded where it is too long, never cut.
        table.add_column(Text(column), justify="right" if number else "left", no_wrap=number, overflow="fold")
    for line in cells:
        table.add_row(*map(Text, line))
    console = Console(highlight=False)
    with console.capture() as drawn:
        console.print(table)
    return drawn.get().splitlines()


def say(stream: TextIO, lines: Sequence[str]) -> None:
    """Lines, in whatever the stream can encode. A stderr that takes nothing is no reason to fail.

    :raises OSError: stdout cannot be written to.
    """
    encoding = stream.encoding or "utf-8"
    with contextlib.suppress(*((OSError, ValueError) if stream is sys.stderr else ())):
        stream.writelines(f"{line.encode(encoding, 'backslashreplace').decode(encoding)}\n" for line in lines)
        stream.flush()
