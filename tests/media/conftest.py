"""Tiny models, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.media.models import build, clap, clip, colpali


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
