"""A sync into a store: the embedded engine ends equal to a fresh run, wherever it dies."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedctl import job
from embedctl.errors import EmbedctlError
from embedctl.events import Silent
from embedctl.job.delete import delete
from embedctl.job.destination import open_existing
from embedctl.job.rebuild import rebuild
from embedctl.sinks.base import Scannable
from tests.sync.world import World, counting, fresh_rows, killed_at, spec_of


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = World(tmp_path / "corpus", random.Random(3))
    made.split([made.row() for _ in range(40)], 4)
    return made


@pytest.fixture
def to(tmp_path: Path) -> str:
    return f"qdrant-edge://{tmp_path}/edge"


def held(world: World, to: str) -> dict[str, dict[str, Any]]:
    """Id and chunk -> what the store holds."""
    _, found = open_existing(spec_of(world, to))
    assert isinstance(found.sink, Scannable)
    rows: dict[str, dict[str, Any]] = {}
    for batch in found.sink.scan():
        for row in batch.to_pylist():
            key = f"{row['id']}#{row.get('chunk') or 0}"
            assert key not in rows
            rows[key] = row
    found.sink.close()
    return rows


def agrees(world: World, to: str, folder: Path, **more: Any) -> bool:
    """Same rows, chunks, kept columns; vectors as the engine's cosine distance keeps them."""
    found, wanted = held(world, to), fresh_rows(world, folder, **more)
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        assert (found[key]["lang"], found[key]["n"]) == (row["lang"], row["n"])
        unit = np.array(row["embedding"]) / np.linalg.norm(row["embedding"])
        np.testing.assert_allclose(found[key]["embedding"], unit, atol=1e-6)
    return True


def run(world: World, to: str, **more: Any) -> Callable[[], Any]:
    return lambda: job.sync(spec_of(world, to, create=True, **more), Silent())


def test_changed_rows_replace_theirs_and_vanished_ones_go(
    world: World, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world, to)()
    encoded = counting(monkeypatch)
    world.files["s000.jsonl"][0]["text"] = "other"
    del world.files["s001.jsonl"][0]
    world.files["s002.jsonl"].append(world.row())
    world.edit_shuffle()
    done = run(world, to)()
    assert (sum(encoded), done.units, done.rows.unchanged) == (2, 40, 38)
    assert agrees(world, to, tmp_path / "fresh")
    assert run(world, to)().status == "already in sync"


def test_surplus_chunks_go(world: World, to: str, tmp_path: Path) -> None:
    more = {"chunk": "tokens:4"}
    world.files["s000.jsonl"][0]["text"] = "one two three four five six seven eight nine ten eleven twelve"
    world.write_all()
    run(world, to, **more)()
    world.files["s000.jsonl"][0]["text"] = "one two three"
    world.files["s001.jsonl"][0]["text"] = "one two three four five six seven eight nine ten eleven"
    world.write_all()
    run(world, to, **more)()
    assert agrees(world, to, tmp_path / "fresh", **more)


def test_rows_deleted_by_id_come_back_where_the_corpus_has_them(world: World, to: str, tmp_path: Path) -> None:
    run(world, to)()
    delete(to, ["r3", "r9"], listener=Silent())
    assert len(held(world, to)) == 38
    assert run(world, to)().details["changes"]["added"] == 2
    assert agrees(world, to, tmp_path / "fresh")
    assert run(world, to)().status == "already in sync"


@pytest.mark.parametrize("first", [1, 3])
def test_nights_with_kills(world: World, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    run(world, to)()
    for kill in range(first, 40, 12):
        for edit in ("change", "add", "delete", "payload", "twice", "null", "shuffle"):
            world.edit(edit)
        killed_at(monkeypatch, kill, run(world, to))
        if kill % 4 == 1:
            world.edit("change")
        done = run(world, to)()
        assert done.rows.balanced()
        assert agrees(world, to, tmp_path / "fresh")


@pytest.mark.parametrize("loss", ["state", "plan"])
@pytest.mark.parametrize("more", [{}, {"chunk": "tokens:4"}, {"on_duplicate": "dead-letter"}])
def test_a_state_lost_after_some_nights_is_rebuilt(
    world: World, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, more: dict[str, Any]
) -> None:
    night = run(world, to, **more)
    night()
    for _ in range(2):
        for edit in ("add", "change", "payload", "delete", "null", "twice"):
            world.edit(edit)
        night()
    state = next((tmp_path / "state").rglob(".embedctl"))
    if loss == "state":
        shutil.rmtree(state.parent)
    else:
        max(state.glob("plan-*.json")).unlink()
    world.edit("change")
    with pytest.raises(EmbedctlError) as raised:
        night()
    assert f"embedctl state rebuild {to}" in str(raised.value.hint)
    assert rebuild(to, listener=Silent())["finished"]
    encoded = counting(monkeypatch)
    assert night().rows.balanced()
    assert sum(encoded) <= 4, "the changed row, in up to four chunks"
    assert agrees(world, to, tmp_path / "fresh", **more)
