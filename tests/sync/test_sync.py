"""What a sync finds, encodes, refuses and tells."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl import job
from embedctl.errors import BooksError, GuardRefused, LimitReached, PlanMismatch, UsageError
from embedctl.events import Silent, Summary
from embedctl.spec import JobSpec
from tests.sync.world import World, counting, fresh_rows, rows_in, spec_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "corpus", random.Random(3))
    made.split([made.row() for _ in range(40)], 4)
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def sync(world: World, out: Path, *, dry_run: bool = False, **more: Any) -> Summary:
    return job.sync(spec_of(world, out, **more), Silent(), dry_run=dry_run)


def changes(done: Summary) -> dict[str, int]:
    return {k: v for k, v in done.details["changes"].items() if v and k in ("added", "changed", "payload", "deleted")}


def agrees(world: World, out: Path, **more: Any) -> bool:
    return rows_in(out) == fresh_rows(world, out.parent / "fresh", **more)


def test_only_changed_and_new_rows_are_encoded(world: World, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync(world, out)
    encoded = counting(monkeypatch)
    names = sorted(world.files)
    world.files[names[0]][3]["text"] = "other"
    world.files[names[1]][2]["lang"] = "fr"
    world.files[names[2]].append(world.row())
    del world.files[names[3]][4]
    rows = world.every()
    world.chance.shuffle(rows)
    world.split(rows, 3)
    done = sync(world, out)
    assert changes(done) == {"added": 1, "changed": 1, "payload": 1, "deleted": 1}
    assert sum(encoded) == 2
    assert done.rows.to_json() == {"read": 40, "written": 3, "unchanged": 37, "skipped": 0, "duplicates": 0, "dead": 0}
    assert done.units == 40
    assert agrees(world, out)


def test_files_that_did_not_change_are_not_read(world: World, out: Path) -> None:
    sync(world, out)
    world.files["s001.jsonl"][0]["text"] = "other"
    world.write("s001.jsonl")
    with files_opened(world.folder) as opened:
        done = sync(world, out)
    assert {name for name, times in opened.items() if times > 1} == {"s001.jsonl"}  # once: may it be read at all?
    assert (done.details["changes"]["files_read"], done.details["changes"]["files_unread"]) == (1, 3)
    assert done.rows.to_json() == {"read": 40, "written": 1, "unchanged": 39, "skipped": 0, "duplicates": 0, "dead": 0}
    assert agrees(world, out)


@contextlib.contextmanager
def files_opened(folder: Path) -> Iterator[Counter[str]]:
    """How often this process opens each file of a folder meanwhile."""
    names: Counter[str] = Counter()
    watching = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching[0] and event == "open" and isinstance(arguments[0], (str, Path)):
            path = Path(arguments[0])
            names.update([path.name] if path.parent == folder else [])

    sys.addaudithook(hook)
    try:
        yield names
    finally:
        watching[0] = False


def test_nothing_changed_is_told_at_once(world: World, out: Path) -> None:
    sync(world, out)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.parquet")}
    done = sync(world, out)
    assert (done.status, done.exit_code) == ("already in sync", 0)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.parquet")} == before


def test_first_position_wins_over_files_that_are_not_read(world: World, out: Path) -> None:
    sync(world, out)
    taken = world.files["s002.jsonl"][0]
    world.files["s001.jsonl"].append({**taken, "text": "an earlier one"})
    world.write("s001.jsonl")
    done = sync(world, out)
    assert (done.rows.duplicates, done.details["changes"]["files_unread"]) == (1, 3)
    assert agrees(world, out)
    world.files["s001.jsonl"].pop()
    world.write("s001.jsonl")
    sync(world, out)
    assert rows_in(out)[f"{taken['id']}#0"]["n"] == taken["n"]
    assert agrees(world, out)


def test_new_ids_that_stand_twice(world: World, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync(world, out)
    encoded = counting(monkeypatch)
    row = world.row()
    world.files["s000.jsonl"].append(row)
    world.files["s003.jsonl"].append({**row, "text": "the second"})
    world.write_all()
    done = sync(world, out)
    assert (sum(encoded), done.rows.duplicates) == (1, 1)
    assert agrees(world, out)


def test_a_duplicate_lives_once_the_row_before_it_is_gone(world: World, out: Path) -> None:
    more: dict[str, Any] = {"on_duplicate": "dead-letter"}
    names = sorted(world.files)
    first = world.files[names[0]][0]
    world.files[names[1]].append({**first, "text": "the second"})
    world.files[names[2]].append({**first, "text": "the third"})
    world.write_all()
    assert sync(world, out, **more).rows.dead == 2
    world.files[names[0]].remove(first)
    world.write(names[0])
    assert sync(world, out, **more).rows.dead == 1
    assert agrees(world, out, **more)


@pytest.mark.parametrize(("rule", "code"), [("fail", GuardRefused), ("dead-letter", None)])
def test_duplicates_by_the_other_rules(world: World, out: Path, rule: str, code: type[Exception] | None) -> None:
    sync(world, out, on_duplicate=rule)
    before = rows_in(out)
    row = world.row()
    world.files["s000.jsonl"].append(row)
    world.files["s003.jsonl"] += [{**row, "text": "the second"}, {**world.files["s000.jsonl"][0], "text": "again"}]
    world.write_all()
    if code is not None:
        with pytest.raises(code, match="stands twice"):
            sync(world, out, on_duplicate=rule)
        assert rows_in(out) == before
        return
    done = sync(world, out, on_duplicate=rule)
    assert (done.rows.dead, done.rows.duplicates, done.exit_code) == (2, 0, 3)
    assert all("duplicate id" in letter["reason"] for letter in job.dead_letters(str(out)))
    assert agrees(world, out, on_duplicate=rule)


def test_dead_rows_are_news_only_once(world: World, out: Path) -> None:
    world.files["s001.jsonl"][2]["text"] = None
    world.write_all()
    assert sync(world, out).exit_code == 3
    world.edit_add()
    assert sync(world, out).exit_code == 0
    world.files["s001.jsonl"][3]["text"] = None
    world.write("s001.jsonl")
    done = sync(world, out)
    assert (done.exit_code, done.rows.dead) == (3, 2)
    assert len(list(job.dead_letters(str(out)))) == 2
    world.files["s001.jsonl"][2]["text"] = "mended"
    world.write("s001.jsonl")
    done = sync(world, out)
    assert (done.exit_code, done.rows.dead) == (0, 1)
    assert agrees(world, out)


def test_retry_after_a_sync(world: World, out: Path) -> None:
    sync(world, out)
    world.files["s001.jsonl"][2]["text"] = None
    world.write("s001.jsonl")
    sync(world, out)
    world.files["s001.jsonl"][2]["text"] = "mended"
    world.write("s001.jsonl")
    assert job.retry(str(out), {}, Silent()).rows.dead == 0
    assert agrees(world, out)
    world.edit_add()
    sync(world, out)
    assert agrees(world, out)


def test_too_many_deletions_are_refused_and_nothing_is_changed(world: World, out: Path) -> None:
    sync(world, out)
    before = {p.name: p.read_bytes() for p in out.glob("*.parquet")}
    for name in ("s001.jsonl", "s002.jsonl", "s003.jsonl"):
        del world.files[name]
    world.write_all()
    with pytest.raises(
        GuardRefused, match=r"30 of 40 rows are not in the corpus any more, above --max-delete 5%"
    ) as told:
        sync(world, out, max_delete="5%")
    assert "--max-delete 30" in str(told.value.hint)
    assert {p.name: p.read_bytes() for p in out.glob("*.parquet")} == before
    with pytest.raises(GuardRefused):
        sync(world, out, max_delete="29")
    assert changes(sync(world, out, max_delete="30")) == {"deleted": 30}
    assert agrees(world, out)


def test_an_empty_corpus_does_not_empty_the_destination(world: World, out: Path) -> None:
    sync(world, out)
    for name in world.files:
        world.files[name] = []
    world.write_all()
    with pytest.raises(GuardRefused, match="40 of 40 rows"):
        sync(world, out, max_delete="50%")
    assert len(rows_in(out)) == 40
    sync(world, out, max_delete="100%")
    assert rows_in(out) == {}
    world.split([world.row() for _ in range(5)], 1)
    sync(world, out)
    assert agrees(world, out)


def test_too_few_rows_are_refused(world: World, out: Path) -> None:
    sync(world, out)
    world.files["s000.jsonl"].pop()
    world.write("s000.jsonl")
    with pytest.raises(GuardRefused, match="holds 39 rows to embed, fewer than --min-rows 40"):
        sync(world, out, min_rows=40)
    sync(world, out, min_rows=39)


def test_a_vanished_id_column_is_refused(world: World, out: Path) -> None:
    sync(world, out)
    for name, rows in world.files.items():
        lines = (json.dumps({k: v for k, v in row.items() if k != "id"}) for row in rows)
        (world.folder / name).write_text("".join(line + "\n" for line in lines))
    with pytest.raises(GuardRefused, match="the id column is gone"):
        sync(world, out)
    assert len(rows_in(out)) == 40


def test_rows_without_ids_are_refused_and_told_why(world: World, out: Path) -> None:
    for rows in world.files.values():
        for row in rows:
            row["name"] = row.pop("id")
    world.write_all()
    with pytest.raises(UsageError, match="these rows have none: without one a moved row is a new row"):
        sync(world, out, id_column=None)
    assert not out.exists()


def test_standard_input_is_refused(out: Path) -> None:
    with pytest.raises(UsageError, match="standard input is none"):
        job.sync(JobSpec(inputs=("-",), to=str(out)), Silent())


def test_a_dry_run_tells_and_changes_nothing(world: World, out: Path) -> None:
    sync(world, out)
    files = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name not in ("locks.json", "guard")}
    names = sorted(world.files)
    gone = world.files[names[0]].pop()
    world.files[names[1]][0]["text"] = "other"
    world.files[names[2]][0]["lang"] = "fr"
    new = world.row()
    world.files[names[3]].append(new)
    world.write_all()
    done = sync(world, out, dry_run=True)
    assert changes(done) == {"added": 1, "changed": 1, "payload": 1, "deleted": 1}
    assert done.details["examples"]["deleted"] == [gone["id"]]
    assert done.details["examples"]["added"] == [new["id"]]
    assert done.rows.balanced()
    now = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name not in ("locks.json", "guard")}
    assert now == files
    refused = sync(world, out, dry_run=True, max_delete="0")
    assert (refused.status, refused.exit_code) == ("dry run: a guard would refuse this", 8)
    assert changes(refused) == changes(done)


def test_a_dry_run_of_the_first_time_makes_no_destination(world: World, out: Path) -> None:
    assert sync(world, out, dry_run=True).status == "dry run: nothing was changed"
    assert not out.exists()


def test_other_settings_are_refused_with_the_choices(world: World, out: Path) -> None:
    sync(world, out)
    world.edit_add()
    with pytest.raises(PlanMismatch, match="--model: asked for") as told:
        sync(world, out, model=("fake:dim=6",))
    assert "--migrate" in str(told.value.hint)
    with pytest.raises(PlanMismatch, match="--keep"):
        sync(world, out, keep=("lang",))


def test_a_kept_column_of_another_type_is_refused(world: World, out: Path) -> None:
    sync(world, out)
    world.files["s000.jsonl"][0]["n"] = 0.5
    world.write("s000.jsonl")
    with pytest.raises(PlanMismatch, match="'n' is double now, the destination holds int64"):
        sync(world, out)


def test_a_template_whose_column_changes_type_is_rendered_anew(world: World, out: Path) -> None:
    more = {"text_column": None, "text_template": "{text} {n}", "keep": ("lang",)}
    sync(world, out, **more)
    world.files["s000.jsonl"][0]["n"] = 0.5
    world.write("s000.jsonl")
    sync(world, out, **more)
    assert agrees(world, out, **more)


def test_where_limit_and_sample(world: World, out: Path) -> None:
    for name, more in (("w", {"where": "n % 3 <> 0"}), ("l", {"limit": 17}), ("s", {"sample": 0.5})):
        here = out / name
        here.parent.mkdir(exist_ok=True)
        sync(world, here, **more)
        for edit in ("add", "change", "delete", "payload"):
            world.edit(edit)
        assert sync(world, here, **more).rows.balanced()
        assert agrees(world, here, **more)


def test_chunks_of_a_changed_document_are_replaced_and_surplus_ones_removed(world: World, out: Path) -> None:
    more = {"chunk": "tokens:4"}
    world.files["s000.jsonl"][0]["text"] = "one two three four five six seven eight nine ten eleven twelve"
    world.write_all()
    sync(world, out, **more)
    world.files["s000.jsonl"][0]["text"] = "one two three"
    world.files["s001.jsonl"][0]["lang"] = "fr"
    world.write_all()
    sync(world, out, **more)
    assert agrees(world, out, **more)


def test_the_updated_column_spares_the_rest(world: World, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monday = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)
    table = pa.Table.from_pylist([{**r, "at": monday} for r in world.every()])
    shutil.rmtree(world.folder)
    world.folder.mkdir()

    def write(rows: list[dict[str, Any]], clock: int) -> None:
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), world.folder / "all.parquet")
        os.utime(world.folder / "all.parquet", (clock, clock))

    rows = table.to_pylist()
    write(rows, 1_700_000_001)
    sync(world, out, updated_column="at")
    rows[0] |= {"text": "first change", "at": monday + datetime.timedelta(days=1)}
    write(rows, 1_700_000_002)
    assert changes(sync(world, out, updated_column="at")) == {"changed": 1}
    rows[1] |= {"text": "seen", "at": monday + datetime.timedelta(days=2)}
    rows[2] |= {"text": "not seen, for its time did not change"}
    rows[3] |= {"text": "no time is seen", "at": None}
    rows += [{**rows[4], "id": "new", "at": monday}]
    del rows[5]
    write(rows, 1_700_000_003)
    assert changes(sync(world, out, updated_column="at")) == {"changed": 2, "added": 1, "deleted": 1}
    rows[6] |= {"text": "seen without the flag"}
    write(rows, 1_700_000_004)
    assert changes(sync(world, out)) == {"changed": 2}


def test_losing_the_state_costs_a_reading_and_nothing_else(
    world: World, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(world, out)
    world.edit_shuffle()
    sync(world, out)
    shutil.rmtree(out / ".embedctl" / "rows")
    encoded = counting(monkeypatch)
    world.edit_change()
    done = sync(world, out)
    assert (sum(encoded), done.details["changes"]["files_unread"]) == (1, 0)
    assert agrees(world, out)


def test_parts_that_are_gone_are_embedded_again(world: World, out: Path) -> None:
    sync(world, out)
    sorted(out.glob("*.parquet"))[1].unlink()
    done = sync(world, out)
    assert done.units == 40
    assert agrees(world, out)
    assert sync(world, out).status == "already in sync"


def test_an_unfinished_first_run_and_a_corpus_that_moved_on(world: World, out: Path) -> None:
    with pytest.raises(LimitReached, match="--time-limit"):
        sync(world, out, time_limit="0s")
    assert 0 < len(rows_in(out)) < 40
    for edit in ("change", "add", "delete", "shuffle"):
        world.edit(edit)
    sync(world, out)
    assert agrees(world, out)


def test_a_time_limit_ends_at_a_window_and_the_same_command_goes_on(world: World, out: Path) -> None:
    sync(world, out)
    for rows in world.files.values():
        for row in rows:
            row["text"] += " changed"
    world.write_all()
    for _ in range(2):
        with pytest.raises(LimitReached) as told:
            sync(world, out, time_limit="0s")
        assert told.value.exit_code == 9
    sync(world, out)
    assert agrees(world, out)


def test_embed_and_retry_say_that_a_sync_is_unfinished(world: World, out: Path) -> None:
    sync(world, out)
    world.edit_change()
    with pytest.raises(LimitReached):
        sync(world, out, time_limit="0s")
    with pytest.raises(PlanMismatch, match="a sync was begun and not finished"):
        job.embed(spec_of(world, out), Silent())
    with pytest.raises(PlanMismatch, match="a sync was begun and not finished"):
        job.retry(str(out), {}, Silent())
    with pytest.raises(PlanMismatch, match="no telling what the next would do"):
        sync(world, out, dry_run=True)


def test_embed_after_a_sync_is_done_already_or_names_sync(world: World, out: Path) -> None:
    sync(world, out)
    world.edit_add()
    sync(world, out)
    assert job.embed(spec_of(world, out), Silent()).status == "already done"


def test_the_list_of_changes_is_needed_until_the_end(world: World, out: Path) -> None:
    sync(world, out)
    world.edit_change()
    with pytest.raises(LimitReached):
        sync(world, out, time_limit="0s")
    shutil.rmtree(out / ".embedctl" / "changes-0002")
    with pytest.raises(BooksError, match="the list of changed rows is gone"):
        sync(world, out)
