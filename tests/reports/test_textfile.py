"""The metrics file is what Prometheus's own parser reads, whole at any moment, and shared by several jobs."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedctl.events import Rows, Summary
from embedctl.reports import textfile
from embedctl.reports.outcome import Outcome

BEGAN = datetime(2026, 12, 1, 3, 0, tzinfo=UTC)


def summary(**changes) -> Summary:
    base = {
        "status": "done", "exit_code": 0, "destination": "out", "recipe": "r", "rows": Rows(read=10, written=9, dead=1),
        "units": 9, "tokens": 90, "truncated": 0, "padding": 0.0, "seconds": {"total": 2.0, "encode": 1.5},
    }  # fmt: skip
    return Summary(**(base | changes))


def outcome(job: str = "docs", **changes) -> Outcome:
    base = {
        "job": job, "command": "embed", "destination": "out", "began": BEGAN, "seconds": 2.0, "exit_code": 0,
        "status": "done", "run_rows": 10, "run_tokens": 90, "summary": summary(),
    }  # fmt: skip
    return Outcome(**(base | changes))


def samples(path: Path) -> dict[tuple[str, ...], float]:
    """By (metric, job, other label values), as Prometheus reads them."""
    return {
        (s.name, s.labels["job"], *(v for k, v in s.labels.items() if k != "job")): s.value
        for family in text_string_to_metric_families(path.read_text(encoding="utf-8"))
        for s in family.samples
    }


def test_what_a_good_run_leaves(tmp_path: Path):
    path = tmp_path / "embedctl.prom"
    textfile.write(path, outcome())
    found = samples(path)
    ended = BEGAN.timestamp() + 2
    assert found["embedctl_last_run_timestamp_seconds", "docs"] == ended
    assert found["embedctl_last_success_timestamp_seconds", "docs"] == ended
    assert found["embedctl_last_run_exit_code", "docs"] == 0
    assert found["embedctl_rows", "docs", "written"] == 9
    assert found["embedctl_rows", "docs", "dead"] == 1
    assert found["embedctl_vectors", "docs"] == 9
    assert found["embedctl_last_run_busy_seconds", "docs", "encode"] == 1.5
    families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    assert all(f.type == "gauge" and f.documentation for f in families)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failure_keeps_the_time_of_the_last_good_run(tmp_path: Path):
    path = tmp_path / "embedctl.prom"
    textfile.write(path, outcome())
    good = samples(path)["embedctl_last_success_timestamp_seconds", "docs"]
    later = datetime(2026, 12, 2, 3, 0, tzinfo=UTC)
    textfile.write(path, outcome(began=later, exit_code=5, status="error", error="full", summary=None, run_rows=0))
    found = samples(path)
    assert found["embedctl_last_success_timestamp_seconds", "docs"] == good
    assert found["embedctl_last_run_exit_code", "docs"] == 5
    assert found["embedctl_last_run_timestamp_seconds", "docs"] == later.timestamp() + 2
    assert ("embedctl_rows", "docs", "written") not in found


def test_new_dead_letters_count_as_complete(tmp_path: Path):
    path = tmp_path / "embedctl.prom"
    textfile.write(path, outcome(exit_code=3))
    assert samples(path)["embedctl_last_success_timestamp_seconds", "docs"] == BEGAN.timestamp() + 2


def test_a_run_that_stepped_aside_is_no_success(tmp_path: Path):
    path = tmp_path / "embedctl.prom"
    textfile.write(path, outcome())
    good = samples(path)["embedctl_last_success_timestamp_seconds", "docs"]
    later = datetime(2026, 12, 2, 3, 0, tzinfo=UTC)
    textfile.write(path, outcome(began=later, status="skipped: locked", summary=summary(recipe="", rows=Rows())))
    assert samples(path)["embedctl_last_success_timestamp_seconds", "docs"] == good
    assert samples(path)["embedctl_last_run_exit_code", "docs"] == 0


def test_jobs_share_a_file_even_at_once(tmp_path: Path):
    path = tmp_path / "embedctl.prom"
    path.write_text("foreign_metric 1\nbroken {", encoding="utf-8")
    jobs = [f"job-{n}" for n in range(12)]
    threads = [threading.Thread(target=textfile.write, args=(path, outcome(job))) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = samples(path)
    assert {job for name, job, *_ in found if name == "embedctl_last_run_exit_code"} == set(jobs)
    assert [p.name for p in tmp_path.iterdir()] == ["embedctl.prom"]


@pytest.mark.parametrize("job", ['a"b', "back\\slash", "new\nline", "é💥", "x,y}", 'q",job="other'])
def test_any_name_survives_the_next_run(tmp_path: Path, job: str):
    path = tmp_path / "embedctl.prom"
    textfile.write(path, outcome(job))
    textfile.write(path, outcome("other-job"))
    textfile.write(path, outcome(job, exit_code=3))
    found = samples(path)
    assert found["embedctl_last_run_exit_code", job] == 3
    assert found["embedctl_last_run_exit_code", "other-job"] == 0


def test_a_missing_folder_is_an_error_and_nothing_is_left(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        textfile.write(tmp_path / "no" / "embedctl.prom", outcome())
    (tmp_path / "file.prom").mkdir()
    with pytest.raises(OSError, match="directory"):
        textfile.write(tmp_path / "file.prom", outcome())
    assert [p.name for p in tmp_path.iterdir()] == ["file.prom"]
