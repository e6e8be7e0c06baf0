"""The ledger as a set: whatever is torn, folded or read twice, what was whole before stays."""

from __future__ import annotations

from pathlib import Path

from embedctl.ledger.segments import FOLD, FOLDER, Ledger
from embedctl.records import Cursor, FileBooks, WindowKey, WindowRecord
from embedctl.storage import LocalStorage


def record(window: int, revision: int = 0) -> WindowRecord:
    return WindowRecord(
        key=WindowKey(generation=1, slice=0, window=window),
        begin=Cursor(segment=0, position=window * 10),
        end=Cursor(segment=0, position=window * 10 + 10),
        last=False,
        books=(FileBooks(file=0, read=10, written=10, skipped=0, duplicates=0, dead=0),),
        units=10,
        tokens=70,
        padded_tokens=70,
        truncated=0,
        revision=revision,
    )


def _segments(root: Path) -> list[Path]:
    return sorted((root / FOLDER).glob("*.seg"))


def test_records_before_a_tear_survive_it_at_every_byte(tmp_path: Path):
    Ledger(LocalStorage(tmp_path)).append(record(0), record(1))
    (segment,) = _segments(tmp_path)
    whole = segment.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole)):
        segment.write_bytes(whole[:cut])
        found = {k.window for k in Ledger(LocalStorage(tmp_path)).contents.windows}
        assert found == ({0} if cut >= first else set()), cut


def test_a_damaged_line_is_never_believed(tmp_path: Path):
    Ledger(LocalStorage(tmp_path)).append(record(0), record(1))
    (segment,) = _segments(tmp_path)
    whole = segment.read_bytes()
    first = whole.index(b"\n") + 1
    for at in range(first, len(whole)):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert {k.window for k in Ledger(LocalStorage(tmp_path)).contents.windows} == {0}, at


def test_folding_and_compacting_keep_the_set(tmp_path: Path):
    one, two = Ledger(LocalStorage(tmp_path)), Ledger(LocalStorage(tmp_path))
    for window in range(FOLD + 3):
        (one if window % 2 else two).append(record(window))
    one.append({"kind": "budget", "batch_tokens": 512})
    for window in range(FOLD + 3, 2 * FOLD):
        one.append(record(window))
    expected = {record(w).key: record(w) for w in range(2 * FOLD)}
    reopened = Ledger(LocalStorage(tmp_path))
    assert reopened.contents.windows == expected
    assert len(_segments(tmp_path)) < 2 * FOLD
    reopened.compact()
    assert len(_segments(tmp_path)) == 1
    last = Ledger(LocalStorage(tmp_path))
    assert last.contents.windows == expected
    assert last.contents.events == [{"kind": "budget", "batch_tokens": 512}]


def test_a_reader_takes_in_what_another_writer_commits_and_folds(tmp_path: Path):
    reader, writer = Ledger(LocalStorage(tmp_path)), Ledger(LocalStorage(tmp_path))
    for window in range(FOLD + 3):
        writer.append(record(window))
        if window % 20 == 0:
            reader.refresh()
            assert {k.window for k in reader.contents.windows} == set(range(window + 1))
    writer.append(record(0, revision=1))
    reader.refresh()
    reader.refresh()
    assert reader.contents.windows == Ledger(LocalStorage(tmp_path)).contents.windows


def test_the_newest_revision_counts_in_any_order(tmp_path: Path):
    Ledger(LocalStorage(tmp_path)).append(record(0, 1), record(0, 0))
    assert Ledger(LocalStorage(tmp_path)).contents.windows[record(0).key].revision == 1


def test_what_is_lost_is_forgotten_and_its_first_revision_counts_again(tmp_path: Path):
    ledger = Ledger(LocalStorage(tmp_path))
    ledger.append(record(0, 0), record(0, 1))
    ledger.forget([record(0, 1)])
    found = Ledger(LocalStorage(tmp_path)).contents
    assert found.windows == {record(0).key: record(0, 0)}
    assert found.next_revision(record(0).key) == 2
