"""Standard input cannot be read again: a resume is fed the same bytes, and is refused others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedctl.testing.resume import parts

LINES = [json.dumps({"id": f"r{i}", "text": f"row {i}"}) + "\n" for i in range(200)]


def feed(out: Path, lines: list[str], *flags: str, failpoint: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **({"EMBEDCTL_FAILPOINT": failpoint} if failpoint else {})}
    command = ["embed", "-", "--to", str(out), "--window-rows", "64", "--model", "fake:dim=8", *flags]
    return subprocess.run(
        [sys.executable, "-m", "embedctl", *command],
        input="".join(lines), capture_output=True, text=True, env=environ, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("flags", [(), ("--vector-type", "int8")])
def test_the_same_input_again_gives_the_same_bytes(tmp_path: Path, flags: tuple[str, ...]) -> None:
    whole = feed(tmp_path / "whole", LINES, *flags)
    assert whole.returncode == 0, whole.stderr
    assert feed(tmp_path / "out", LINES, *flags, failpoint="after-part:3").returncode < 0
    again = feed(tmp_path / "out", LINES, *flags)
    assert again.returncode == 0, again.stderr
    assert parts(tmp_path / "out") == parts(tmp_path / "whole")


@pytest.mark.parametrize("other", [['{"id": "x", "text": "y"}\n', *LINES[1:]], LINES[:10]])
def test_other_or_shorter_input_is_refused(tmp_path: Path, other: list[str]) -> None:
    assert feed(tmp_path / "out", LINES, failpoint="after-part:3").returncode < 0
    before = parts(tmp_path / "out")
    assert before
    refused = feed(tmp_path / "out", other)
    assert refused.returncode == 6, refused.stderr
    assert parts(tmp_path / "out") == before
