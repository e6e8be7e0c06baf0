"""Random nights: whatever is edited and whenever a sync dies, the destination ends equal to a full fresh run."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedctl import job
from embedctl.events import Silent
from tests.sync.world import EDITS, World, fresh_rows, killed_at, rows_in, spec_of

NIGHTS = st.lists(
    st.tuples(st.lists(st.sampled_from(EDITS), min_size=1, max_size=4), st.integers(0, 40)), min_size=1, max_size=4
)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30), nights=NIGHTS)
def test_any_nights_leave_what_a_fresh_run_gives(
    kind: str, seed: int, nights: list[tuple[list[str], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    live_through(kind, seed, nights, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30), nights=NIGHTS)
def test_many_more_nights(
    kind: str, seed: int, nights: list[tuple[list[str], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    live_through(kind, seed, nights, tmp_path_factory)


def live_through(
    kind: str, seed: int, nights: list[tuple[list[str], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("nights")
    world = World(here / "corpus", random.Random(seed), kind)
    world.split([world.row() for _ in range(world.chance.randint(1, 40))], world.chance.randint(1, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)  # what is killed here is a process, not a machine
        rule = world.chance.choice(["first", "dead-letter"])
        spec = spec_of(world, here / "out", on_duplicate=rule)
        job.sync(spec, Silent())
        for edits, kill in nights:
            for edit in edits:
                world.edit(edit)
            while kill and killed_at(patch, kill, lambda: job.sync(spec, Silent())) is None:
                kill = kill * 2 if world.chance.random() < 0.7 else 0
                if world.chance.random() < 0.3:
                    world.edit("change")
            done = job.sync(spec, Silent())
            assert done.rows.balanced()
            check(world, here, done.units, rule)


def check(world: World, here: Path, units: int, rule: str) -> None:
    found = rows_in(here / "out")
    assert {row["id"] for row in found.values()} == set(world.live())
    assert units == len(found)
    assert found == fresh_rows(world, here / "fresh", on_duplicate=rule)
    current = here / "out" / ".embedctl" / "current"
    if current.is_symlink():
        assert rows_in(current.resolve()) == found
