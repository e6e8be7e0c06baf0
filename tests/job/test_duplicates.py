"""Duplicates against the plain answer, in memory and spilled."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedctl.job import duplicates
from embedctl.job.duplicates import Loser
from embedctl.records import WindowKey

WINDOWS = st.lists(st.lists(st.sampled_from(["a", "b", "ä", "\ud800", "", "a ", "1", "01"]), max_size=6), max_size=8)


def _plain(keys: list[WindowKey], windows: list[list[str]]) -> set[Loser]:
    first: dict[str, tuple[WindowKey, int]] = {}
    losers = set()
    for key, ids in zip(keys, windows, strict=True):
        for row, name in enumerate(ids):
            if name in first:
                losers.add(Loser(key=key, row=row, first_key=first[name][0], first_row=first[name][1]))
            else:
                first[name] = (key, row)
    return losers


@pytest.mark.parametrize("bucket_rows", [4_000_000, 4])
@given(windows=WINDOWS)
def test_losers_are_the_plain_answer_and_no_spill_stays(bucket_rows: int, windows: list[list[str]]):
    keys = [WindowKey(generation=1, slice=0, window=i) for i in range(len(windows))]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(duplicates, "BUCKET_ROWS", bucket_rows):
        ids = dict(zip(keys, windows, strict=True))
        counts = [len(w) for w in windows]
        found = list(duplicates.find(keys, counts, ids.__getitem__, lambda name: Path(folder) / name))
        assert not list(Path(folder).iterdir())
    assert len(found) == len(set(found))
    assert set(found) == _plain(keys, windows)
