"""`embedctl run`: several jobs, silence when all is well, the gravest exit code, reports that change nothing."""

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
from prometheus_client.parser import text_string_to_metric_families

from tests.reports.hook import listening


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twelve rows, two of them bad."""
    texts = [f"text number {n}" for n in range(12)]
    texts[3], texts[7] = None, "  "
    pq.write_table(pa.table({"id": [f"r{n}" for n in range(12)], "text": texts}), tmp_path / "corpus.parquet")
    pq.write_table(pa.table({"text": [f"text number {n}" for n in range(12)]}), tmp_path / "good.parquet")
    return tmp_path


@pytest.fixture
def jobfile(corpus: Path):
    """`jobfile(toml)`: `job.toml` beside the corpus, over the encoder that needs no weights."""

    def write(toml: str, name: str = "job.toml") -> Path:
        (corpus / name).write_text(f'[defaults]\nmodel = "fake"\n{toml}', encoding="utf-8")
        return corpus / name

    return write


GOOD = '[job.good]\ninputs = ["good.parquet"]\nto = "good.out"\n'
BAD = '[job.bad]\ninputs = ["corpus.parquet"]\nto = "bad.out"\n'
GONE = '[job.gone]\ninputs = ["gone.parquet"]\n'


def test_silent_when_all_is_well(embedctl, jobfile, corpus):
    jobfile(GOOD)
    done = embedctl("run", "job.toml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert pq.read_table(corpus / "good.out").num_rows == 12


def test_what_is_wrong_is_said_and_the_others_run(here, jobfile, corpus):
    jobfile(GONE + BAD + GOOD)
    done = here("run", "job.toml")
    assert (done.returncode, done.stdout) == (4, "")
    assert "gone: error: gone.parquet: no such file or folder\n" in done.stderr
    assert "bad: done: bad.out\n" in done.stderr
    assert "12 read = 10 written + 2 dead" in done.stderr
    assert "good.out" not in done.stderr
    assert pq.read_table(corpus / "good.out").num_rows == 12
    assert done.stderr.endswith("not all well: exit code 4 (source missing, unreadable or changed)\n")


def test_dead_letters_that_are_known_are_no_failure_the_next_night(here, jobfile):
    jobfile(BAD)
    assert here("run", "job.toml").returncode == 3
    again = here("run", "job.toml")
    assert (again.returncode, again.stderr) == (0, "")


def test_json_is_one_object_of_all_jobs(here, jobfile):
    jobfile(BAD + GONE)
    done = here("run", "job.toml", "--json")
    told = json.loads(done.stdout)
    assert (told["version"], told["status"], told["exit_code"], done.returncode) == (1, "not all well", 4, 4)
    bad, gone = told["jobs"]
    assert (bad["job"], bad["exit_code"], bad["rows"]["dead"], bad["run_rows"]) == ("bad", 3, 2, 12)
    assert (gone["job"], gone["status"], gone["exit_code"]) == ("gone", "error", 4)
    assert gone["error"] == "gone.parquet: no such file or folder"
    assert told["not_run"] == []


def test_only_one(here, jobfile, corpus):
    jobfile(GOOD + BAD)
    assert here("run", "job.toml", "--only", "good").returncode == 0
    assert not (corpus / "bad.out").exists()


def test_paths_start_at_the_file_s_folder(embedctl, jobfile, corpus, tmp_path_factory):
    path = jobfile(BAD)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(
        [sys.executable, "-m", "embedctl", "run", path, "--json"],
        cwd=elsewhere, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["destination"] == str(corpus / "bad.out")
    assert Path(job["dead_letters"]).exists()
    assert not list(elsewhere.iterdir())


def test_dry_run_writes_nothing(here, jobfile, corpus):
    jobfile(GOOD + GONE)
    before = sorted(p.name for p in corpus.iterdir())
    done = here("run", "job.toml", "--dry-run", "--json")
    good, gone = json.loads(done.stdout)["jobs"]
    assert (good["would"], good["columns"]["text"], good["files"]) == ("start anew", ["text"], 1)
    assert (gone["exit_code"], done.returncode) == (4, 4)
    assert sorted(p.name for p in corpus.iterdir()) == before
    here("run", "job.toml")
    done = here("run", "job.toml", "--dry-run", "--only", "good")
    assert "would        do nothing: it is done" in done.stdout


def test_mistakes_come_before_the_first_job(here, jobfile, corpus):
    jobfile(GOOD + '[job.typo]\ninputs = "x"\nmodle = "fake"\n')
    done = here("run", "job.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: job.toml: job typo: unknown key 'modle'\n  try: did you mean 'model'?\n"
    assert not (corpus / "good.out").exists()


def test_a_job_file_given_as_a_config_names_the_command_it_is_for(here, jobfile):
    jobfile(GOOD)
    Path("job.toml").write_text(GOOD, encoding="utf-8")
    done = here("embed", "good.parquet", "--config", "job.toml")
    assert (done.returncode, done.stderr) == (2, "error: job.toml: unknown key 'job'\n  try: embedctl run job.toml\n")


def test_no_job_file(here):
    assert here("run").stderr.startswith("error: no job file given\n  try: embedctl run job.toml")


def test_locked_and_told_to_skip(here, jobfile, corpus):
    from embedctl.events import Silent
    from embedctl.ledger import locks
    from embedctl.storage import LocalStorage

    jobfile(GOOD)
    assert here("run", "job.toml").returncode == 0
    pq.write_table(pa.table({"text": ["a", "b"]}), corpus / "more.parquet")
    jobfile('[job.more]\ninputs = ["more.parquet"]\nto = "more.out"\n')
    with locks.lease(LocalStorage(corpus / "more.out"), names=["plan"], slices=[0], listener=Silent()):
        failed = here("run", "job.toml")
        skipped = here("run", "job.toml", "--if-locked", "skip", "--log-format", "text")
    assert failed.returncode == 7
    assert "another run holds it" in failed.stderr
    assert skipped.returncode == 0
    assert "stepped aside" in skipped.stderr
    assert [r["status"] for r in history_of(here, "more.out")] == ["skipped: locked", "error"]


def history_of(here, destination: str) -> list[dict]:
    return json.loads(here("history", destination, "--json").stdout)["runs"]


def test_a_log_file_tells_what_stderr_does_not(here, jobfile, corpus):
    jobfile(BAD + GOOD)
    done = here("run", "job.toml", "--log-file", "night.log", "--log-format", "json")
    lines = [json.loads(line) for line in (corpus / "night.log").read_text(encoding="utf-8").splitlines()]
    assert [(line["job"], line["event"]) for line in lines if line["event"] != "progress"] == [
        ("bad", "started"), ("bad", "finished"), ("good", "started"), ("good", "finished"),
    ]  # fmt: skip
    assert "bad: done: bad.out" in done.stderr


def test_a_log_that_cannot_be_written_fails_the_job_before_it_starts(here, jobfile, corpus):
    jobfile('[job.a]\ninputs = ["good.parquet"]\nto = "a.out"\nlog-file = "no/such.log"\n' + GOOD)
    done = here("run", "job.toml")
    assert done.returncode == 2
    assert "a: error: --log-file: cannot append to no/such.log: No such file or directory" in done.stderr
    assert not (corpus / "a.out").exists()
    assert (corpus / "good.out").exists()


def test_json_logs_leave_only_json_on_stderr(embedctl, jobfile):
    jobfile(GONE + BAD)
    done = embedctl("run", "job.toml", "--log-format", "json", "--only", "gone")
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert (done.returncode, events) == (4, ["started", "failed"])
    done = embedctl("embed", "gone.parquet", "--model", "fake", "--log-format", "json", "--json")
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["started", "failed"]
    assert json.loads(done.stdout)["exit_code"] == 4


def test_metrics_of_all_jobs_in_one_file(here, jobfile, corpus):
    jobfile(GOOD + BAD)
    here("run", "job.toml", "--metrics-textfile", "night.prom")
    families = text_string_to_metric_families((corpus / "night.prom").read_text(encoding="utf-8"))
    codes = {s.labels["job"]: s.value for f in families for s in f.samples if s.name == "embedctl_last_run_exit_code"}
    assert codes == {"good": 0, "bad": 3}


def test_a_webhook_and_one_that_fails(here, jobfile, monkeypatch):
    monkeypatch.setattr("embedctl.reports.notify.PAUSE_S", 0.0)
    jobfile(GOOD + BAD)
    with listening() as hook:
        monkeypatch.setenv("HOOK_TOKEN", "s3cret")
        jobfile(
            GOOD + BAD + f'[job.good2]\ninputs="good.parquet"\nto="g2"\nnotify-url = "{hook.url}/${{HOOK_TOKEN}}"\n'
        )
        done = here("run", "job.toml", "--only", "good2")
        assert (done.returncode, done.stderr) == (0, "")
        here("run", "job.toml", "--notify-url", hook.url, "--notify-on", "failure", "--only", "good", "--only", "bad")
    told = [(path, json.loads(body)["job"], json.loads(body)["exit_code"]) for path, _, body in hook.requests]
    assert told == [("/s3cret", "good2", 0), ("/", "bad", 3)]
    with listening([500]) as hook:
        done = here("run", "job.toml", "--only", "good", "--notify-url", f"{hook.url}/s3cret")
    assert done.returncode == 0
    assert done.stderr == f"note: the summary was not delivered: {hook.url.removeprefix('http://')} answered 500\n"


def test_reports_that_fail_are_notes_on_every_command_that_does_jobs(here, jobfile):
    done = here("embed", "good.parquet", "--model", "fake", "--metrics-textfile", "no/such.prom", "--quiet")
    assert done.returncode == 0
    assert done.stderr == "note: --metrics-textfile: no/such.prom: No such file or directory\n"
    done = here("retry", "good.embeddings", "--metrics-textfile", "retry.prom", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'command="retry"' in Path("retry.prom").read_text()


@pytest.mark.parametrize("command", ["embed", "retry", "run"])
def test_the_report_options_are_there(embedctl, command):
    shown = embedctl(command, "--help").stdout
    for option in ("--log-format", "--log-file", "--metrics-textfile", "--notify-url", "--notify-on"):
        assert option in shown


def test_history_of_good_bad_and_killed_runs(here, embedctl, jobfile, corpus):
    jobfile(BAD)
    killed = embedctl("run", "job.toml", env={"EMBEDCTL_FAILPOINT": "after-ledger:3"})
    assert killed.returncode == -signal.SIGKILL
    here("run", "job.toml")
    here("run", "job.toml")
    here("embed", "good.parquet", "--model", "fake", "--to", "bad.out")
    found = history_of(here, "bad.out")
    assert [(r["status"], r["exit_code"]) for r in found] == [
        ("error", 4), ("already done", 0), ("done", 3), ("killed", None),
    ]  # fmt: skip
    assert {r["job"] for r in found} == {"bad", "bad.out"}
    shown = here("history", "bad.out", "-n", "1").stdout.splitlines()
    assert shown[0].split()[:3] == ["began", "command", "status"]
    assert len(shown) == 2


def test_history_decides_nothing(here, jobfile, corpus):
    jobfile(GOOD)
    here("run", "job.toml")
    parts = {p.name: p.read_bytes() for p in (corpus / "good.out").glob("*.parquet")}
    (corpus / "good.out/.embedctl/history.json").write_text('{"runs": [{"status": "running"}]}')
    assert here("run", "job.toml").returncode == 0
    (corpus / "good.out/.embedctl/history.json").unlink()
    assert here("run", "job.toml").returncode == 0
    assert {p.name: p.read_bytes() for p in (corpus / "good.out").glob("*.parquet")} == parts


def test_sync_is_silent_too_and_its_rehearsal_leaves_no_trace(here, corpus):
    arguments = ["sync", "ids.parquet", "--model", "fake", "--to", "s.out", "--max-delete", "100%"]
    rows = {"id": [f"r{n}" for n in range(12)], "text": [f"text number {n}" for n in range(12)]}
    pq.write_table(pa.table(rows), corpus / "ids.parquet")
    done = here(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    before = (corpus / "s.out/.embedctl/history.json").read_bytes()
    rows["text"][3] = "another text"
    pq.write_table(pa.table(rows), corpus / "ids.parquet")
    rehearsed = here(*arguments, "--dry-run", "--metrics-textfile", "sync.prom")
    assert rehearsed.returncode == 0, rehearsed.stderr
    assert rehearsed.stdout
    assert (corpus / "s.out/.embedctl/history.json").read_bytes() == before
    assert not (corpus / "sync.prom").exists()
    (corpus / "job.toml").write_text(
        'command = "sync"\ninputs = "ids.parquet"\nmodel = "fake"\nto = "s.out"\nmax-delete = "100%"\n',
        encoding="utf-8",
    )
    (told,) = json.loads(here("run", "job.toml", "--dry-run", "--json").stdout)["jobs"]
    assert (told["would"], told["changes"]["changed"]) == ("sync", 1)
    assert here("run", "job.toml").returncode == 0
    assert [r["command"] for r in history_of(here, "s.out")] == ["sync", "sync"]


def test_history_of_nothing(here):
    assert here("history", "nowhere").returncode == 2
    assert "--number: 'x' is not a count" in here("history", "nowhere", "-n", "x").stderr


def test_a_signal_stops_the_job_and_all_after_it(jobfile, corpus):
    with (corpus / "big.jsonl").open("w", encoding="utf-8") as file:
        for n in range(60_000):
            file.write(f'{{"text": "text number {n}"}}\n')
    jobfile('[job.big]\ninputs = ["big.jsonl"]\nto = "big.out"\nwindow-rows = 50\n' + GOOD)
    child = subprocess.Popen(
        [sys.executable, "-m", "embedctl", "run", "job.toml", "--json"],
        cwd=corpus, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    while not list((corpus / "big.out").glob("*.parquet")):
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGTERM)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 143, err
    told = json.loads(out)
    assert (told["exit_code"], told["not_run"]) == (143, ["good"])
    assert told["jobs"][0]["status"] == "interrupted"
    kept = json.loads((corpus / "big.out/.embedctl/history.json").read_text())["runs"]
    assert [(r["status"], r["exit_code"]) for r in kept] == [("interrupted", 143)]
    assert kept[0]["run_rows"] > 0
    assert err.count("error:") == 1
    assert not (corpus / "good.out").exists()
