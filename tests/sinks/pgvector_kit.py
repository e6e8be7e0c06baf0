"""What tests of pgvector share: a server for a module, a table for a test, and its sink."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedctl.sinks.pgvector import PgvectorSink, open_pgvector
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from tests.rig import postgres

_NUMBER = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    made = postgres.Postgres()
    yield made
    made.stop()


@pytest.fixture
def table() -> str:
    return f"t{next(_NUMBER)}"


def opened(server: postgres.Postgres, table: str, folder: Path, **more: Any) -> PgvectorSink:
    spec = JobSpec(**{"create": True, **more})
    return open_pgvector(server.uri(table), LocalStorage(folder / f"state-{table}"), spec)
