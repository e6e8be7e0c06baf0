"""Destinations to read back, made by the command itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.cli.app import main

Embed = Callable[..., Path]


@pytest.fixture
def embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Embed:
    """Embed these texts (ids r0, r1, ... unless given) and return the destination."""
    monkeypatch.chdir(tmp_path)

    def run(
        texts: Sequence[str], *flags: str, ids: Sequence[object] | None = None, to: str = "out", **columns: Sequence
    ) -> Path:
        table = pa.table({"id": ids or [f"r{n}" for n in range(len(texts))], "text": pa.array(texts), **columns})
        pq.write_table(table, tmp_path / f"{to}.parquet")
        code = main(["embed", f"{to}.parquet", "--to", to, "-q", *flags])
        assert code == 0, capsys.readouterr().err
        capsys.readouterr()
        return tmp_path / to

    return run
