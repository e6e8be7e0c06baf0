"""What a corpus does to people at night: columns that come and go, files that lie about their age, damaged state."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from embedctl import job
from embedctl.errors import GuardRefused
from embedctl.events import Silent, Summary
from embedctl.query.verify import verify
from tests.sync.world import World, fresh_rows, rows_in, spec_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "corpus", random.Random(3))
    made.split([made.row() for _ in range(40)], 4)
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


class Heard(Silent):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def sync(world: World, out: Path, *, dry_run: bool = False, heard: Silent | None = None, **more: Any) -> Summary:
    return job.sync(spec_of(world, out, **more), heard or Silent(), dry_run=dry_run)


def without(world: World, name: str, column: str) -> None:
    """The file, written again with this column gone."""
    lines = (json.dumps({k: v for k, v in row.items() if k != column}) for row in world.files[name])
    (world.folder / name).write_text("".join(f"{line}\n" for line in lines))


def agrees(world: World, out: Path) -> bool:
    return rows_in(out) == fresh_rows(world, out.parent / "fresh")


@pytest.mark.parametrize("column", ["lang", "text"])
def test_a_column_that_only_the_changed_file_lacks_is_null_there(world: World, out: Path, column: str) -> None:
    sync(world, out)
    without(world, "s001.jsonl", column)
    sync(world, out)
    assert agrees(world, out)
    assert len(rows_in(out)) == (40 if column == "lang" else 30)


def test_ids_that_only_the_changed_file_lacks_are_refused(world: World, out: Path) -> None:
    sync(world, out)
    without(world, "s001.jsonl", "id")
    with pytest.raises(GuardRefused, match="the id column is gone"):
        sync(world, out)


def test_other_content_of_the_same_size_and_time_is_seen(world: World, out: Path) -> None:
    sync(world, out)
    path = world.folder / "s001.jsonl"
    before, content = path.stat(), path.read_text()
    word = world.files["s001.jsonl"][3]["text"]
    other = "R" + word[1:]
    path.write_text(content.replace(word, other))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = sync(world, out)
    assert done.details["changes"]["changed"] == 1
    assert agrees(world, out)


def test_a_state_with_other_bits_is_no_state(world: World, out: Path) -> None:
    sync(world, out)
    (path,) = (out / ".embedctl" / "rows").glob("*.arrow")
    content = bytearray(path.read_bytes())
    for i in range(len(content) // 3, len(content) // 3 + 200):
        content[i] ^= 0x55
    path.unlink()  # it may be mapped
    path.write_bytes(content)
    world.edit("change")
    done = sync(world, out, max_delete="0")
    assert done.details["changes"]["changed"] == 1
    assert agrees(world, out)


def test_a_dry_run_tells_what_a_guard_refuses(world: World, out: Path) -> None:
    sync(world, out)
    gone = world.files.pop("s002.jsonl")
    world.write_all()
    heard = Heard()
    told = sync(world, out, dry_run=True, heard=heard, max_delete="5%")
    assert (told.status, told.exit_code) == ("dry run: a guard would refuse this", 8)
    assert told.details["changes"]["deleted"] == 10
    assert set(told.details["examples"]["deleted"]) <= {row["id"] for row in gone}
    assert heard.notes == [
        "a guard would refuse this: 10 of 40 rows are not in the corpus any more, above --max-delete 5%"
    ]


def test_verify_embeds_the_row_that_won(world: World, out: Path) -> None:
    """Another row of the same id stands later in the corpus, with another text."""
    sync(world, out)
    world.files["s003.jsonl"] = [{**row, "text": f"again {row['id']}"} for row in world.files["s000.jsonl"]]
    world.write("s003.jsonl")
    sync(world, out)
    assert agrees(world, out)
    for _ in range(3):
        report = verify(str(out), sample=40, listener=Silent())
        assert report["ok"], report["checks"]
