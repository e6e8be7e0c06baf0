"""Tiny models, made once, and the command run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from embedctl.cli.app import main
from tests.media.models import build, clap, clip, colpali

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def clip_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clip, tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture(scope="session")
def clap_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clap, tmp_path_factory.mktemp("models") / "clap")


@pytest.fixture(scope="session")
def page_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(colpali, tmp_path_factory.mktemp("models") / "colpali")


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Run `embedctl ARGS` in a folder of the test's own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(a) for a in args])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run
