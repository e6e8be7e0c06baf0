"""The README's command lines are ones the program takes, its job file one that is read, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path

import pytest
import typer.main

from embedctl.cli.app import app
from embedctl.job.commands import COMMANDS
from embedctl.job.jobfile import read

PATH = Path(__file__).resolve().parents[2] / "README.md"
TEXT = PATH.read_text(encoding="utf-8")
GUIDE = re.sub(r"<!-- help: .*?-->\n```\n.*?```\n", "", TEXT, flags=re.DOTALL)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
LINES = sorted(
    {
        line
        for language, block in BLOCKS
        for line in block.splitlines()
        if not language and re.search(r"(^|[|=]\S* )embedctl ", line)
    }
)


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_one_the_program_takes(line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[words.index("embedctl") + 1 :]
    command = typer.main.get_command(app)
    name = "embedctl"
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            break
        name, *words = words
        command = command.commands[name]
    command.make_context(name, words)


def test_there_are_lines_of_every_command() -> None:
    told = {shlex.split(line, comments=True)[1] for line in LINES if line.startswith("embedctl ")}
    known = set(typer.main.get_command(app).commands)
    assert known - told <= {"retry", "bench", "doctor"}, "these are told in the prose"


def test_the_job_file_is_read(tmp_path: Path) -> None:
    (block,) = [b for language, b in BLOCKS if language == "toml" and "[job." in b]
    (tmp_path / "job.toml").write_text(block, encoding="utf-8")
    jobs = read([tmp_path / "job.toml"], {}, COMMANDS, {"QDRANT_HOST": "localhost"})
    assert [(job.name, job.command) for job in jobs] == [("articles", "sync"), ("tickets", "embed")]


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-")
        for h in re.findall(
            r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
        )
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", GUIDE):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            here = Path(str(files("embedctl"))).parent if target.startswith("embedctl/") else PATH.parent
            assert (here / target).exists(), target


def test_only_two_pages_of_help_stand_there() -> None:
    assert re.findall(r"<!-- help: embedctl(.*?) -->", TEXT) == ["", " embed"]
