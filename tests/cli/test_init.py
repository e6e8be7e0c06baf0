"""`embedctl init`: a look at the corpus, and a job file that runs as it is."""

from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from embedctl.cli.jobschema import job_schema


def jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def the_job(path: Path) -> dict:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator(job_schema()).validate(content)
    ((_, job),) = content["job"].items()
    return job


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """Corpora of many shapes, each in a file of its own."""
    long = [f"a much longer text about number {n} " * 5 for n in range(20)]
    titled = {"doc_id": [f"d{n}" for n in range(20)], "title": [f"t{n % 3}" for n in range(20)], "story": long}
    pq.write_table(pa.table(titled), tmp_path / "titled.parquet")
    jsonl(tmp_path / "plain.jsonl", [{"id": n, "text": text} for n, text in enumerate(long)])
    jsonl(tmp_path / "twice.jsonl", [{"id": n // 2, "text": text} for n, text in enumerate(long)])
    (tmp_path / "some.csv").write_text("url,summary,body\nu1,s1,a longer body\nu2,s2,another one\n", encoding="utf-8")
    with gzip.open(tmp_path / "lines.txt.gz", "wt", encoding="utf-8") as file:
        file.write("one line\nand another\n")
    folder = tmp_path / "it's a $folder" / "deep"
    folder.mkdir(parents=True)
    jsonl(folder / "a.jsonl", [{"text": "x"}])
    jsonl(folder / "b.jsonl", [{"text": "y"}])
    return tmp_path


@pytest.mark.parametrize(
    ("corpus", "text", "id_"),
    [
        ("titled.parquet", "story", None),
        ("plain.jsonl", "text", "id"),
        ("twice.jsonl", "text", "id"),
        ("some.csv", "body", None),
        ("lines.txt.gz", "text", None),
        ("it's a $folder", "text", None),
    ],
)
def test_the_file_runs_as_it_is(here, corpora, corpus, text, id_):
    done = here("init", corpus, "--model", "fake", "--command", "embed")
    assert (done.returncode, done.stdout) == (0, "job.toml\n"), done.stderr
    job = the_job(corpora / "job.toml")
    assert (job["text-column"], job.get("id-column"), job["model"]) == (text, id_, "fake")
    assert "  try: embedctl run job.toml --dry-run\n" in done.stderr
    ran = here("run", "job.toml", "--json")
    (told,) = json.loads(ran.stdout)["jobs"]
    assert (ran.returncode, told["rows"]["dead"]) == (0, 0), ran.stderr
    assert told["rows"]["written"] + told["rows"]["duplicates"] == told["rows"]["read"] > 0


def test_every_commented_key_is_one_that_run_takes(here, corpora):
    """The comments are offers: each line taken out of its comment must still make a job file."""
    here("init", "titled.parquet", "--model", "fake")
    text = (corpora / "job.toml").read_text(encoding="utf-8")
    known = set(job_schema()["$defs"]["job"]["properties"])
    offered = [line[2:] for line in text.splitlines() if line.startswith("# ") and " = " in line]
    assert len(offered) >= 8
    for line in offered:
        assert set(tomllib.loads(line)) <= known, line


def test_what_it_saw_is_told(here, corpora):
    done = here("init", "titled.parquet", "--model", "fake")
    text = (corpora / "job.toml").read_text(encoding="utf-8")
    assert 'text-column = "story"  # or ' in text
    assert '# id-column = "doc_id"  # does not repeat in the first 20 rows' in text
    assert done.stderr.splitlines()[0].startswith("1 file of parquet, ")
    assert "  text   story: a much longer text about number 0 a much longer" in done.stderr
    here("init", "twice.jsonl", "--model", "fake", "--force")
    assert 'id-column = "id"  # repeats within the first rows' in (corpora / "job.toml").read_text(encoding="utf-8")


def test_a_sync_where_rows_have_ids_of_their_own(here, corpora):
    assert json.loads(here("init", "plain.jsonl", "--model", "fake", "--json").stdout)["job"]["command"] == "sync"
    assert here("run", "job.toml").returncode == 0
    twice = here("init", "twice.jsonl", "--model", "fake", "--force", "--json")
    assert json.loads(twice.stdout)["job"]["command"] == "embed"


def test_never_overwrites_without_being_told(here, corpora):
    (corpora / "job.toml").write_text("mine", encoding="utf-8")
    done = here("init", "plain.jsonl", "--model", "fake")
    assert done.returncode == 2
    assert done.stderr.startswith("error: job.toml is there already\n  try: embedctl init ... --force replaces it")
    assert (corpora / "job.toml").read_text(encoding="utf-8") == "mine"
    assert here("init", "plain.jsonl", "--model", "fake", "--force").returncode == 0
    assert the_job(corpora / "job.toml")["text-column"] == "text"
    assert not list(corpora.glob(".job.toml*"))


def test_a_job_file_elsewhere_names_paths_from_its_own_folder(here, corpora):
    (corpora / "jobs").mkdir()
    done = here("init", "plain.jsonl", "--model", "fake", "--file", "jobs/night.toml", "--to", "vectors")
    assert done.returncode == 0, done.stderr
    assert the_job(corpora / "jobs/night.toml")["inputs"] == ["../plain.jsonl"]
    assert here("run", "jobs/night.toml").returncode == 0
    assert pq.read_table(corpora / "vectors").num_rows == 20


def test_what_it_refuses(here, corpora):
    assert "init cannot look at standard input" in here("init", "-").stderr
    assert here("init", "nowhere").returncode == 4
    assert "no input given" in here("init").stderr
    assert "--command: 'sink' is not one of" in here("init", "plain.jsonl", "--command", "sink").stderr
    missing = here("init", "plain.jsonl", "--model", "fake", "--file", "no/such/job.toml")
    assert "--file: cannot write no/such/job.toml: No such file or directory" in missing.stderr
    pq.write_table(pa.table({"n": [1, 2]}), corpora / "numbers.parquet")
    assert "which column is the text?" in here("init", "numbers.parquet").stderr
