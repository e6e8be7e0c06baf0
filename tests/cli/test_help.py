"""The help is documentation: whole, plain, cheap, and about fields that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields

import pytest

import embedctl as package
from embedctl.cli.options import OPTIONS
from embedctl.cli.retry import CHANGEABLE
from embedctl.cli.score_options import SCORE_OPTIONS
from embedctl.spec import JobSpec, flag

COMMANDS = (
    "embed",
    "rerank",
    "classify",
    "plan",
    "run",
    "init",
    "status",
    "history",
    "verify",
    "retry",
    "search",
    "eval",
    "bench",
    "models",
    "doctor",
)
HEAVY = (
    "torch",
    "pyarrow",
    "numpy",
    "duckdb",
    "transformers",
    "tokenizers",
    "fsspec",
    "pandas",
    "safetensors",
    "datasets",
)


def test_every_field_is_an_option_and_every_option_a_field():
    assert set(OPTIONS) | set(SCORE_OPTIONS) == {f.name for f in fields(JobSpec)} - {"inputs", "task"}


def test_help_lists_the_commands_and_exit_codes(embedctl):
    done = embedctl("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in (*COMMANDS, "Exit codes", "embedctl embed corpus.parquet"):
        assert word in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(embedctl, command):
    done = embedctl(command, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert f"\n embedctl {command}" in done.stdout
    assert "--json" in done.stdout


@pytest.mark.parametrize("command", ["embed", "plan"])
def test_job_commands_take_every_option(embedctl, command):
    shown = set(re.findall(r"--[a-z][a-z-]+", embedctl(command, "--help").stdout))
    assert {flag(name) for name in OPTIONS.keys() - {"vector_column"}} <= shown


@pytest.mark.parametrize("command", ["embed", "status", "verify", "retry"])
def test_a_store_s_state_can_be_named_to_each_command_that_opens_it(embedctl, command):
    assert "--state" in embedctl(command, "--help").stdout


def test_retry_takes_only_what_a_new_generation_may_change(embedctl):
    shown = set(re.findall(r"--[a-z][a-z-]+", embedctl("retry", "--help").stdout))
    assert {flag(name) for name in CHANGEABLE} <= shown
    assert not {flag(f.name) for f in fields(JobSpec) if f.metadata["kind"] in ("rows", "recipe")} & shown


def test_choices_and_defaults_in_the_help_are_the_specs(embedctl):
    text = " ".join(embedctl("embed", "--help").stdout.replace("│", " ").split())
    for f in fields(JobSpec):
        for choice in f.metadata["choices"] if f.name in OPTIONS else ():
            assert choice in text
    assert "Default: all-MiniLM-L6-v2." in text
    assert "Default: 64MiB." in text


def test_version(embedctl):
    done = embedctl("--version")
    assert (done.returncode, done.stdout) == (0, f"embedctl {package.__version__}\n")


def test_no_command_shows_help_and_is_a_usage_error(embedctl):
    done = embedctl()
    assert done.returncode == 2
    assert "Usage: embedctl" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "args", [["--help"], ["embed", "--help"], ["doctor", "--help"], ["--version"], ["embed", "--modle", "x"]]
)
def test_nothing_heavy_is_imported_on_the_way_to_help(args):
    code = (
        "import sys, json\n"
        "from embedctl.cli.app import main\n"
        f"main({args!r})\n"
        "print('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert not set(HEAVY) & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("embedctl ver", ["versions", "verify"]),
        ("embedctl embed --vector", ["--vector-type"]),
        ("embedctl embed --dtype b", ["bfloat16"]),
    ],
)
def test_shell_completion(embedctl, words, expected):
    env = {"_EMBEDCTL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert embedctl(env=env).stdout.split() == expected
