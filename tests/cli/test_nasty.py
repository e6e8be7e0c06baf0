"""Every corpus of sample_corpora/ gives, from the command line, what its README says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import run

CORPORA = Path(__file__).parents[2] / "sample_corpora"
EXPECTED: dict[str, Any] = json.loads((CORPORA / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_the_readme_promises(name: str, tmp_path: Path) -> None:
    want, out = EXPECTED[name], tmp_path / "out"
    done = run(["embed", str(CORPORA / name), "--model", "fake", "--to", str(out), "--json"])
    assert done.returncode == want["exit_code"], done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads(done.stdout)
    assert summary["exit_code"] == want["exit_code"]
    if want["message"]:
        assert want["message"] in done.stderr
    if want["rows"] is None:
        return
    assert {k: summary["rows"][k] for k in want["rows"]} == want["rows"]
    letters = out / ".embedctl" / "dead_letters.jsonl"
    reasons = [json.loads(line)["reason"] for line in letters.read_text().splitlines()] if letters.exists() else []
    assert len(reasons) == len(want["reasons"])
    for reason, says in zip(reasons, want["reasons"], strict=True):
        assert says in reason
    assert pq.read_table(out).num_rows == want["rows"]["written"]
