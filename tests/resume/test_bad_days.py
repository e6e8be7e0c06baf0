"""Signals, full disks, read-only folders, two runs at once, changed sources, bad encoders: what the design promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import assert_same_after_resume, parts, run
from embedctl.tokens.fake import FakeTokenizer
from tests.resume.conftest import SMALL, write_corpus

SLOW_MODEL = "fake:dim=8,sleep_ms=60"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus("parquet", tmp_path_factory.mktemp("days") / "in")


def slowly(corpus: Path, out: Path, model: str = SLOW_MODEL) -> list[str]:
    return ["embed", str(corpus), "--window-rows", "64", "--model", model, "--to", str(out), "--json"]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "embedctl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=90)
    return process.returncode


def wait_for_parts(out: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(out.glob("*.parquet"))) < count:
        assert time.monotonic() < deadline, "no part was ever committed"
        time.sleep(0.01)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_resumably(corpus: Path, tmp_path: Path, signum: int, code: int) -> None:
    out, unbroken = tmp_path / "out", tmp_path / "unbroken"
    process = start(slowly(corpus, out))
    wait_for_parts(out, 2)
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=6)  # the promise is five seconds
    assert process.returncode == code, stderr
    assert json.loads(stdout)["exit_code"] == code
    assert "run the same command again" in stderr
    assert json.loads((out / ".embedctl" / "locks.json").read_text())["leases"] == []
    assert run(slowly(corpus, unbroken)).returncode == 3
    assert_same_after_resume(slowly(corpus, out)[:-3], unbroken, out)


def test_a_second_run_is_locked_out_or_waits(corpus: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "out", "fake:dim=8,sleep_ms=900"
    first = start(slowly(corpus, out, model))
    wait_for_parts(out, 1)
    second = run(slowly(corpus, out, model))
    assert second.returncode == 7
    assert f"another run holds it (process {first.pid} on" in second.stderr
    skipped = run([*slowly(corpus, out, model), "--if-locked", "skip"])
    assert skipped.returncode == 0
    assert json.loads(skipped.stdout)["status"] == "skipped: locked"
    waiting = run([*slowly(corpus, out, model), "--if-locked", "wait"])
    assert waiting.returncode == 0
    assert json.loads(waiting.stdout)["status"] == "already done"
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 3, stderr


def test_two_started_together_give_one_result(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    both = [start(slowly(corpus, out)) for _ in range(2)]
    codes = sorted(map(finish, both))
    assert codes == [3, 7]
    assert run(slowly(corpus, out)).returncode == 0


@contextmanager
def small_disk(where: Path, size: str, *, read_only: bool = False) -> Iterator[Path]:
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk_is_told_and_survived(corpus: Path, tmp_path: Path) -> None:
    arguments = ["embed", str(corpus), *SMALL[:-1], "fake:dim=512"]
    unbroken = tmp_path / "unbroken"
    assert run([*arguments, "--to", str(unbroken)]).returncode == 3
    with small_disk(tmp_path / "disk", "700k") as disk:
        out = disk / "out"
        failed = run([*arguments, "--to", str(out)])
        assert failed.returncode == 5, failed.stderr
        assert "the disk is full" in failed.stderr
        assert "Traceback" not in failed.stderr
        for part in out.glob("*.parquet"):
            pq.read_table(part)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert_same_after_resume(arguments, unbroken, out)


def test_a_read_only_folder_is_refused(corpus: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        failed = run(["embed", str(corpus), *SMALL, "--to", str(disk / "out")])
    assert failed.returncode == 5
    assert "the file system is read-only" in failed.stderr
    assert "--to" in failed.stderr


def test_a_changed_source_stops_the_run(tmp_path: Path) -> None:
    corpus = write_corpus("jsonl", tmp_path / "in")
    out = tmp_path / "out"
    process = start(slowly(corpus, out))
    wait_for_parts(out, 1)
    file = corpus / "corpus.jsonl"
    file.write_text(file.read_text().replace("row 599", "ROW 599"))
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 4, stderr
    assert "corpus.jsonl: changed since the job was planned" in stderr
    again = run(slowly(corpus, out))
    assert again.returncode == 4
    assert "1 changed (corpus.jsonl)" in again.stderr


def test_other_settings_are_refused_by_name(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["embed", str(corpus), *SMALL, "--to", str(out)]).returncode == 3
    other = run(["embed", str(corpus), *SMALL, "--keep", "lang", "--max-length", "7", "--to", str(out)])
    assert other.returncode == 6
    assert "--keep: asked for lang, planned with nothing" in other.stderr
    assert "--max-length: asked for 7, planned with nothing" in other.stderr


def _poisoned(folder: Path, word: str, rows: int = 40) -> Path:
    folder.mkdir()
    texts = [f"row {i} " + (word if i == 7 else "fine") for i in range(rows)]
    pq.write_table(pa.table({"id": [str(i) for i in range(rows)], "text": texts}), folder / "c.parquet")
    return folder


@pytest.mark.parametrize(("option", "reason"), [("nan", "the vector has NaN or Inf"), ("zero", "the vector is zero")])
def test_a_bad_vector_kills_its_row_only(tmp_path: Path, option: str, reason: str) -> None:
    corpus = _poisoned(tmp_path / "in", "POISON")
    clean, out = tmp_path / "clean", tmp_path / "out"
    model = f"fake:dim=8,{option}={FakeTokenizer.id_of('POISON')}"
    assert run(["embed", str(corpus), "--model", "fake:dim=8", "--to", str(clean)]).returncode == 0
    done = run(["embed", str(corpus), "--model", model, "--to", str(out), "--json"])
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["rows"]["dead"] == 1
    letters = [json.loads(line) for line in (out / ".embedctl" / "dead_letters.jsonl").read_text().splitlines()]
    assert letters == [{"file": "c.parquet", "position": 7, "id": "7", "reason": reason}]
    assert (out / ".embedctl" / "dead_letters.jsonl").stat().st_mode & 0o777 == 0o600
    whole, lived = pq.read_table(clean), pq.read_table(out)
    mask = pa.array([i != "7" for i in whole.column("id").to_pylist()])
    assert lived.equals(whole.filter(mask))


def test_out_of_memory_halves_until_it_fits(tmp_path: Path) -> None:
    corpus = _poisoned(tmp_path / "in", "long " * 200, rows=300)
    out = tmp_path / "out"
    done = run(
        ["embed", str(corpus), "--model", "fake:dim=8,oom_over=64", "--window-rows", "50", "--to", str(out), "--json"]
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["rows"] == {
        "read": 300, "written": 299, "unchanged": 0, "skipped": 0, "duplicates": 0, "dead": 1,
    }  # fmt: skip
    letter = json.loads((out / ".embedctl" / "dead_letters.jsonl").read_text())
    assert letter["reason"].startswith("does not fit in device memory (")
    broken = tmp_path / "broken"
    arguments = ["embed", str(corpus), "--model", "fake:dim=8,oom_over=64", "--window-rows", "50"]
    assert run([*arguments, "--to", str(broken)], failpoint="after-ledger:4").returncode == -9
    assert_same_after_resume(arguments, out, broken)


def test_shards_share_one_destination(tmp_path: Path) -> None:
    corpus = write_corpus("tiny", tmp_path / "in")
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    arguments = ["embed", str(corpus), "--window-rows", "64", "--slice-bytes", "4096", "--model", "fake:dim=8"]
    assert run([*arguments, "--to", str(alone)]).returncode == 3
    sharded = [*arguments, "--to", str(shared), "--num-shards", "3", "--shard-index"]
    shards = [start([*sharded, str(i)]) for i in range(3)]
    assert all(finish(p) in (0, 3) for p in shards)
    assert parts(shared) == parts(alone)


def test_retry_moves_mended_rows_from_dead_to_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [None if i in (3, 70, 150) else f"text {i}" for i in range(200)]
    ids = [f"r{i}" for i in range(200)]
    pq.write_table(pa.table({"id": ids, "text": texts}), folder / "c.parquet", row_group_size=50)
    out = tmp_path / "out"
    arguments = ["embed", str(folder), "--model", "fake:dim=8", "--window-rows", "64", "--to", str(out)]
    assert run(arguments).returncode == 3
    before = parts(out)
    mended = [t or (f"mended {i}" if i != 150 else None) for i, t in enumerate(texts)]
    pq.write_table(pa.table({"id": ids, "text": mended}), folder / "c.parquet", row_group_size=50)
    done = run(["retry", str(out), "--json"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["dead"] == 1
    assert json.loads(done.stdout)["rows"]["written"] == 199
    assert before.items() <= parts(out).items()
    found = pq.read_table(out)
    assert sorted(found.column("id").to_pylist()) == sorted(set(ids) - {"r150"})
    current = Path(os.path.realpath(out / ".embedctl" / "current"))
    assert sorted(p.name for p in current.glob("*.parquet")) == sorted(parts(out))
    assert json.loads(run(["verify", str(out), "--json"]).stdout)["ok"] is True
