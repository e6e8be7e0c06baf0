"""The Qdrant sinks keep to the sink contract: the embedded engine, and the client against the rig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("qdrant_edge")
pytest.importorskip("qdrant_client")

from embedctl.records import WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.payload import payloads
from embedctl.sinks.qdrant import QdrantSink
from embedctl.sinks.qdrant_engine import POS
from embedctl.testing.sink_contract import KEPT, SinkContract, output, plan
from tests.sinks.qdrant_kit import place


class QdrantContract(SinkContract):
    kind: str

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[QdrantSink]:
        with place(self.kind, tmp_path) as there:
            yield there.sink(distance="dot", index_field=("name:keyword",))

    def held(self, sink: QdrantSink, record: WindowRecord) -> pa.Table:
        records, _ = sink._engine.scroll(None, 1000, vectors=True)
        first = stores.position_number(record.key, 0)
        mine = [r for r in records if first <= r.payload[POS] < first + (1 << stores.ROW_BITS)]
        mine.sort(key=lambda r: (r.payload[POS], r.payload.get("chunk", 0)))
        kept = self.expected_kept(KEPT).schema
        columns = {"id": [r.payload["id"] for r in mine], "embedding": [r.vectors[""] for r in mine]}
        table = pa.table({f.name: pa.array([r.payload[f.name] for r in mine], f.type) for f in kept})
        return table.append_column("id", pa.array(columns["id"])).append_column(
            "embedding", pa.array(columns["embedding"], pa.list_(pa.float32()))
        )

    def expected_kept(self, kept: pa.Table) -> pa.Table:
        """What the payload's documented mapping makes of them."""
        rows = payloads(kept)
        return pa.table({name: pa.array([row[name] for row in rows]) for name in kept.column_names})

    def lose(self, sink: QdrantSink, record: WindowRecord) -> None:
        first = float(stores.position_number(record.key, 0))
        sink._engine.delete({"must": [{"key": POS, "range": {"gte": first, "lt": first + (1 << stores.ROW_BITS)}}]})

    def test_a_window_without_a_ledger_record_is_adopted(self, sink: QdrantSink) -> None:
        """A store cannot tell windows: it is written again, over itself."""
        sink.prepare(plan())
        known, unknown = sink.write(output(0)), sink.write(output(1))
        found = sink.reconcile([known])
        assert (found.adopted, found.lost) == ((), ())
        assert sink.write(output(1)) == unknown
        assert sink.count([known, unknown]) == 8

    def test_a_window_that_lost_one_row_is_lost(self, sink: QdrantSink) -> None:
        sink.prepare(plan())
        records = [sink.write(output(n)) for n in range(3)]
        assert sink.delete([output(1).ids[2]]) == 1
        assert sink.reconcile(records).lost == (records[1],)

    def test_a_row_that_an_earlier_window_has_is_not_lost(self, sink: QdrantSink) -> None:
        sink.prepare(plan())
        again = output(1)
        again.ids[0] = output(0).ids[0]  # type: ignore[index]
        records = [sink.write(output(0)), sink.write(again)]
        assert sink.count(records) == 7
        assert sink.reconcile(records).lost == ()


class TestEdge(QdrantContract):
    kind = "edge"


class TestGrpc(QdrantContract):
    kind = "grpc"


class TestRest(QdrantContract):
    kind = "rest"


del QdrantContract
