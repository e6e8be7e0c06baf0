"""The examples for cron, systemd and Kubernetes are parsed by what will read them, and hold real command lines."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from croniter import croniter
from jsonschema import Draft202012Validator

from embedctl import errors
from embedctl.cli.jobschema import job_schema
from embedctl.job.commands import COMMANDS
from embedctl.job.jobfile import read

EXAMPLES = Path(str(files("embedctl") / "examples"))
SIMPLE_CODES = set(errors.EXIT_CODES)


def text_of(name: str) -> str:
    return (EXAMPLES / name).read_text(encoding="utf-8")


def cron_lines() -> list[tuple[str, str]]:
    """(schedule, command) of each job of the crontab."""
    found = []
    for line in text_of("crontab").splitlines():
        if line and not line.startswith("#") and not re.match(r"[A-Z_]+=", line):
            *schedule, command = line.split(maxsplit=5)
            found.append((" ".join(schedule), command))
    return found


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(text_of(name))
    return parser


def cronjob() -> dict:
    return yaml.safe_load(text_of("cronjob.yaml"))


def container() -> dict:
    (only,) = cronjob()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return only


def command_lines() -> list[list[str]]:
    lines = [shlex.split(command) for _, command in cron_lines()]
    lines += [shlex.split(unit("embedctl.service")["Service"]["ExecStart"])]
    lines += [[*container()["command"], *container()["args"]]]
    return [[Path(line[0]).name, *line[1:]] for line in lines]


@pytest.mark.parametrize("line", command_lines(), ids=" ".join)
def test_command_lines_are_ones_the_program_takes(line, tmp_path, monkeypatch, capsys):
    """Parsed by the program itself, as far as the files that are not here."""
    from embedctl.cli.app import main

    monkeypatch.chdir(tmp_path)
    words = line[1:]
    if ">" in words:
        words = words[: words.index(">")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "cannot read the job file" in said or "no embeddings made by embedctl there" in said


def test_crontab():
    lines = cron_lines()
    assert len(lines) == 2
    for schedule, command in lines:
        assert croniter.is_valid(schedule), schedule
        assert "%" not in command, "cron takes % as a new line"


def test_systemd_units():
    service, timer = unit("embedctl.service")["Service"], unit("embedctl.timer")["Timer"]
    assert service["Type"] == "oneshot"
    assert timer["OnCalendar"]
    listed = {int(c) for key in ("SuccessExitStatus", "RestartPreventExitStatus") for c in service[key].split()}
    assert listed <= SIMPLE_CODES
    assert not listed & (errors.RESUMABLE - {9})


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
def test_systemd_takes_the_units(tmp_path):
    program = Path(sys.executable).parent / "embedctl"
    if not program.exists():
        pytest.skip("the program is not installed beside the interpreter")
    service = text_of("embedctl.service").replace("/usr/local/bin/embedctl", str(program))
    (tmp_path / "embedctl.service").write_text(service, encoding="utf-8")
    shutil.copy(EXAMPLES / "embedctl.timer", tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "embedctl.service", tmp_path / "embedctl.timer"],
        capture_output=True, encoding="utf-8", check=False, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if "embedctl" in line]
    assert (done.returncode, told) == (0, [])


def test_kubernetes_cronjob():
    job = cronjob()
    assert (job["apiVersion"], job["kind"], job["spec"]["concurrencyPolicy"]) == ("batch/v1", "CronJob", "Forbid")
    assert croniter.is_valid(job["spec"]["schedule"])
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "a podFailurePolicy needs it"
    (rule,) = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    codes = set(rule["onExitCodes"]["values"])
    assert codes == SIMPLE_CODES - errors.RESUMABLE - {0}
    assert {m["name"] for m in container()["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


def test_job_file(tmp_path):
    Draft202012Validator(job_schema()).validate(tomllib.loads(text_of("job.toml")))
    jobs = read([EXAMPLES / "job.toml"], {}, COMMANDS, {"DATA": "/srv/embedctl"})
    assert [(j.name, j.spec.inputs) for j in jobs] == [
        ("articles", ("/srv/embedctl/articles/*.parquet",)),
        ("tickets", ("/srv/embedctl/tickets.jsonl.zst",)),
    ]
