"""Hashes, the state of rows, the list of changes: each against the plain answer."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedctl.codec import record_to_json
from embedctl.ledger import hashes as hash_files
from embedctl.ledger import rows_state
from embedctl.ledger.segments import RETIRED, Contents
from embedctl.records import Cursor, RowBlock, SourceFile, WindowKey, WindowRecord
from embedctl.sinks.parts import packed_hashes, part_name, unpacked_hashes, window_in
from embedctl.sources import changes
from embedctl.stages.hashes import id_hashes, kept_hashes, row_hashes, text_hashes
from embedctl.storage import LocalStorage


def test_hashes_are_the_same_for_ever() -> None:
    """Other numbers than these mean that every row of every destination counts as changed."""
    day = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    kept = pa.table(
        {
            "s": ["a", None],
            "i": pa.array([1, -2], pa.int32()),
            "f": [0.5, float("nan")],
            "b": [True, None],
            "t": pa.array([day, None], pa.timestamp("us", "UTC")),
            "l": [[1, 2], []],
        }
    )
    assert row_hashes(["a text", "ein Täxt"], kept).tolist() == GOLDEN
    assert id_hashes(["r1"]).tolist() == [[9951434695894996876, 4096101613749075489]]


GOLDEN = [[5830437876521264211, 13576764564465931593], [388619783305895118, 9574772677017628280]]

_NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CELLS: dict[str, list[Any]] = {
    "int64": [0, 1, -1, 2**62, None],
    "uint64": [0, 1, 2**64 - 1, None],
    "float64": [0.0, 1.0, 1e300, float("inf"), None],
    "string": ["", "a", "b", "null", None],
    "bool": [True, False, None],
    "decimal": [Decimal("1.10"), Decimal("1.11"), None],
    "list": [[], [None], ["a"], ["a", "b"], ["ab"], None],
    "struct": [{"a": 1}, {"a": 2}, {"a": None}, None],
    "binary": [b"", b"\x00", b"\x00\x00", None],
    "date": [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), None],
    "time": [datetime.time(1), datetime.time(2), None],
    "at": [_NEW_YEAR, _NEW_YEAR + datetime.timedelta(microseconds=1), None],
}


@pytest.mark.parametrize("kind", CELLS)
def test_each_value_has_a_hash_of_its_own_however_the_column_is_cut(kind: str) -> None:
    column = pa.array(CELLS[kind], pa.uint64() if kind == "uint64" else None)
    found = kept_hashes(pa.table({"c": column}))
    assert len(set(found.tolist())) == len(column)
    cut = pa.chunked_array([column.slice(0, 1), column.slice(1), column.slice(0, 0)])
    assert kept_hashes(pa.table({"c": cut})).tolist() == found.tolist()
    assert kept_hashes(pa.table({"c": column.slice(1)})).tolist() == found[1:].tolist()


def test_columns_do_not_stand_in_for_each_other() -> None:
    one, other = kept_hashes(pa.table({"a": ["x"], "b": ["y"]})), kept_hashes(pa.table({"a": ["y"], "b": ["x"]}))
    assert one.tolist() != other.tolist()
    assert kept_hashes(pa.table({})).tolist() == []


def test_hashes_go_into_footers_and_files_and_come_back(tmp_path: Path) -> None:
    hashes = row_hashes(["a", "b", "c"], pa.table({"n": [1, 2, 3]}))
    assert unpacked_hashes(packed_hashes(hashes)).tolist() == hashes.tolist()
    assert unpacked_hashes(packed_hashes(hashes[:0])).shape == (0, 2)
    storage, key = LocalStorage(tmp_path), WindowKey(generation=1, slice=2, window=3)
    hash_files.put(storage, key, hashes[:1])
    hash_files.put(storage, key, hashes)
    found = hash_files.read(storage, key)
    assert found is not None
    assert found.tolist() == hashes.tolist()
    assert hash_files.read(storage, key, 1) is None


@pytest.mark.parametrize("revision", [0, 1, 2, 37])
def test_part_names_tell_window_and_revision(revision: int) -> None:
    key = WindowKey(generation=12, slice=123456, window=7)
    assert window_in(part_name(key, revision)) == (key, revision)
    assert window_in("theirs.parquet") is None


IDS = st.lists(st.integers(0, 60), max_size=40)


@settings(max_examples=40, deadline=None)
@given(windows=st.lists(IDS, max_size=5), asked=IDS, bucket=st.sampled_from([1, 7, 2_000_000]))
def test_the_state_finds_the_first_row_of_each_id(
    windows: list[list[int]], asked: list[int], bucket: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = LocalStorage(tmp_path_factory.mktemp("state"))
    plain: dict[int, tuple[int, int]] = {}
    again = []
    for place, ids in enumerate(windows):
        for row, number in enumerate(ids):
            if plain.setdefault(number, (place, row)) != (place, row):
                again.append([place, row])
    blocks = [
        rows_state.entries_of(_hashed(ids), _hashed(ids), place, np.full(len(ids), place, np.int32))
        for place, ids in enumerate(windows)
    ]
    names = [[1, 0, place, 0] for place in range(len(windows))]
    with mock.patch.object(rows_state, "BUCKET_ROWS", bucket):
        state = rows_state.build(
            storage, blocks, sum(map(len, windows)), windows=names, uris=[], details={}, generation=1
        )
    assert len(state) == len(plain)
    assert sorted(state.repeated) == sorted(again)
    found = state.find(_hashed(asked))
    for number, at in zip(asked, found.tolist(), strict=True):
        assert (at >= 0) == (number in plain)
        if at >= 0:
            one = np.array([at])
            assert (int(state.take("place", one)[0]), int(state.take("row", one)[0])) == plain[number]
    assert sorted(state.entries(0, len(state))["row"].tolist()) == sorted(row for _, row in plain.values())
    assert rows_state.load(storage, names) is not None
    assert rows_state.load(storage, [*names, [9, 9, 9, 9]]) is None


def _hashed(ids: list[int]) -> np.ndarray[Any, Any]:
    """Few different first words, so that the second has to decide."""
    return np.array([[i % 5, i] for i in ids], dtype=np.uint64).reshape(-1, 2)


def test_a_damaged_state_is_no_state(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    state = rows_state.build(storage, [], 0, windows=[], uris=[], details={}, generation=1)
    assert state.name is not None
    (tmp_path / state.name).write_bytes(b"ARROW1 nothing")
    assert rows_state.load(storage, []) is None
    assert rows_state.opened(storage, state.name) is None


def test_the_list_of_changes_gives_rows_back_with_their_places(tmp_path: Path) -> None:
    storage, schema = LocalStorage(tmp_path), pa.schema([("id", pa.string()), ("n", pa.int64())])
    writer = changes.ChangeWriter(
        storage=storage, generation=2, schema=schema, kind=changes.ENCODE, max_bytes=200, numbers=count()
    )
    chance, wanted, lost = random.Random(1), [], {}
    for file in range(3):
        for first in range(0, 60, 20):
            positions = np.arange(first, first + 20, dtype=np.int64) * 3
            columns = pa.record_batch([[f"{file}-{p}" for p in positions], positions], schema=schema)
            block = RowBlock(file=file, positions=positions, columns=columns, next_position=int(positions[-1]) + 1)
            rows = np.array(sorted(chance.sample(range(20), 5)), dtype=np.int64)
            names = writer.add(block, rows, {int(rows[0]): "bad"})
            for i, (row, name) in enumerate(zip(rows.tolist(), names.tolist(), strict=True)):
                if i == 1:
                    lost[name] = ""
                else:
                    wanted.append((file, int(positions[row]), "bad" if i == 0 else None))
    writer.close()
    kinds = dict.fromkeys(writer.chunks, changes.ENCODE)
    changes.publish(storage, changes.Changes(generation=2, kinds=kinds, losers=lost, details={"x": 1}))
    listed = changes.load(storage, 2)
    slices = changes.slices_of(storage, listed)
    assert len(slices) > 3
    read = changes.blocks_of(storage, 2, slices, schema)
    found = []
    for slice_ in slices:
        for segment in slice_.segments:
            file = SourceFile(
                index=segment.file, uri="f", path="gone", format="jsonl", compression=None, size_bytes=1, version="1"
            )
            for block in read(file, segment.begin, segment.end, segment.begin):
                assert block.columns.column(0).to_pylist() == [f"{segment.file}-{p}" for p in block.positions]
                found += [(block.file, int(p), block.errors.get(i)) for i, p in enumerate(block.positions)]
            rest = [b for start in [segment.begin + 1] for b in read(file, segment.begin, segment.end, start)]
            assert all((b.positions >= segment.begin + 1).all() for b in rest)
    assert found == wanted
    changes.clear(storage, 2)
    assert not storage.list(changes.folder_of(2))


def test_a_retired_window_does_not_come_back_in_any_order() -> None:
    record = WindowRecord(
        key=WindowKey(generation=1, slice=0, window=4), begin=Cursor(segment=0, position=0),
        end=Cursor(segment=0, position=1), last=True, books=(), units=0, tokens=0, padded_tokens=0, truncated=0,
    )  # fmt: skip
    window, retired = record_to_json(record), {"kind": RETIRED, "keys": [[1, 0, 4]]}
    for order in ([window, retired], [retired, window], [window, {"kind": RETIRED, "before": 2}]):
        contents = Contents()
        for obj in order:
            contents.add(obj)
        assert contents.windows == {}
        assert contents.is_retired(record.key)


def test_text_hashes_take_any_string() -> None:
    assert len(set(text_hashes(["", "a", "\ud800", "ä"]).tolist())) == 4
