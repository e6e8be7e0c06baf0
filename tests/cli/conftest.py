"""What the tests of several commands share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from embedctl.cli.app import main


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Like `embedctl`, from the same empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        said = capsys.readouterr()
        return subprocess.CompletedProcess(args, code, said.out, said.err)

    return run
