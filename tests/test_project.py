"""The project's own promises: versions agree, extras resolve, the wheel is what is tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import embedctl


@pytest.fixture(scope="module")
def project(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def test_version_is_the_installed_one():
    assert metadata.version("embedctl") == embedctl.__version__


@pytest.mark.skipif("EMBEDCTL_TEST_SITE" not in os.environ, reason="only scripts/check tests a built wheel")
def test_the_built_wheel_is_what_is_tested():
    assert Path(embedctl.__file__).is_relative_to(os.environ["EMBEDCTL_TEST_SITE"])


def test_core_is_lean(project: dict):
    names = {re.match(r"[\w-]+", d)[0] for d in project["project"]["dependencies"]}
    assert names == {"typer", "rich", "pyarrow", "numpy", "fsspec", "tokenizers", "zstandard", "duckdb"}


def test_extras(project: dict):
    extras = project["project"]["optional-dependencies"]
    assert {"torch", "gpu", "hub", "qdrant", "all", "dev"} <= extras.keys()
    assert not any("flash" in d for wanted in extras.values() for d in wanted), (
        "a plain install cannot build flash-attn"
    )
    for wanted in extras.values():
        for one in wanted:
            if match := re.fullmatch(r"embedctl\[(.*)\]", one):
                assert set(match[1].split(",")) <= extras.keys()


def test_licence_and_changelog(root: Path):
    assert "Apache License" in (root / "LICENSE").read_text(encoding="utf-8")
    assert (root / "CHANGELOG.md").read_text(encoding="utf-8").startswith("# Changelog")


def test_readme_help_equals_help(root: Path):
    done = subprocess.run(
        [sys.executable, root / "scripts" / "readme_help", "--check"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readme_names_every_exit_code(root: Path):
    from embedctl import errors

    codes = {c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EmbedctlError)}
    rows = re.findall(r"^\| ([\d, ]+) \|", (root / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    told = {int(code) for row in rows for code in row.split(",")}
    assert codes | {errors.EXIT_OK, errors.EXIT_NEW_DEAD, 143} <= told


def test_readme_documents_every_summary_key(root: Path):
    from embedctl.events import Rows, Summary

    summary = Summary(
        status="done",
        exit_code=0,
        destination="",
        recipe="",
        rows=Rows(),
        units=0,
        tokens=0,
        truncated=0,
        padding=0,
        seconds={},
    )
    text = (root / "README.md").read_text(encoding="utf-8")
    assert [k for k in (*summary.to_json(), *Rows().to_json()) if f"`{k}`" not in text] == []


@pytest.mark.parametrize("name", ["test", "check", "quickstart", "readme_help"])
def test_scripts_are_executable(root: Path, name: str):
    assert os.access(root / "scripts" / name, os.X_OK)


@pytest.mark.parametrize("name", ["scripts/test", "scripts/check", "scripts/quickstart", "scripts/env.sh", ".ci/run"])
def test_shell_scripts_parse(root: Path, name: str):
    path = root / name
    if not path.exists():
        pytest.skip("not part of this copy")
    done = subprocess.run(["bash", "-n", path], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
