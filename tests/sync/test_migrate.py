"""Another model: all is embedded anew beside the old, over several nights, and switched when done."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedctl import job
from embedctl.errors import GuardRefused, LimitReached, PlanMismatch, UsageError
from embedctl.events import Silent
from embedctl.job import versions
from tests.sync.world import World, fresh_rows, killed_at, rows_in, spec_of

OTHER = {"model": ("fake:dim=6",), "migrate": True}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "corpus", random.Random(3))
    made.split([made.row() for _ in range(40)], 4)
    return made


def test_a_migration_over_several_nights(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job.sync(spec_of(world, out), Silent())
    world.edit("change")
    world.files["s001.jsonl"][0]["text"] = None
    world.write_all()
    job.sync(spec_of(world, out), Silent())
    before, nights = rows_in(out), 0
    while True:
        nights += 1
        try:
            done = job.sync(spec_of(world, out, time_limit="0s", **OTHER), Silent())
            break
        except LimitReached:
            assert rows_in(out) == before
            assert rows_in((out / ".embedctl" / "current").resolve()) == before
            if nights == 3:
                for edit in ("change", "add", "delete"):
                    world.edit(edit)
        assert nights < 30
    assert nights > 3
    assert done.status == "migrated"
    assert done.rows.balanced()
    assert (
        rows_in(out)
        == fresh_rows(world, tmp_path / "fresh", **OTHER)
        == rows_in((out / ".embedctl" / "current").resolve())
    )
    assert not (out / ".embedctl" / "next").exists()
    assert len(list(job.dead_letters(str(out)))) == 1
    now = {"model": OTHER["model"]}
    assert job.sync(spec_of(world, out, **now), Silent()).status == "already in sync"
    assert job.sync(spec_of(world, out, **OTHER), Silent()).status == "already in sync"
    world.edit("change")
    done = job.sync(spec_of(world, out, **now), Silent())
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh", **now)
    name = versions.versions(str(out))["versions"][0]["name"]
    versions.roll_back(str(out), name, Silent())


def test_going_back_to_the_old_model(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job.sync(spec_of(world, out), Silent())
    before = rows_in(out)
    job.sync(spec_of(world, out, **OTHER), Silent())
    assert rows_in(out) != before
    versions.roll_back(str(out), versions.versions(str(out))["versions"][0]["name"], Silent())
    assert rows_in(out) == before
    world.edit("add")
    job.sync(spec_of(world, out), Silent())
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


@pytest.mark.parametrize("first", [1, 4])
def test_killed_anywhere(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    out = tmp_path / "out"
    job.sync(spec_of(world, out), Silent())
    kill, deaths = first, 0
    while killed_at(monkeypatch, kill, lambda: job.sync(spec_of(world, out, **OTHER), Silent())) is None:
        kill, deaths = kill + 5, deaths + 1
        assert deaths < 40
    assert deaths > 3
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh", **OTHER)
    assert job.sync(spec_of(world, out, model=OTHER["model"]), Silent()).status == "already in sync"


def test_a_migration_to_far_fewer_rows_is_refused(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job.sync(spec_of(world, out), Silent())
    before = rows_in(out)
    del world.files["s001.jsonl"]
    world.write_all()
    with pytest.raises(GuardRefused, match="30 rows, 10 fewer than before"):
        job.sync(spec_of(world, out, max_delete="5%", **OTHER), Silent())
    assert rows_in(out) == before
    with pytest.raises(PlanMismatch):
        job.sync(spec_of(world, out, model=OTHER["model"]), Silent())


def test_a_store_says_how(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    to = f"qdrant-edge://{tmp_path}/edge"
    job.sync(spec_of(world, to, create=True), Silent())
    with pytest.raises(UsageError, match="is a store"):
        job.sync(spec_of(world, to, **OTHER), Silent())
