"""Log lines, for people and for machines."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from embedctl.errors import UsageError
from embedctl.events import Progress
from embedctl.reports.log import RunLog
from embedctl.reports.outcome import Outcome

FAILED = Outcome(
    job="docs", command="embed", destination="out", began=datetime(2026, 12, 1, 3, tzinfo=UTC), seconds=1.0,
    exit_code=5, status="error", error="the disk\nis full", hint="free some space",
)  # fmt: skip


def progress(elapsed_s: float) -> Progress:
    return Progress(
        rows=5, rows_total=10, resumed_rows=0, bytes_read=0, bytes_total=None, tokens=7, dead=1, elapsed_s=elapsed_s,
        busy_s={"encode": 1.0},
    )  # fmt: skip


def a_run(log: RunLog) -> None:
    log.started("out")
    for elapsed_s in (1.0, 11.0, 12.0, 25.0):
        log.progress(progress(elapsed_s))
    log.note("smaller\nbatches")
    log.ended(FAILED)


def test_json_lines():
    stream = io.StringIO()
    a_run(RunLog(to=stream, as_json=True, job="docs", command="embed", words=lambda now: f"{now.rows} rows"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["started", "progress", "progress", "note", "failed"]
    assert [line["level"] for line in lines] == ["info", "info", "info", "warning", "error"]
    assert all((line["job"], line["command"]) == ("docs", "embed") for line in lines)
    assert all(datetime.fromisoformat(line["time"]).tzinfo for line in lines)
    assert (lines[1]["rows"], lines[1]["rows_total"], lines[1]["bottleneck"]) == (5, 10, "encode")
    assert (lines[-1]["exit_code"], lines[-1]["error"], lines[-1]["hint"]) == (
        5,
        "the disk\nis full",
        "free some space",
    )


def test_text_lines_are_one_line_each(tmp_path: Path):
    path = tmp_path / "embedctl.log"
    a_run(RunLog(to=path, as_json=False, job="docs", command="embed", words=lambda now: f"{now.rows} rows"))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 5
    assert all(
        re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO   |WARNING|ERROR  ) docs: ", line) for line in lines
    )
    assert lines[-1].endswith("embed failed with exit code 5: the disk is full")


def test_a_rotated_file_is_begun_anew_and_never_cut(tmp_path: Path):
    path = tmp_path / "embedctl.log"
    path.write_text("before\n", encoding="utf-8")
    log = RunLog(to=path, as_json=False, job="docs", command="embed", words=str)
    log.note("one")
    path.rename(tmp_path / "embedctl.log.1")
    log.note("two")
    assert (tmp_path / "embedctl.log.1").read_text(encoding="utf-8").splitlines()[0] == "before"
    assert path.read_text(encoding="utf-8").endswith("docs: two\n")


def test_a_log_that_cannot_be_written_is_refused_at_the_start_and_forgiven_later(tmp_path: Path):
    with pytest.raises(UsageError, match=r"--log-file: cannot append to .*no/embedctl\.log: No such file or directory"):
        RunLog(to=tmp_path / "no" / "embedctl.log", as_json=False, job="j", command="embed", words=str)
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RunLog(to=folder / "embedctl.log", as_json=False, job="j", command="embed", words=str)
    (folder / "embedctl.log").unlink()
    folder.rmdir()
    log.note("nobody listens")
