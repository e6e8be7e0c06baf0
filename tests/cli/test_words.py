"""Progress, summary and reports, as people read them."""

from __future__ import annotations

import io

import pytest

from embedctl.cli import words
from embedctl.cli.console import PlainListener, share
from embedctl.events import Progress, Rows, Summary


def progress(**changes) -> Progress:
    base = {
        "rows": 1200, "rows_total": 10_000, "resumed_rows": 200, "bytes_read": 5, "bytes_total": 10, "tokens": 50_000,
        "dead": 3, "elapsed_s": 10.0, "busy_s": {"read": 0.5, "tokenize": 1.0, "encode": 9.0, "write": 0.1},
    }  # fmt: skip
    return Progress(**(base | changes))


def summary(**changes) -> Summary:
    base = {
        "status": "done", "exit_code": 0, "destination": "out", "recipe": "r", "rows": Rows(read=10, written=10),
        "units": 10, "tokens": 900, "truncated": 1, "padding": 0.0,
        "seconds": {"total": 2.0, "read": 0.1, "encode": 1.5},
    }  # fmt: skip
    return Summary(**(base | changes))


def test_progress_line():
    # 1,000 rows of this run in 10 s leave 8,800 rows for 88 s.
    assert (
        words.progress_words(progress()) == "1,200/10,000 rows · 5,000 tokens/s · 3 dead · 1m28s left · slowest: encode"
    )


def test_progress_where_little_is_known():
    now = progress(rows=0, rows_total=None, resumed_rows=0, bytes_total=None, tokens=0, dead=0, busy_s={})
    assert words.progress_words(now) == "0 rows · 0 dead"
    assert share(now) == (5, None)


def test_time_left_by_bytes_where_rows_are_not_known():
    assert words.seconds_left(progress(rows_total=None)) == 10.0


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (125, "2m05s"), (12_000, "3h20m")])
def test_duration(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(("num", "text"), [(0, "0 B"), (1023, "1023 B"), (3_355_443, "3.2 MiB"), (2**41, "2.0 TiB")])
def test_size(num, text):
    assert words.size(num) == text


def test_summary_of_a_good_run():
    assert words.summary_lines(summary()) == [
        "done: out",
        "  rows     10 read = 10 written",
        "  vectors  10",
        "  tokens   900 (450/s), 1 truncated, 0.0% padding",
        "  seconds  2.0 (busy: read 0.1, encode 1.5)",
    ]


def test_a_resumed_run_is_not_credited_with_earlier_tokens():
    assert words.summary_lines(summary(details={"run_tokens": 100}))[3].startswith("  tokens   900 (50/s), ")
    assert words.summary_lines(summary(details={"run_tokens": 0}))[3].startswith("  tokens   900, ")


def test_summary_with_dead_rows_says_where_they_are_and_what_next():
    lines = words.summary_lines(
        summary(
            exit_code=3,
            rows=Rows(read=10, written=8, dead=2),
            details={"dead_letters": "out/.embedctl/dead_letters.jsonl"},
        )
    )
    assert lines[1] == "  rows     10 read = 8 written + 2 dead"
    assert lines[-2:] == [
        "  dead     out/.embedctl/dead_letters.jsonl",
        "  try: embedctl status out --dead; after a fix: embedctl retry out",
    ]


def test_summary_of_a_run_with_more_to_do():
    assert words.summary_lines(summary(status="partial", exit_code=9))[-1] == (
        "  try: the same command again; it goes on where this one stopped"
    )


def test_report_lines():
    report = {
        "rows": 1200, "tokens": {"mean": 96.25, "max": 512}, "eta_s": 75.0, "output_bytes": 2048, "done": True,
        "model": None, "locks": [{"owner": "a", "slice": 1}], "inputs": ["a", "b"], "empty": [],
    }  # fmt: skip
    assert words.report_lines(report) == [
        "rows          1,200",
        "tokens        mean 96.25, max 512",
        "eta s         1m15s",
        "output bytes  2.0 KiB",
        "done          yes",
        "model         -",
        "locks         1",
        "              owner a, slice 1",
        "inputs        a, b",
        "empty         none",
    ]


def test_a_report_of_thousands_of_files_stays_short():
    lines = words.report_lines({"files": {f"{n}.parquet": {"read": n} for n in range(5000)}})
    assert len(lines) == words.MOST_LINES + 1
    assert lines[0] == "files 0.parquet   read 0"
    assert lines[-1] == "files             and 4,980 more; --json has all"


def test_checks_lines():
    checks = [
        {"name": "counts", "ok": True, "detail": "10 rows"},
        {"name": "norms", "ok": False, "detail": "row 3"},
        {"name": "sample", "ok": None, "detail": "the source is gone"},
    ]
    assert words.checks_lines({"ok": False, "checks": checks}) == [
        "ok           counts  10 rows",
        "FAILED       norms   row 3",
        "not checked  sample  the source is gone",
        "verify failed",
    ]


def test_plain_progress_is_spaced_by_the_runs_own_clock():
    stream = io.StringIO()
    listener = PlainListener(stream)
    for elapsed_s in (1.0, 9.9, 10.0, 15.0, 20.0):
        listener.progress(progress(elapsed_s=elapsed_s))
    listener.note("smaller batches")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1] == "note: smaller batches"


def test_a_closed_log_does_not_end_the_run():
    stream = io.StringIO()
    stream.close()
    PlainListener(stream).note("nobody listens")
