"""What is lost beside a Parquet destination, after some nights: the next sync is right, or says what to do."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embedctl import job
from embedctl.errors import EmbedctlError, PlanMismatch
from embedctl.events import Silent
from embedctl.job import rebuild
from embedctl.job.delete import delete
from embedctl.job.versions import compact
from embedctl.query import verify
from embedctl.testing.resume import run
from tests.sync.world import World, counting, fresh_rows, killed_at, rows_in, spec_of

STATE = ".embedctl"


def _ledger(out: Path) -> None:
    shutil.rmtree(out / STATE / "ledger")


def _all(out: Path) -> None:
    shutil.rmtree(out / STATE)


def _rows_state(out: Path) -> None:
    for path in (out / STATE).glob("rows-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _torn_ledger(out: Path) -> None:
    for path in (out / STATE / "ledger").glob("*.seg"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _dead(out: Path) -> None:
    shutil.rmtree(out / STATE / "dead", ignore_errors=True)
    (out / "dead_letters.jsonl").unlink(missing_ok=True)


def _versions(out: Path) -> None:
    shutil.rmtree(out / STATE / "versions", ignore_errors=True)
    (out / STATE / "current").unlink(missing_ok=True)


def _part(out: Path) -> None:
    sorted(out.glob("*.parquet"))[1].unlink()


def _plan(out: Path) -> None:
    max((out / STATE).glob("plan-*.json")).unlink()


def _plans(out: Path) -> None:
    for path in (out / STATE).glob("plan-*.json"):
        path.unlink()


def _plan_and_ledger(out: Path) -> None:
    _plan(out)
    _ledger(out)


def _torn_dead(out: Path) -> None:
    for path in (out / STATE / "dead").glob("*.jsonl"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _ledger_and_part(out: Path) -> None:
    _ledger(out)
    _part(out)


LOSSES: dict[str, Callable[[Path], None]] = {
    f.__name__[1:]: f
    for f in (
        _ledger, _all, _rows_state, _torn_ledger, _dead, _versions, _part, _ledger_and_part, _plan, _plans,
        _plan_and_ledger, _torn_dead,
    )
}  # fmt: skip


def _lived(tmp_path: Path, nights: int) -> tuple[World, Path]:
    world, out = World(folder=tmp_path / "corpus", chance=random.Random(nights)), tmp_path / "out"
    world.split([world.row() for _ in range(60)], 3)
    job.sync(spec_of(world, out), Silent())
    for _ in range(nights):
        for name in ("add", "change", "payload", "delete", "null", "twice"):
            world.edit(name)
        job.sync(spec_of(world, out), Silent())
    return world, out


@pytest.mark.parametrize("nights", [0, 1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_next_night_is_right(loss: str, nights: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, out = _lived(tmp_path, nights)
    LOSSES[loss](out)
    world.edit("change")
    encoded = counting(monkeypatch)
    summary = job.sync(spec_of(world, out), Silent())
    assert summary.rows.balanced()
    again = sum(encoded)
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")
    assert summary.rows.written + summary.rows.unchanged == len(rows_in(out))
    if not ("part" in loss or loss == "torn_ledger"):
        dead_again = sum(row["text"] is None for row in world.every())
        assert again <= 1 + dead_again + 3, "only what changed is embedded"
    job.sync(spec_of(world, out), Silent())
    assert verify.verify(str(out), sample=10, listener=Silent())["ok"]
    compact(str(out), Silent())
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


@pytest.mark.parametrize("nights", [0, 1, 3])
def test_a_rebuilt_ledger_is_as_good(nights: int, tmp_path: Path) -> None:
    world, out = _lived(tmp_path, nights)
    before = rows_in(out)
    _ledger(out)
    told = rebuild.rebuild(str(out), listener=Silent())
    assert told["windows"] == len(list(out.glob("*.parquet")))
    assert told["finished"] == (nights > 0)
    again = rebuild.rebuild(str(out), listener=Silent())
    assert (again["windows"], again["adopted"]) == (told["windows"], 0)
    assert rows_in(out) == before
    summary = job.sync(spec_of(world, out), Silent())
    assert summary.rows.balanced()
    assert rows_in(out) == before


def test_other_settings_do_not_take_parts_over(tmp_path: Path) -> None:
    world, out = _lived(tmp_path, 1)
    _all(out)
    before = rows_in(out)
    for more in ({"model": ("fake:dim=5",)}, {"keep": ("lang",)}):
        with pytest.raises(EmbedctlError) as raised:
            job.sync(spec_of(world, out, **more), Silent())
        assert isinstance(raised.value, PlanMismatch), raised.value
        assert "other settings" in str(raised.value)
    with pytest.raises(PlanMismatch, match="no telling"):
        job.sync(spec_of(world, out), Silent(), dry_run=True)
    assert rows_in(out) == before
    assert job.sync(spec_of(world, out), Silent()).rows.balanced()


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    world, out = _lived(tmp_path, 2)
    _ledger(out)
    part = sorted(out.glob("*.parquet"))[1]
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(EmbedctlError, match=part.name) as raised:
        job.sync(spec_of(world, out), Silent())
    assert "move it away" in str(raised.value.hint)
    part.rename(tmp_path / part.name)
    assert job.sync(spec_of(world, out), Silent()).rows.balanced()
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


def test_a_file_that_was_begun_and_not_finished_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run dies in the middle of a file, another file changes, and from then on it is a sync."""
    world, out = World(folder=tmp_path / "corpus", chance=random.Random(7)), tmp_path / "out"
    world.split([world.row() for _ in range(60)], 2)
    assert killed_at(monkeypatch, 12, lambda: job.sync(spec_of(world, out, slice_bytes=100_000), Silent())) is None
    begun = len(rows_in(out))
    assert 0 < begun < 30, "in the first file"
    world.files["s001.jsonl"][3]["text"] = "other"
    world.write("s001.jsonl")
    summary = job.sync(spec_of(world, out, slice_bytes=100_000), Silent())
    assert (summary.rows.read, summary.rows.unchanged) == (60, begun)
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


@pytest.mark.parametrize("loss", ["ledger", "torn_ledger", "plan"])
def test_what_cannot_mend_a_ledger_names_what_can(loss: str, tmp_path: Path) -> None:
    world, out = _lived(tmp_path, 2)
    LOSSES[loss](out)
    before = rows_in(out)
    commands: list[Callable[[], object]] = [
        lambda: compact(str(out), Silent()),
        lambda: verify.verify(str(out), listener=Silent()),
        lambda: job.sync(spec_of(world, out), Silent(), dry_run=True),
    ]
    if loss == "plan":
        commands += [lambda: job.retry(str(out), {}, Silent()), lambda: delete(str(out), ["r1"], listener=Silent())]
    for command in commands:
        with pytest.raises(
            EmbedctlError, match="its newest plan is gone" if loss == "plan" else "its ledger is gone"
        ) as raised:
            command()
        assert f"embedctl state rebuild {out}" in str(raised.value.hint)
    told = rebuild.rebuild(str(out), listener=Silent())
    assert (told["finished"], told["lost"]) == (True, 0)
    assert rows_in(out) == before
    assert verify.verify(str(out), listener=Silent())["ok"]
    assert compact(str(out), Silent()).rows.balanced()


def test_embed_does_not_plan_over_parts_of_many_nights(tmp_path: Path) -> None:
    world, out = _lived(tmp_path, 1)
    _all(out)
    with pytest.raises(PlanMismatch, match="its plan is gone") as raised:
        job.embed(spec_of(world, out), Silent())
    assert "embedctl sync" in str(raised.value.hint)
    assert not list((out / STATE).glob("plan-*.json"))
    assert job.sync(spec_of(world, out), Silent()).rows.balanced()
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


def _sync_until_it_fails(world: World, out: Path) -> None:
    """A part is only looked at when a row in it goes, or its file has changed."""
    for _ in range(5):
        job.sync(spec_of(world, out), Silent())
        world.edit("shuffle")


@pytest.mark.parametrize("nights", [0, 2])
def test_a_torn_part_is_named_and_mended_once_it_is_moved_away(nights: int, tmp_path: Path) -> None:
    """Its ledger is whole, and the night is begun before the damage is met."""
    world, out = _lived(tmp_path, nights)
    for part in sorted(out.glob("*.parquet"))[1::2]:
        content = part.read_bytes()
        part.unlink()  # versions have hard links to it
        part.write_bytes(content[: len(content) // 2])
    for name in ("change", "delete", "add"):
        world.edit(name)
    for path in sorted(out.glob("*.parquet"))[1::2]:
        with pytest.raises(EmbedctlError, match="not a readable part") as raised:
            _sync_until_it_fails(world, out)
        assert "move it away: the next embedctl sync" in str(raised.value.hint)
        path.unlink()
    assert job.sync(spec_of(world, out), Silent()).rows.balanced()
    job.sync(spec_of(world, out), Silent())
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")
    assert verify.verify(str(out), sample=10, listener=Silent())["ok"]


def test_rebuild_tells_of_parts_that_are_gone(tmp_path: Path) -> None:
    world, out = _lived(tmp_path, 1)
    _part(out)
    told = rebuild.rebuild(str(out), listener=Silent())
    assert (told["finished"], told["lost"]) == (False, 1)
    job.sync(spec_of(world, out), Silent())
    assert rebuild.rebuild(str(out), listener=Silent())["finished"]
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")


def test_a_later_plan_of_another_recipe_is_not_made_up(tmp_path: Path) -> None:
    world, out = _lived(tmp_path, 1)
    job.sync(spec_of(world, out, model=("fake:dim=5",), migrate=True), Silent())
    before = rows_in(out)
    _plan(out)
    with pytest.raises(PlanMismatch, match="made with other settings than the plan before") as raised:
        rebuild.rebuild(str(out), listener=Silent())
    assert "plan-*.json away" in str(raised.value.hint)
    _plans(out)
    job.sync(spec_of(world, out, model=("fake:dim=5",)), Silent())
    assert rows_in(out) == before


@pytest.mark.parametrize("point", ["before-ledger", "after-ledger", "after-ledger:2"])
@pytest.mark.parametrize("loss", ["ledger", "plan"])
def test_a_rebuild_that_is_killed_is_done_again(
    loss: str, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, out = _lived(tmp_path, 2)
    LOSSES[loss](out)
    before = rows_in(out)
    assert run(["state", "rebuild", str(out)], failpoint=point).returncode == -9
    assert rows_in(out) == before
    told = rebuild.rebuild(str(out), listener=Silent())
    assert (told["finished"], told["lost"], told["windows"]) == (True, 0, len(list(out.glob("*.parquet"))))
    world.edit("change")
    encoded = counting(monkeypatch)
    assert job.sync(spec_of(world, out), Silent()).rows.balanced()
    assert sum(encoded) <= 1 + 3
    assert rows_in(out) == fresh_rows(world, tmp_path / "fresh")
