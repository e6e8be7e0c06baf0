"""The schema for editors agrees with what `embedctl run` takes: both say yes, or both say no."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from embedctl.cli.jobschema import job_schema
from embedctl.cli.options import OPTIONS
from embedctl.cli.score_options import SCORE_OPTIONS
from embedctl.errors import UsageError
from embedctl.job.commands import COMMANDS
from embedctl.job.jobfile import read

SCHEMA = Draft202012Validator(job_schema())

YES = [
    '[job.a]\ninputs = ["x"]',
    '[job.a]\ninputs = "x"\ncommand = "embed"\nbatch-tokens = 5\n[job.b]\ninputs = "y"\nbatch_tokens = "${N:-7}"',
    '[[job]]\nname = "a"\ninputs = ["x"]\nmemory = "8GiB"\nwindow-bytes = 1024\nsample = "1%"',
    'inputs = ["x"]\nname = "alone"\nkeep = "a,b"\nsample = 0.5\noffline = true\nmax-dead = "0.1%"',
    '[defaults]\ncommand = "embed"\nvector-type = "int8"\n[job.a]\ninputs = ["${DATA:-x}"]\ndtype = "${T:-auto}"',
    '[job.a]\ninputs = "x"\nmodel = ["d=one", "s=two"]\nkeep-old = 2\nif-locked = "skip"',
]
NO = [
    '[job.a]\ninputs = ["x"]\ntreads = 1',
    '[job.a]\ninputs = ["x"]\ncommand = "embd"',
    '[job.a]\ninputs = ["x"]\nthreads = "two"',
    '[job.a]\ninputs = ["x"]\nvector-type = "float"',
    '[[job]]\ninputs = ["x"]',
    '[defaults]\nmodel = "m"',
    'model = "m"\n[job.a]\ninputs = ["x"]',
    '[job.a]\ninputs = ["x"]\n[job.a.b]\nc = 1',
    '[job."a b"]\ninputs = ["x"]',
    "[job]",
]


def reads(toml: str, tmp_path: Path) -> bool:
    path = tmp_path / "job.toml"
    path.write_text(toml, encoding="utf-8")
    try:
        read([path], {}, COMMANDS, {})
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("toml", YES)
def test_what_both_take(toml, tmp_path):
    assert [e.message for e in SCHEMA.iter_errors(tomllib.loads(toml))] == []
    assert reads(toml, tmp_path)


@pytest.mark.parametrize("toml", NO)
def test_what_both_refuse(toml, tmp_path):
    assert not SCHEMA.is_valid(tomllib.loads(toml))
    assert not reads(toml, tmp_path)


def test_every_option_is_a_described_key():
    Draft202012Validator.check_schema(job_schema())
    properties = job_schema()["$defs"]["job"]["properties"]
    assert {"command", "inputs", *(name.replace("_", "-") for name in (*OPTIONS, *SCORE_OPTIONS))} == set(properties)
    assert all(p.get("description") for p in properties.values())


def test_every_default_is_allowed_by_its_own_key():
    from embedctl.spec import JobSpec

    properties = job_schema()["$defs"]["job"]["properties"]
    for field in fields(JobSpec):
        key = field.name.replace("_", "-")
        if key in properties and field.default not in (None, ()):
            value = list(field.default) if isinstance(field.default, tuple) else field.default
            assert Draft202012Validator(properties[key]).is_valid(value), key


def test_the_command_prints_it(here):
    done = here("run", "--schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == job_schema()
