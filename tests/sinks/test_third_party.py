"""A sink of somebody else's, found by its entry point: no line of embedctl knows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = '''
"""A folder of JSON files, one a window."""

import json
from pathlib import Path

from embedctl.sinks.memory import MemorySink


class FolderSink(MemorySink):
    def __init__(self, target, storage, spec):
        super().__init__()
        self.folder = Path(target.partition("://")[2])

    def write(self, output):
        record = super().write(output)
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = [[i, v] for i, v in zip(output.ids, output.outputs["embedding"].tolist())]
        (self.folder / f"{record.key.stem}.json").write_text(json.dumps(rows))
        return record
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installed distribution: a module and its metadata."""
    site = tmp_path / "site"
    info = site / "shelf-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "shelf.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[embedctl.sinks]\nshelf = shelf:FolderSink\n")
    return site


def test_a_sink_by_entry_point_is_a_destination(site: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "in.jsonl"
    corpus.write_text("".join(json.dumps({"id": f"r{i}", "text": f"row {i}"}) + "\n" for i in range(100)))
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "embedctl", "embed", str(corpus), "--model", "fake:dim=8", "--window-rows", "32",
         "--workers", "1", "--json", "--to", f"shelf://{tmp_path}/out"],
        env={**os.environ, "PYTHONPATH": paths, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["written"] == 100
    rows = [row for path in sorted((tmp_path / "out").glob("*.json")) for row in json.loads(path.read_text())]
    assert [id for id, _ in rows] == [f"r{i}" for i in range(100)]
    assert all(len(vector) == 8 for _, vector in rows)


def test_an_unknown_scheme_names_the_nearest(site: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "in.jsonl"
    corpus.write_text('{"id": "a", "text": "b"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "embedctl", "embed", str(corpus), "--model", "fake:dim=8", "--to", "shelv://x/y"],
        env={**os.environ, "PYTHONPATH": str(site), "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no sink named 'shelv'" in done.stderr
    assert "did you mean 'shelf'?" in done.stderr
