"""A killed rerank, run again, leaves the bytes of an unbroken one; so do several workers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import assert_same_after_resume, parts, run
from tests.rerank.conftest import pair_rows, run_rows


def write(folder: Path, kind: str) -> list[str]:
    """A corpus, and the arguments that go over it in many windows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = pair_rows() if kind == "pairs" else run_rows()
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet", row_group_size=60)
    own = {
        "pairs": ["--query-column", "q", "--text-column", "passage", "--keep", "lang"],
        "runs": ["--candidates-column", "hits", "--top-k", "2"],
    }[kind]
    return [
        "rerank",
        str(folder / "in.parquet"),
        *own,
        "--window-rows",
        "32",
        "--slice-bytes",
        "4096",
        "--dtype",
        "float32",
    ]


@pytest.mark.parametrize(
    ("kind", "point"), [("pairs", "after-part:2"), ("runs", "staged:3"), ("runs", "before-ledger:4")]
)
def test_killed_at_a_commit(kind: str, point: str, tmp_path: Path) -> None:
    arguments = [*write(tmp_path / "in", kind), "--model", "fake"]
    assert run([*arguments, "--to", str(tmp_path / "whole")]).returncode == 3
    killed = run([*arguments, "--to", str(tmp_path / "out")], failpoint=point)
    assert killed.returncode == -9, killed.stderr
    assert len(parts(tmp_path / "whole")) > 4
    assert_same_after_resume(arguments, tmp_path / "whole", tmp_path / "out")


@pytest.mark.slow
def test_a_cross_encoder_killed_and_worked_on_by_two(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.parity.scorers import save_classifier

    model = save_classifier("bert", tmp_path / "model")
    arguments = [*write(tmp_path / "in", "runs"), "--model", str(model), "--threads", "1"]
    done = run([*arguments, "--to", str(tmp_path / "whole")])
    assert done.returncode == 3, done.stderr
    assert run([*arguments, "--to", str(tmp_path / "out")], failpoint="after-part:3").returncode == -9
    assert_same_after_resume(arguments, tmp_path / "whole", tmp_path / "out")
    two = run([*arguments, "--to", str(tmp_path / "two"), "--workers", "2"])
    assert two.returncode == 3, two.stderr
    assert parts(tmp_path / "two") == parts(tmp_path / "whole")
