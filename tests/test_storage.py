"""The one face over files: whole objects, published once, swapped only against a known version."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from embedctl.errors import SinkError
from embedctl.storage import SCRATCH, LocalStorage, etag_of


def _together(n: int, body) -> None:
    gate = threading.Barrier(n)

    def run(i: int) -> None:
        gate.wait(timeout=30)
        body(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)


def test_one_of_many_writers_publishes_and_its_bytes_stand(tmp_path: Path):
    won: list[int] = []

    def put(i: int) -> None:
        if LocalStorage(tmp_path).put_if_absent("deep/er/x", b"%d" % i * 1000):
            won.append(i)

    _together(8, put)
    assert len(won) == 1
    assert LocalStorage(tmp_path).read("deep/er/x") == b"%d" % won[0] * 1000


def test_compare_and_swap_loses_no_increment(tmp_path: Path):
    def count(_: int) -> None:
        storage = LocalStorage(tmp_path)
        for _ in range(10):
            while True:
                now = storage.read("n")
                if storage.replace_if_match("n", b"%d" % (int(now or b"0") + 1), etag_of(now)):
                    break

    _together(4, count)
    assert LocalStorage(tmp_path).read("n") == b"40"


def test_swap_against_a_stale_version_changes_nothing(tmp_path: Path):
    storage = LocalStorage(tmp_path)
    assert storage.replace_if_match("x", b"1", None)
    assert not storage.replace_if_match("x", b"2", None)
    assert not storage.replace_if_match("x", b"2", etag_of(b"0"))
    assert storage.read("x") == b"1"


def test_mode_is_the_file_s_and_scratch_is_consumed(tmp_path: Path):
    storage = LocalStorage(tmp_path)
    assert storage.put_if_absent("secret", b"s", mode=0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    built = storage.scratch("a/b")
    built.write_bytes(b"built")
    assert storage.put_if_absent("part", built)
    assert storage.read("part") == b"built"
    assert not list((tmp_path / SCRATCH / storage.owner).iterdir())


def test_only_the_scratch_of_the_gone_is_dropped(tmp_path: Path):
    mine, living, gone = (LocalStorage(tmp_path) for _ in range(3))
    worker = LocalStorage(tmp_path)
    worker.owner = f"{living.owner}.0"
    for storage in (mine, living, gone, worker):
        storage.scratch("x").write_bytes(b"x")
    mine.drop_scratch(lambda: frozenset({living.owner}))
    assert {p.name for p in (tmp_path / SCRATCH).iterdir()} == {mine.owner, living.owner, worker.owner}


def test_listing_is_sorted_flat_and_empty_for_nothing(tmp_path: Path):
    storage = LocalStorage(tmp_path)
    for name in ("d/b", "d/a", "d/deeper/c"):
        storage.put_if_absent(name, b"12")
    assert [(e.name, e.size_bytes) for e in storage.list("d")] == [("d/a", 2), ("d/b", 2)]
    assert storage.list("nowhere") == []
    assert storage.read("nowhere") is None


def test_a_folder_in_the_way_is_a_sink_error_that_names_it(tmp_path: Path):
    (tmp_path / "x").mkdir()
    with pytest.raises(SinkError, match="there is a folder of this name"):
        LocalStorage(tmp_path).read("x")
