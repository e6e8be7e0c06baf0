"""The commands end to end on a small corpus and the encoder that needs no weights.

`embedctl` runs in a process of its own; `here`, in this one, saves the time of importing torch again.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.cli import inventory

SUMMARY_KEYS = [
    "version", "status", "exit_code", "destination", "recipe", "rows",
    "units", "tokens", "truncated", "padding", "seconds",
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twelve rows, of which one is null and one is blank."""
    texts = [f"text number {n}" for n in range(12)]
    texts[3], texts[7] = None, "  "
    pq.write_table(pa.table({"id": [f"r{n}" for n in range(12)], "text": texts}), tmp_path / "corpus.parquet")
    return tmp_path / "corpus.parquet"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"text": [f"text number {n}" for n in range(12)]}), tmp_path / "good.parquet")
    return tmp_path / "good.parquet"


def test_embed_says_where_the_vectors_are(embedctl, good):
    done = embedctl("embed", good, "--model", "fake")
    assert (done.returncode, done.stdout) == (0, "good.embeddings\n"), done.stderr
    assert "rows     12 read = 12 written\n" in done.stderr
    assert pq.read_table(good.parent / "good.embeddings").num_rows == 12


def test_a_finished_job_is_a_no_op(here, good):
    assert here("embed", good, "--model", "fake", "--to", "out").returncode == 0
    before = {p: p.stat().st_mtime_ns for p in (good.parent / "out").glob("*.parquet")}
    again = here("embed", good, "--model", "fake", "--to", "out", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["rows"]["read"] == 12
    assert {p: p.stat().st_mtime_ns for p in (good.parent / "out").glob("*.parquet")} == before


def test_dead_rows_are_told_with_the_next_command(here, corpus):
    done = here("embed", corpus, "--model", "fake", "--to", "out")
    assert done.returncode == 3, done.stderr
    assert "12 read = 10 written + 2 dead" in done.stderr
    assert "  try: embedctl status out --dead; after a fix: embedctl retry out\n" in done.stderr


def test_json_is_one_object_with_the_documented_keys(embedctl, corpus):
    done = embedctl("embed", corpus, "--model", "fake", "--to", "out", "--json")
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert list(summary)[: len(SUMMARY_KEYS)] == SUMMARY_KEYS
    rows = summary["rows"]
    assert rows == {"read": 12, "written": 10, "unchanged": 0, "skipped": 0, "duplicates": 0, "dead": 2}
    assert (summary["exit_code"], done.returncode) == (3, 3)
    assert len(Path(corpus.parent, summary["dead_letters"]).read_text(encoding="utf-8").splitlines()) == 2


def test_every_json_key_is_in_the_readme(here, corpus, root):
    summary = json.loads(here("embed", corpus, "--model", "fake", "--json").stdout)
    text = (root / "README.md").read_text(encoding="utf-8")
    assert [key for key in summary if f"`{key}`" not in text] == []


def test_quiet_says_nothing_on_stderr(here, good):
    done = here("embed", good, "--model", "fake", "--to", "out", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")


def test_no_bar_off_a_terminal(embedctl, good):
    done = embedctl("embed", good, "--model", "fake", env={"TERM": "xterm"})
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


def test_a_bar_on_a_terminal(good):
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "embedctl", "embed", str(good), "--model", "fake"],
        cwd=good.parent, stderr=slave, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:
            break
        if not more:
            break
        seen += more
    out, _ = child.communicate()
    os.close(master)
    assert child.returncode == 0
    assert out == b"good.embeddings\n"
    assert b"\x1b[" in seen
    assert b"12 read = 12 written" in seen


def test_plan_writes_nothing(here, good):
    done = here("plan", good, "--model", "fake", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == 12
    assert {"mean", "p50", "p95", "max"} <= report["tokens"].keys()
    assert sorted(p.name for p in good.parent.iterdir()) == ["good.parquet"]
    assert re.search(r"^rows +12$", here("plan", good, "--model", "fake").stdout, re.MULTILINE)


def test_status_and_its_dead_letters(here, corpus):
    here("embed", corpus, "--model", "fake", "--to", "out")
    report = json.loads(here("status", "out", "--json").stdout)
    assert (report["status"], report["rows"]["dead"], report["locks"]) == ("done", 2, [])
    letters = json.loads(here("status", "out", "--dead", "--json").stdout)["dead_letters"]
    assert [letter["id"] for letter in letters] == ["r3", "r7"]
    assert "corpus.parquet" in here("status", "out", "--dead").stdout


def test_status_of_nothing(here):
    done = here("status", "nowhere")
    assert done.returncode == 2
    assert done.stderr == "error: nowhere: no embeddings made by embedctl there\n  try: embedctl embed corpus.parquet\n"


def test_verify(here, good):
    here("embed", good, "--model", "fake", "--to", "out")
    done = here("verify", "out", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True), done.stdout
    assert here("verify", "out").stdout.endswith("all checks passed\n")


def test_verify_finds_a_lost_part(here, good):
    here("embed", good, "--model", "fake", "--to", "out")
    next((good.parent / "out").glob("*.parquet")).unlink()
    done = here("verify", "out")
    assert done.returncode == 11
    assert "FAILED" in done.stdout
    assert done.stdout.endswith("verify failed\n")


def test_retry_after_a_fix(here, corpus):
    here("embed", corpus, "--model", "fake", "--to", "out")
    mended = pq.read_table(corpus).set_column(1, "text", pa.array([f"text number {n}" for n in range(12)]))
    pq.write_table(mended, corpus)
    done = here("retry", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["written"] == 12


def test_models(here):
    rows = json.loads(here("models", "--json").stdout)["models"]
    assert {"name", "here", "dim", "hub_id"} <= rows[0].keys()
    assert "all-MiniLM-L6-v2" in [row["name"] for row in rows]
    assert here("models").stdout.splitlines()[0].split()[:2] == ["name", "here"]


def test_doctor(embedctl):
    done = embedctl("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["compute"]["attention_why"]
    assert report["packages"]["pyarrow"]
    assert "cpu instruction sets" in embedctl("doctor").stdout


def test_doctor_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr(inventory, "find_spec", lambda name: None)
    assert inventory.machine()["compute"] == {"torch": "not installed", "try": "pip install 'embedctl[torch]'"}


def test_a_missing_source(embedctl):
    done = embedctl("embed", "nowhere.parquet", "--model", "fake", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["exit_code"] == 4
    assert "nowhere.parquet" in done.stderr


def test_an_unknown_model_names_the_nearest(here, good):
    done = here("embed", good, "--model", "all-MiniLM-L6-v3")
    assert done.returncode == 2
    assert "all-MiniLM-L6-v2" in done.stderr
