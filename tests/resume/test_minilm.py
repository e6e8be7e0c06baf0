"""The same promise with the real model: killed in its work, resumed, byte for byte the unbroken run."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedctl.testing.resume import assert_same_after_resume, parts, run, run_and_kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CORPUS = Path(__file__).parents[2] / "sample_corpora" / "real" / "pydocs.parquet"
ARGUMENTS = ["embed", str(CORPUS), "--window-rows", "40"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "out"
    done = run([*ARGUMENTS, "--to", str(out)])
    assert done.returncode == 0, done.stderr
    assert len(parts(out)) > 5
    return out


@pytest.mark.parametrize("point", ["staged:9", "after-part:2", "before-ledger:5", "after-ledger:8"])
def test_killed_at_a_commit(unbroken: Path, tmp_path: Path, point: str) -> None:
    out = tmp_path / "out"
    assert run([*ARGUMENTS, "--to", str(out)], failpoint=point).returncode == -9
    assert parts(out).items() < parts(unbroken).items()
    assert_same_after_resume(ARGUMENTS, unbroken, out)


def test_killed_whenever(unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for after_s in (2.5, 3.5, 4.0, 4.5):
        run_and_kill([*ARGUMENTS, "--to", str(out)], after_s)
    assert_same_after_resume(ARGUMENTS, unbroken, out)
