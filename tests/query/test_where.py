"""`--where` means in a store what it means over the folder: the same rows are found, or the condition is refused."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.cli.app import main
from embedctl.errors import UsageError
from embedctl.job.destination import open_existing
from embedctl.sinks.base import Searchable
from embedctl.sources.where import Where
from embedctl.spec import JobSpec
from tests.rig import postgres
from tests.sinks.qdrant_kit import place

COUNT = 12
STORES = ("pgvector", "qdrant-edge", "qdrant-rest", "lancedb", "qdrant-grpc")
"""PostgreSQL first: it is forked, before the threads of the others are there."""
NUMBERS = [
    "price = 1.5", "price = 1.50", "price <> 1.5", "price IN (0.75, 1.50)", "NOT price = 1.5", "price IS NULL",
    "price = 1.505", "price > 1.5", "price BETWEEN 1 AND 3", "n = 9007199254740993", "n = 9007199254740992",
    "n > 9007199254740992", "n <= 9007199254740992", "n > 9007199254740993", "n IN (9007199254740993)", "n > 1000",
    "n <> 9007199254740993", "f > 2", "f = 2.5", "f <> 1", "f IS NULL", "f <= 100", "u > 5",
    "u >= 18446744073709551605", "u = 18446744073709551606", "u < 3", "NOT u > 5", "u = 3",
]  # fmt: skip
TIMES = [
    "day = DATE '2024-01-03'", "day > DATE '2024-01-03'", "day IN (DATE '2024-01-03')", "day <> DATE '2024-01-03'",
    "day = '2024-01-03'", "day >= '2024-01-03'", "made = TIMESTAMP '2024-01-03 12:30:00'", "made IS NULL",
    "made <> TIMESTAMP '2024-01-03 12:30:00'", "made > '2024-01-03 12:30:00'", "made = '2024-01-03 12:30:00'",
    "made IN ('2024-01-03 12:30:00')", "made > DATE '2024-01-03'", "day = 'soon'",
]  # fmt: skip
WORDS = [
    "who = 'O''Neil'", "who = 'say \"hi\"'", "who = 'a\\b'", "who IN ('O''Neil', 'plain')", "who <> 'O''Neil'",
    "who IS NULL", "who IS NOT NULL AND n > 3", "Who = 'plain'", "text = 'row 3'", "nope = 1", "ok IS NULL",
    "id = 'r3'",
]  # fmt: skip


def rows() -> pa.Table:
    first, each = datetime.datetime.fromisoformat("2024-01-01T12:30"), range(COUNT)
    return pa.table(
        {
            "id": [f"r{i}" for i in each],
            "text": [f"row {i}" for i in each],
            "price": pa.array([None if i == 5 else i * decimal.Decimal("0.75") for i in each], pa.decimal128(10, 2)),
            "day": [None if i == 4 else datetime.date(2024, 1, 1 + i) for i in each],
            "made": [None if i == 6 else first + datetime.timedelta(days=i) for i in each],
            "n": [2**53 + i for i in each],
            "u": pa.array([i if i < 9 else 2**64 - i for i in each], pa.uint64()),
            "f": [None if i == 3 else i / 2 for i in each],
            "who": [None if i == 2 else ["O'Neil", 'say "hi"', "a\\b", "plain"][i % 4] for i in each],
            "ok": [[True, False, None][i % 3] for i in each],
        }
    )


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searchable]:
    root: Path = tmp_path_factory.mktemp("where")
    pq.write_table(rows(), root / "c.parquet")
    if request.param == "pgvector":
        if not postgres.AVAILABLE:
            pytest.skip("no PostgreSQL here")
        server = postgres.Postgres()
        try:
            yield from _filled(root, server.uri("docs"))
        finally:
            server.stop()
    elif request.param in ("qdrant-grpc", "qdrant-rest"):
        with place(request.param.removeprefix("qdrant-"), root) as there:
            yield from _filled(root, there.uri_of("docs"))
    else:
        yield from _filled(root, f"{request.param}://{root}/store/docs")


def _filled(root: Path, uri: str) -> Iterator[Searchable]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        kept = ("--text-column", "text", "--keep", ",".join(rows().column_names[2:]))
        assert (
            main(["embed", str(root / "c.parquet"), "--model", "fake:dim=8", *kept, "--to", uri, "--create", "-q"]) == 0
        )
        _, found = open_existing(JobSpec(to=uri))
        assert isinstance(found.sink, Searchable)
        yield found.sink
        found.sink.close()


def in_folder(where: str) -> set[str] | None:
    """What a folder of Parquet finds, by the rule that searches one; None: refused."""
    table = rows().drop_columns(["text"])
    try:
        with closing(Where(where, table.schema)) as rule:
            keep = rule.mask(table.combine_chunks().to_batches()[0])
    except UsageError:
        return None
    return {id for id, chosen in zip(table["id"].to_pylist(), keep, strict=True) if chosen}


def in_store(store: Searchable, where: str) -> set[str] | None:
    query = {"embedding": np.ones((1, 8), dtype=np.float32)}
    try:
        return {hit.id for hit in store.search(query, limit=COUNT, where=where, exact=True)[0]}
    except UsageError:
        return None


@pytest.mark.parametrize("where", [*NUMBERS, *TIMES, *WORDS])
def test_the_same_rows_or_none_at_all(store: Searchable, where: str) -> None:
    answer = in_store(store, where)
    assert answer is None or answer == in_folder(where)


def test_what_every_store_answers(store: Searchable) -> None:
    for where in (
        "price IS NULL",
        "n = 9007199254740993",
        "day = DATE '2024-01-03'",
        "u < 3",
        "who = 'O''Neil'",
        "f > 2",
    ):
        assert in_store(store, where) == in_folder(where) != set()
