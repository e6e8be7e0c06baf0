"""The diary of a destination: bounded, whole after any end, and of no weight."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from embedctl.events import Rows, Summary
from embedctl.job import history
from embedctl.job.destination import state_folder, state_of
from embedctl.job.history import Diary, runs
from embedctl.reports.outcome import Outcome
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

BEGAN = datetime(2026, 12, 1, 3, tzinfo=UTC)
SUMMARY = Summary(
    status="done", exit_code=0, destination="out", recipe="r", rows=Rows(read=10, written=10), units=10, tokens=90,
    truncated=0, padding=0.0, seconds={"total": 2.0},
)  # fmt: skip


def outcome(**changes) -> Outcome:
    base = {
        "job": "docs", "command": "embed", "destination": "out", "began": BEGAN, "seconds": 2.0, "exit_code": 0,
        "status": "done", "run_rows": 10, "run_tokens": 90, "summary": SUMMARY,
    }  # fmt: skip
    return Outcome(**(base | changes))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    (tmp_path / "out" / ".embedctl").mkdir(parents=True)
    return LocalStorage(tmp_path / "out")


def diary(storage: LocalStorage, began: datetime = BEGAN) -> Diary:
    return Diary(spec=JobSpec(to=str(storage.root)), job="docs", command="embed", began=began)


def test_a_run_from_begin_to_end(storage):
    one = diary(storage)
    one.begin()
    one.begin()
    (run,) = runs(storage)
    assert (run["status"], run["ended"], run["pid"]) == ("running", None, os.getpid())
    one.end(outcome())
    (run,) = runs(storage)
    assert (run["status"], run["exit_code"], run["run_rows"], run["rows_per_s"], run["tokens_per_s"]) == (
        "done", 0, 10, 5.0, 45.0,
    )  # fmt: skip
    assert run["rows"]["written"] == 10
    assert one.trouble is None


def test_newest_first_and_bounded(storage, monkeypatch):
    monkeypatch.setattr(history, "KEPT", 5)
    for n in range(9):
        began = BEGAN + timedelta(days=n)
        diary(storage, began).end(outcome(began=began, exit_code=n))
    assert [run["exit_code"] for run in runs(storage)] == [8, 7, 6, 5, 4]
    assert not list(storage.root.glob(".embedctl/tmp/*/*"))


def test_a_run_without_an_end_whose_process_is_gone_was_killed(storage):
    diary(storage).begin()
    path = storage.root / history.FILE
    kept = json.loads(path.read_text())
    kept["runs"][0] |= {"start": "1"}
    path.write_text(json.dumps(kept))
    assert [run["status"] for run in runs(storage)] == ["killed"]
    kept["runs"][0] |= {"host": "elsewhere"}
    path.write_text(json.dumps(kept))
    assert [run["status"] for run in runs(storage)] == ["unknown"]
    kept["runs"][0] |= {"host": history.locks.myself()["host"], "boot": "before"}
    path.write_text(json.dumps(kept))
    diary(storage, BEGAN + timedelta(days=1)).begin()
    assert [r.get("status") for r in json.loads(path.read_text())["runs"]] == ["killed", None]


@pytest.mark.parametrize("content", [b"", b"{", b'{"runs": 3}', b'{"runs": [3, {"id": 1}]}', b"\xff\xfe", b"[]"])
def test_a_damaged_diary_is_begun_anew(storage, content):
    (storage.root / history.FILE).write_bytes(content)
    one = diary(storage)
    one.begin()
    one.end(outcome())
    assert (len(runs(storage)), one.trouble) == (1, None)


def test_no_place_no_entry_and_the_place_may_come_later(tmp_path):
    storage = LocalStorage(tmp_path / "out")
    one = diary(storage)
    one.begin()
    assert not storage.root.exists()
    (storage.root / ".embedctl").mkdir(parents=True)
    one.begin()
    assert len(runs(storage)) == 1


def test_what_cannot_be_written_is_told_and_forgiven(storage):
    (storage.root / history.FILE).mkdir()
    one = diary(storage)
    one.begin()
    one.end(outcome())
    assert one.trouble
    assert str(storage.root) in one.trouble


def test_runs_at_once_lose_no_entry(storage):
    threads = [threading.Thread(target=diary(storage).end, args=(outcome(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs(storage)) == 8


def test_where_the_state_of_a_store_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spec = JobSpec(to="qdrant://me:s3cret@host/docs")
    assert state_of(spec) is None
    folder = state_folder("qdrant://host/docs")
    (folder / ".embedctl").mkdir(parents=True)
    found = state_of(spec)
    assert found is not None
    assert (found.root, found.uri) == (folder, "qdrant://host/docs")
    named = JobSpec(to="qdrant://host/docs", state=str(tmp_path / "mine"))
    assert state_of(named) is None
