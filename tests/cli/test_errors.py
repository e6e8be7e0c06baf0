"""Errors, word for word: what went wrong, the next thing to type, the exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from embedctl import errors
from embedctl.cli import failures

USAGE = [
    (["embed", "x", "--modle", "m"], "error: no such option: --modle\n  try: --model\n"),
    (["embd", "x"], "error: no such command 'embd'\n  try: embedctl embed\n"),
    (["corpus.parquet"], "error: no such command 'corpus.parquet'\n  try: embedctl embed corpus.parquet\n"),
    (["embed"], "error: no input given\n  try: embedctl embed corpus.parquet\n"),
    (["plan"], "error: no input given\n  try: embedctl plan corpus.parquet\n"),
    (["embed", "x", "--limit", "many"], "error: --limit: 'many' is not a whole number\n"),
    (["embed", "x", "--limit", "0"], "error: --limit: 0 is too small; at least 1\n"),
    (
        ["embed", "x", "--dtype", "bfloat"],
        "error: --dtype: 'bfloat' is not one of auto, float32, bfloat16, float16\n  try: --dtype bfloat16\n",
    ),
    (["embed", "x", "--model"], "error: option '--model' requires an argument\n  try: embedctl embed --help\n"),
    (["status"], "error: missing argument 'DESTINATION'\n  try: embedctl status --help\n"),
    (["verify", "x", "--sample", "few"], "error: --sample: 'few' is not a whole number\n  try: --sample 64\n"),
    (
        ["embed", "x", "--text-column", "a", "--text-template", "{a}"],
        "error: --text-column and --text-template: give one of them\n",
    ),
    (["embed", "x", "--overlap", "4"], "error: --overlap and --chunk-pool need --chunk\n  try: --chunk tokens:400\n"),
    (["embed", "x", "--config", "no.toml"], "error: --config: cannot read no.toml: No such file or directory\n"),
]


@pytest.mark.parametrize(("args", "expected"), USAGE, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_usage_errors(embedctl, args, expected):
    done = embedctl(*args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_json_errors_are_one_object_on_stdout(embedctl):
    done = embedctl("embed", "x", "--json", "--dtype", "bfloat")
    assert json.loads(done.stdout) == {
        "version": 1,
        "status": "error",
        "exit_code": 2,
        "error": "--dtype: 'bfloat' is not one of auto, float32, bfloat16, float16",
        "hint": "--dtype bfloat16",
    }
    assert done.stderr.startswith("error: --dtype")


TREE = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EmbedctlError)]
OF_THEIR_OWN = (errors.Interrupted, errors.UnreadableInput)
"""Made of something else than a message and a hint."""


@pytest.mark.parametrize("kind", [c for c in TREE if c not in OF_THEIR_OWN], ids=lambda c: c.__name__)
def test_every_error_of_ours_has_its_code_and_hint(kind, capsys):
    assert failures.tell(kind("what", hint="next"), []) == kind.exit_code
    assert capsys.readouterr() == ("", "error: what\n  try: next\n")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(signum, code, capsys):
    assert failures.tell(errors.Interrupted(signum), []) == code
    assert capsys.readouterr().err == "error: interrupted; run the same command again to go on\n"


def test_the_unexpected_is_one_line_and_its_traceback_a_file(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failures.tell(ValueError("two\nlines"), []) == 1
    (kept,) = tmp_path.iterdir()
    assert capsys.readouterr().err == (
        f"error: internal error: ValueError: two lines; the traceback is in {kept}\n"
        "  try: report it with the traceback\n"
    )
    assert "ValueError: two" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("EMBEDCTL_DEBUG", "1")
    with pytest.raises(errors.SinkError) as caught:
        raise errors.SinkError("full")
    assert failures.tell(caught.value, []) == 5
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_unprintable_message_keeps_its_exit_code(capsys):
    assert failures.tell(errors.SourceError("bad name \udcff.parquet"), []) == 4
    assert capsys.readouterr().err == "error: bad name \\udcff.parquet\n"


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path):
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m embedctl embed --help | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, encoding="utf-8", check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr == ""
    assert int(done.stdout) in (0, failures.BROKEN_PIPE)
