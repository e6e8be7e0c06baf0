"""Several worker processes: same bytes as one, a killed worker's slices taken over, never a hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import assert_same_after_resume, parts, run
from tests.resume.conftest import write_corpus


def arguments(corpus: Path, *more: str) -> list[str]:
    return ["embed", str(corpus), "--window-rows", "32", "--slice-bytes", "4096", *more]


def children(pid: int) -> list[int]:
    """Worker processes of a run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", ["parquet", "tiny"])
def test_workers_give_the_bytes_of_one_process(kind: str, tmp_path: Path) -> None:
    corpus = write_corpus(kind, tmp_path / "in")
    alone, crew = tmp_path / "alone", tmp_path / "crew"
    model = ["--model", "fake:dim=8"]
    assert run([*arguments(corpus, *model), "--to", str(alone)]).returncode == 3
    done = run([*arguments(corpus, *model, "--workers", "3"), "--to", str(crew), "--json"])
    assert done.returncode == 3, done.stderr
    assert parts(crew) == parts(alone)
    assert json.loads(done.stdout)["run_tokens"] > 0


def test_a_killed_worker_is_replaced_by_the_others(tmp_path: Path) -> None:
    corpus = write_corpus("tiny", tmp_path / "in")
    alone, crew = tmp_path / "alone", tmp_path / "crew"
    model = ["--model", "fake:dim=8,sleep_ms=120"]
    process = subprocess.Popen(
        [sys.executable, "-m", "embedctl", *arguments(corpus, *model, "--workers", "2", "--to", str(crew))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(crew.glob("*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 3, stderr
    assert "died (signal 9); its slices go to the others" in stderr
    assert run([*arguments(corpus, *model), "--to", str(alone)]).returncode == 3
    assert parts(crew) == parts(alone)


def test_a_lost_part_in_the_middle_of_a_slice_is_done_again_by_workers(tmp_path: Path) -> None:
    corpus, out = write_corpus("parquet", tmp_path / "in"), tmp_path / "out"
    command = [*arguments(corpus, "--model", "fake:dim=8", "--workers", "2"), "--to", str(out)]
    assert run(command).returncode == 3
    whole = parts(out)
    (out / [name for name in whole if name.startswith("g0001-00001-")][1]).unlink()
    (out / next(name for name in whole if name.startswith("g0001-00002-"))).unlink()
    again = run(command)
    assert again.returncode in (0, 3), again.stderr
    assert parts(out) == whole


def test_when_all_workers_die_the_run_ends_resumably(tmp_path: Path) -> None:
    corpus = write_corpus("tiny", tmp_path / "in")
    out, unbroken = tmp_path / "out", tmp_path / "unbroken"
    killed = run(
        [*arguments(corpus, "--model", "fake:dim=8", "--workers", "2"), "--to", str(out)], failpoint="before-ledger:2"
    )
    assert killed.returncode in (-9, 10), killed.stderr
    assert run([*arguments(corpus, "--model", "fake:dim=8"), "--to", str(unbroken)]).returncode == 3
    assert_same_after_resume(arguments(corpus, "--model", "fake:dim=8"), unbroken, out)


def test_an_error_in_a_worker_is_the_run_s_error(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(4):
        pq.write_table(pa.table({"text": ["fine", None, "fine"]}), folder / f"{i}.parquet")
    done = run(
        [
            "embed",
            str(folder),
            "--model",
            "fake",
            "--slice-bytes",
            "1",
            "--workers",
            "2",
            "--on-error",
            "fail",
            "--to",
            str(tmp_path / "o"),
        ]
    )
    assert done.returncode == 8, done.stderr
    assert "parquet:1: text is null" in done.stderr


def test_dead_rows_of_all_workers_count_together(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(4):
        pq.write_table(pa.table({"text": ["fine", None, "fine"]}), folder / f"{i}.parquet")
    command = ["embed", str(folder), "--model", "fake", "--slice-bytes", "1", "--workers", "2"]
    done = run([*command, "--max-dead", "3", "--to", str(tmp_path / "o")])
    assert done.returncode == 8, done.stderr
    assert "4 rows are dead, more than --max-dead 3" in done.stderr
