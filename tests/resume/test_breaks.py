"""What broke once under a harsh user, each held here: signals while waiting, odd states, files nobody expects."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import parts, run
from tests.resume.conftest import SMALL, write_corpus


def waiting_on_stdin(out: Path, *, rows: int, until_parts: int) -> tuple[subprocess.Popen[bytes], int]:
    """A run fed `rows` rows through a pipe that stays open."""
    feeder, tap = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "embedctl", "embed", "-", "--model", "fake:dim=8", "--window-rows", "64", "--json",
         "--to", str(out)],
        stdin=feeder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(feeder)
    for i in range(rows):
        os.write(tap, json.dumps({"id": f"a{i}", "text": f"word {i} " * 20}).encode() + b"\n")
    deadline = time.monotonic() + 30
    while until_parts and len(list(out.glob("*.parquet"))) < until_parts:
        assert time.monotonic() < deadline, "no part was ever committed"
        time.sleep(0.02)
    return process, tap


@pytest.mark.parametrize(("rows", "until_parts"), [(1, 0), (60_000, 5)], ids=["planning", "reading"])
def test_a_signal_while_standard_input_says_nothing(tmp_path: Path, rows: int, until_parts: int) -> None:
    process, tap = waiting_on_stdin(tmp_path / "out", rows=rows, until_parts=until_parts)
    time.sleep(0 if until_parts else 1.0)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=6)
    os.close(tap)
    assert process.returncode == 143, stderr
    assert json.loads(stdout)["exit_code"] == 143
    assert b"Fatal Python error" not in stderr


@pytest.mark.parametrize("leases", ["5", "null", "[1]", '[{"nonce": "x"}]'])
def test_a_mangled_lock_file_protects_nobody(tmp_path: Path, leases: str) -> None:
    out = tmp_path / "out"
    arguments = ["embed", str(write_corpus("parquet", tmp_path / "in")), *SMALL, "--to", str(out)]
    assert run(arguments, failpoint="before-ledger:3").returncode == -9
    (out / ".embedctl" / "locks.json").write_text(f'{{"version": 1, "leases": {leases}}}')
    assert json.loads(run(["status", str(out), "--json"]).stdout)["locks"] == []
    done = run(arguments)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("command", ["plan", "embed"])
def test_sigterm_outside_a_run_is_told(tmp_path: Path, command: str) -> None:
    corpus = write_corpus("jsonl", tmp_path / "in")
    code = (
        "import os, signal, sys\n"
        "from embedctl import settings\n"
        "settings.resolve = lambda *a, **k: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from embedctl.cli.app import main\n"
        f"sys.exit(main([{command!r}, {str(corpus)!r}, '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 143, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 143
    assert done.stderr == "error: interrupted; run the same command again to go on\n"


@pytest.mark.parametrize("when", ["finished", "finishing"])
def test_lost_parts_are_done_again_duplicates_and_all(tmp_path: Path, when: str) -> None:
    arguments = ["embed", str(write_corpus("parquet", tmp_path / "in")), *SMALL]
    unbroken, out = tmp_path / "unbroken", tmp_path / "out"
    assert run([*arguments, "--to", str(unbroken)]).returncode == 3
    windows = len(parts(unbroken))
    # The job, the engine, every window, then the first window that loses its duplicates.
    point = f"after-ledger:{windows + 3}" if when == "finishing" else None
    assert run([*arguments, "--to", str(out)], failpoint=point).returncode == (-9 if point else 3)
    lost = [*out.glob("*-d.parquet"), out / "g0001-00000-000002.parquet"]
    assert len(lost) > 1, "no window had lost its duplicates yet"
    for part in lost:
        part.unlink()
    again = run([*arguments, "--to", str(out)])
    assert again.returncode in (0, 3), again.stderr
    # A part done again after its duplicates were dropped has a later revision in its footer, so tables are compared.
    assert pq.read_table(out).equals(pq.read_table(unbroken))
    assert json.loads(run(["verify", str(out), "--json"]).stdout)["ok"] is True
    assert json.loads(run([*arguments, "--to", str(out), "--json"]).stdout)["status"] == "already done"


@pytest.mark.parametrize("closed", ["1", "2"], ids=["stdout", "stderr"])
def test_a_closed_stream_does_not_stop_a_run(tmp_path: Path, closed: str) -> None:
    corpus, out = write_corpus("jsonl", tmp_path / "in"), tmp_path / "out"
    command = f'exec "$0" -m embedctl embed "$1" --model fake:dim=8 --to "$2" --json {closed}>&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(corpus), str(out)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert json.loads(run(["status", str(out), "--json"]).stdout)["status"] == "done"


def test_a_finished_stream_is_held_to_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def feed(rows: int) -> subprocess.CompletedProcess[str]:
        lines = "".join(json.dumps({"id": str(i), "text": f"text {i}"}) + "\n" for i in range(rows))
        command = [sys.executable, "-m", "embedctl", "embed", "-", "--model", "fake", "--to", str(out), "--json"]
        return subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=60)

    assert feed(5).returncode == 0
    assert json.loads(feed(5).stdout)["status"] == "already done"
    assert feed(6).returncode == 6
    assert feed(4).returncode == 6
    assert feed(0).returncode == 6


def test_a_lost_plan_is_not_replaced_by_another(tmp_path: Path) -> None:
    corpus, out = tmp_path / "c.jsonl", tmp_path / "out"
    corpus.write_text('{"id": "a", "text": "one"}\n')
    command = ["embed", str(corpus), "--to", str(out), "--model", "fake:dim=8"]
    assert run(command).returncode == 0
    plan = out / ".embedctl" / "plan-0001.json"
    saved = plan.read_bytes()
    plan.unlink()
    other = run([*command[:-1], "fake:dim=16"])
    assert other.returncode == 6
    assert "its plan is gone" in other.stderr
    assert run(command).returncode == 0
    assert plan.read_bytes() == saved


def test_a_part_lost_after_a_retry_is_told(tmp_path: Path) -> None:
    corpus, out = tmp_path / "c.jsonl", tmp_path / "out"
    corpus.write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": ""}\n')
    command = ["embed", str(corpus), "--to", str(out), "--model", "fake:dim=8"]
    assert run(command).returncode == 3
    assert run(["retry", str(out)]).returncode == 0
    part = next(out.glob("g0001*.parquet"))
    kept = part.read_bytes()
    part.unlink()
    for again in (command, ["retry", str(out)]):
        failed = run(again)
        assert failed.returncode == 11, failed.stderr
        assert "link them back from .embedctl/current/" in failed.stderr
    part.write_bytes(kept)
    assert json.loads(run(["verify", str(out), "--json"]).stdout)["ok"] is True


def test_no_rows_still_give_a_part_with_the_schema(tmp_path: Path) -> None:
    corpus, out = tmp_path / "c.jsonl", tmp_path / "out"
    corpus.write_text("")
    assert run(["embed", str(corpus), "--to", str(out), "--model", "fake:dim=8"]).returncode == 0
    tables = [pq.read_table(p) for p in out.glob("*.parquet")]
    assert [t.num_rows for t in tables] == [0]
    assert "embedding" in tables[0].column_names


def test_a_deleted_ledger_is_rebuilt_from_the_parts(tmp_path: Path) -> None:
    arguments = ["embed", str(write_corpus("parquet", tmp_path / "in")), *SMALL, "--to", str(tmp_path / "out")]
    first = run([*arguments, "--json"])
    assert first.returncode == 3
    before = parts(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / ".embedctl" / "ledger")
    again = run([*arguments, "--json"])
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rows"] == json.loads(first.stdout)["rows"]
    assert json.loads(again.stdout)["run_tokens"] == 0
    assert parts(tmp_path / "out") == before


def test_duplicates_across_windows_become_dead_letters_beside_the_earlier_ones(tmp_path: Path) -> None:
    """r0 to r4 stand again as rows 594 to 598, many windows later, in the window where row 587 is null."""
    out = tmp_path / "out"
    corpus = write_corpus("parquet", tmp_path / "in")
    done = run(["embed", str(corpus), *SMALL, "--on-duplicate", "dead-letter", "--to", str(out), "--json"])
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["rows"]["dead"] == 7 + 5
    letters = [json.loads(line) for line in (out / ".embedctl" / "dead_letters.jsonl").read_text().splitlines()]
    assert [row["position"] for row in letters[-6:]] == [587, 594, 595, 596, 597, 598]
    assert [row["reason"] for row in letters[-6:]] == ["text is null", *(f"duplicate id 'r{i}'" for i in range(5))]
    assert json.loads(run(["verify", str(out), "--json"]).stdout)["ok"] is True


def test_verify_of_an_unfinished_job_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["embed", str(write_corpus("parquet", tmp_path / "in")), *SMALL, "--to", str(out)]
    assert run(arguments, failpoint="before-ledger:3").returncode == -9
    told = run(["verify", str(out)])
    assert told.returncode == 9, told.stdout
    assert told.stdout.endswith("sound so far, and not finished\n")
    report = json.loads(run(["verify", str(out), "--json"]).stdout)
    assert (report["ok"], report["finished"]) == (True, False)
    assert run(arguments).returncode == 3
    assert run(["verify", str(out)]).stdout.endswith("all checks passed\n")


def test_a_part_that_came_too_late_is_told_and_removed(tmp_path: Path) -> None:
    """What a run on another host, overtaken while it slept, may put beside a window that has lost its duplicates."""
    out = tmp_path / "out"
    arguments = ["embed", str(write_corpus("parquet", tmp_path / "in")), *SMALL, "--to", str(out)]
    assert run(arguments).returncode == 3
    revised = next(p for p in sorted(out.glob("*-d.parquet")))
    late = out / revised.name.replace("-d.parquet", ".parquet")
    shutil.copy(revised, late)
    told = run(["verify", str(out)])
    assert told.returncode == 11
    assert late.name in told.stdout
    done = run(arguments)
    assert done.returncode == 0
    assert "was superseded" in done.stderr
    assert not late.exists()
    assert run(["verify", str(out)]).returncode == 0
