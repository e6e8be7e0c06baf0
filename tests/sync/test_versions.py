"""Versions stand whole, can be gone back to, and small parts are merged, wherever a run is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedctl import job
from embedctl.errors import UsageError
from embedctl.events import Silent
from embedctl.job import versions
from embedctl.job.report import status
from tests.sync.world import World, counting, fresh_rows, killed_at, rows_in, spec_of


def world_of(tmp_path: Path, rows: int = 60) -> World:
    world = World(tmp_path / "corpus", random.Random(4))
    world.split([world.row() for _ in range(rows)], 4)
    return world


def nights(world: World, to: Path, count: int) -> None:
    job.sync(spec_of(world, to), Silent())
    for _ in range(count):
        for edit in ("change", "add", "payload", "delete"):
            world.edit(edit)
        job.sync(spec_of(world, to), Silent())


def test_versions_are_listed_and_the_newest_kept(tmp_path: Path) -> None:
    world, out = world_of(tmp_path), tmp_path / "out"
    nights(world, out, 4)
    listed = versions.versions(str(out))["versions"]
    assert [v["generation"] for v in listed] == [4, 5]
    assert [v["current"] for v in listed] == [False, True]
    assert listed[1]["units"] == len(rows_in(out))
    world.edit("add")
    job.sync(spec_of(world, out, keep_versions=4), Silent())
    assert len(versions.versions(str(out))["versions"]) == 3


def test_going_back_and_on(tmp_path: Path) -> None:
    world, out = world_of(tmp_path), tmp_path / "out"
    nights(world, out, 2)
    before = rows_in(out)
    for edit in ("change", "add", "delete", "shuffle"):
        world.edit(edit)
    job.sync(spec_of(world, out), Silent())
    assert rows_in(out) != before
    name = versions.versions(str(out))["versions"][0]["name"]
    done = versions.roll_back(str(out), name, Silent())
    assert rows_in(out) == before == rows_in((out / ".embedctl" / "current").resolve())
    assert done.units == len(before)
    assert done.rows.balanced()
    job.sync(spec_of(world, out), Silent())
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


def test_an_unknown_version_is_named_with_those_there_are(tmp_path: Path) -> None:
    world, out = world_of(tmp_path), tmp_path / "out"
    nights(world, out, 1)
    with pytest.raises(UsageError, match="no version 'out__x_9'; there are out__"):
        versions.roll_back(str(out), "out__x_9", Silent())


def test_small_parts_are_merged_without_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, out = world_of(tmp_path), tmp_path / "out"
    nights(world, out, 5)
    world.edit("null")
    job.sync(spec_of(world, out), Silent())
    before, parts, books = rows_in(out), len(list(out.glob("*.parquet"))), status(str(out))["files"]
    encoded = counting(monkeypatch)
    done = versions.compact(str(out), Silent())
    assert rows_in(out) == before
    assert len(list(out.glob("*.parquet"))) < parts
    assert done.units == len(before)
    assert encoded == []
    after = status(str(out))
    assert {u: (b["read"], b["dead"]) for u, b in after["files"].items()} == {
        u: (b["read"], b["dead"]) for u, b in books.items()
    }
    assert len(list(job.dead_letters(str(out)))) == 1
    assert versions.compact(str(out), Silent()).status == "nothing to merge"
    again = job.sync(spec_of(world, out), Silent())
    assert again.status == "already in sync"
    world.edit("change")
    done = job.sync(spec_of(world, out), Silent())
    assert done.details["changes"]["files_unread"] >= 2
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


@pytest.mark.parametrize("what", ["compact", "back"])
def test_killed_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    world, out = world_of(tmp_path, 30), tmp_path / "out"
    nights(world, out, 2)
    for kill in range(1, 30, 5):
        world.edit("change")
        job.sync(spec_of(world, out), Silent())
        wanted = rows_in(out)
        name = versions.versions(str(out))["versions"][0]["name"]
        if what == "back":
            wanted = rows_in(out / ".embedctl" / "versions" / name)

        def go(name: str = name) -> object:
            return (
                versions.compact(str(out), Silent())
                if what == "compact"
                else versions.roll_back(str(out), name, Silent())
            )

        if killed_at(monkeypatch, kill, go) is None:  # type: ignore[arg-type]
            go()
        assert rows_in(out) == wanted
        assert rows_in((out / ".embedctl" / "current").resolve()) == wanted
    job.sync(spec_of(world, out), Silent())
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")
