"""A process killed at any point, then run again, leaves the bytes of an unbroken run."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import COMMIT_POINTS, assert_same_after_resume, moments, parts, run, run_and_kill
from tests.resume.conftest import ROWS, SMALL, row


def arguments(corpus: Path, *more: str) -> list[str]:
    return ["embed", str(corpus), *SMALL, "--keep", "lang,n", *more]


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "out"
    done = run([*arguments(corpus), "--to", str(out)])
    assert done.returncode == 3, done.stderr
    return out


@pytest.mark.parametrize("point", COMMIT_POINTS)
@pytest.mark.parametrize("which", [1, 7])
def test_killed_at_a_commit_boundary(corpus: Path, unbroken: Path, tmp_path: Path, point: str, which: int) -> None:
    out = tmp_path / "out"
    killed = run([*arguments(corpus), "--to", str(out)], failpoint=f"{point}:{which}")
    assert killed.returncode == -9, killed.stderr
    assert_same_after_resume(arguments(corpus), unbroken, out)


def test_killed_at_every_boundary_in_turn(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    """One run that dies at each commit, again and again, still ends the same."""
    out = tmp_path / "out"
    for i in range(2 * ROWS):
        point = COMMIT_POINTS[i % len(COMMIT_POINTS)]
        if run([*arguments(corpus), "--to", str(out)], failpoint=f"{point}:2").returncode != -9:
            break
    assert_same_after_resume(arguments(corpus), unbroken, out)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    after_s = moments([*arguments(corpus), "--to", str(tmp_path / "whole")], seed=len(str(corpus.name)))
    kills = 0
    for attempt in range(120):
        out = tmp_path / f"out{attempt}"
        slow = [*arguments(corpus), "--to", str(out)]
        while run_and_kill(slow, next(after_s)) == -9:
            kills += 1
        assert parts(out) == parts(unbroken)
        if kills >= 25:
            break
    assert kills >= 25


def test_books_of_the_resumed_run(corpus: Path, unbroken: Path) -> None:
    tables = [pq.read_table(p) for p in sorted(unbroken.glob("*.parquet"))]
    ids = [i for t in tables for i in t.column("id").to_pylist()]
    assert len(ids) == len(set(ids))
    assert set(ids) == {row(i)["id"] for i in range(ROWS) if row(i)["text"] is not None}
