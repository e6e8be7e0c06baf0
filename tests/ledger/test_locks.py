"""Leases: overlap refused, the dead replaced at once, the unknown watched, a lost one noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from embedctl.errors import Locked
from embedctl.events import Listener
from embedctl.ledger import locks
from embedctl.storage import LocalStorage


class Quiet(Listener):
    """Hears everything, says nothing."""


def _hold(root: Path, **scope):
    return locks.lease(LocalStorage(root), listener=Quiet(), **scope)


def _rewrite(root: Path, **changed) -> None:
    path = root / locks.LOCKS
    content = json.loads(path.read_bytes())
    content["leases"] = [{**held, **changed} for held in content["leases"]]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("one", "two", "meet"),
    [
        ({"names": ["plan"]}, {"names": ["plan"]}, True),
        ({"names": ["plan"]}, {"names": ["finalise"]}, False),
        ({"slices": [0, 1, 2]}, {"slices": [2, 9]}, True),
        ({"slices": [0, 1, 2]}, {"slices": [3]}, False),
        ({"slices": [0, 5]}, {"slices": [1, 2, 3, 4]}, False),
    ],
)
def test_only_overlapping_scopes_meet(tmp_path: Path, one: dict, two: dict, meet: bool):
    with _hold(tmp_path, **one):
        if meet:
            with pytest.raises(Locked, match="another run holds it"), _hold(tmp_path, **two):
                pass
        else:
            with _hold(tmp_path, **two):
                assert len(locks.holders(LocalStorage(tmp_path))) == 2
    assert locks.holders(LocalStorage(tmp_path)) == []


def test_the_lock_of_a_dead_process_is_taken_over_and_its_owner_notices(tmp_path: Path):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with _hold(tmp_path, names=["plan"]) as first:
        _rewrite(tmp_path, pid=int(gone.stdout), start="1")
        with _hold(tmp_path, names=["plan"]) as second:
            second.check()
            with pytest.raises(Locked, match="took over"):
                first.check()


def test_a_reused_process_id_is_another_process(tmp_path: Path):
    with _hold(tmp_path, names=["plan"]):
        _rewrite(tmp_path, start="1")
        with _hold(tmp_path, names=["plan"]):
            pass


def test_another_host_is_watched_before_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with _hold(tmp_path, names=["plan"]):
        _rewrite(tmp_path, host="elsewhere")
        with pytest.raises(Locked, match="elsewhere"), _hold(tmp_path, names=["plan"]):
            pass
        assert [held["alive"] for held in locks.holders(LocalStorage(tmp_path))] == [None]
        monkeypatch.setattr(locks, "TAKEOVER_S", 0.0)
        monkeypatch.setattr(locks, "_POLL_S", 0.01)
        with _hold(tmp_path, names=["plan"], wait=True) as mine:
            mine.check()
