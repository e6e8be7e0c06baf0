"""Dead letters: private, one object a window, merged in order into the one file people read."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

from embedctl.ledger import dead
from embedctl.records import DeadRow, SourceFile, WindowKey
from embedctl.storage import LocalStorage

KEY = WindowKey(generation=1, slice=0, window=0)
FILE = SourceFile(index=0, uri="a.jsonl", path="/a.jsonl", format="jsonl", compression=None, size_bytes=1, version="1")
ROW = DeadRow(file=0, position=3, id="ä\ud800", reason="empty", raw="x\u2028y")


def test_letters_come_back_and_merging_again_changes_nothing(tmp_path: Path):
    storage = LocalStorage(tmp_path)
    later = replace(KEY, window=1)
    dead.put(storage, later, [replace(ROW, position=9)], [FILE])
    dead.put(storage, KEY, [ROW], [FILE])
    dead.put(storage, KEY, [ROW], [FILE])
    dead.put(storage, replace(KEY, window=2), [], [FILE])
    keys = [(KEY, 0), (later, 0), (replace(KEY, window=2), 0)]
    for _ in range(2):
        assert dead.merge(storage, keys) == 2
    merged = tmp_path / dead.MERGED
    assert [json.loads(line)["position"] for line in merged.read_bytes().splitlines()] == [3, 9]
    assert {stat.S_IMODE(p.stat().st_mode) for p in [merged, *(tmp_path / dead.FOLDER).iterdir()]} == {0o600}
    assert len(list((tmp_path / dead.FOLDER).iterdir())) == 2


def test_letters_of_an_attempt_that_was_not_committed_are_replaced(tmp_path: Path):
    storage = LocalStorage(tmp_path)
    dead.put(storage, KEY, [ROW, replace(ROW, position=9)], [FILE])
    dead.put(storage, KEY, [ROW], [FILE])
    assert [letter["position"] for _, letter in dead.letters(storage, [(KEY, 0)])] == [3]
    assert stat.S_IMODE(next((tmp_path / dead.FOLDER).iterdir()).stat().st_mode) == 0o600
