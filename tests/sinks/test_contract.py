"""The folder of Parquet and the memory keep to the sink contract."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.errors import BooksError, SinkError
from embedctl.records import WindowRecord
from embedctl.sinks.memory import MemorySink
from embedctl.sinks.parquet import ParquetSink
from embedctl.sinks.parts import output_array
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan
from embedctl.testing.sink_contract import SinkContract, output, plan


class TestMemorySink(SinkContract):
    @pytest.fixture
    def sink(self) -> MemorySink:
        return MemorySink()

    def held(self, sink: MemorySink, record: WindowRecord) -> pa.Table:
        kept = sink.windows[record.key]
        table = kept.kept.append_column("id", pa.array(kept.ids, pa.string()))
        return table.append_column("embedding", output_array(kept.outputs["embedding"]))

    def lose(self, sink: MemorySink, record: WindowRecord) -> None:
        del sink.windows[record.key]


class TestParquetSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> ParquetSink:
        return ParquetSink(LocalStorage(tmp_path))

    def held(self, sink: ParquetSink, record: WindowRecord) -> pa.Table:
        return pq.read_table(sink._storage.root / record.part, partitioning=None)

    def lose(self, sink: ParquetSink, record: WindowRecord) -> None:
        (sink._storage.root / record.part).unlink()

    def test_a_strangers_file_is_refused_by_name(self, sink: ParquetSink, tmp_path: Path):
        sink.prepare(plan())
        record = sink.write(output(0))
        pq.write_table(pa.table({"x": [1]}), tmp_path / "theirs.parquet")
        with pytest.raises(SinkError) as caught:
            sink.reconcile([record])
        assert str(caught.value) == f"{tmp_path / 'theirs.parquet'}: not a part of this job, yet among its vectors"
        assert caught.value.hint == "move it away, or choose another destination with --to"

    def test_a_broken_file_and_another_jobs_part_are_strangers(self, sink: ParquetSink, tmp_path: Path):
        sink.prepare(plan())
        (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing PAR1")
        with pytest.raises(SinkError, match=r"broken\.parquet: not a part of this job"):
            sink.reconcile([])
        (tmp_path / "broken.parquet").unlink()
        sink.write(output(0))
        other = ParquetSink(LocalStorage(tmp_path))
        other.prepare(hand_plan(schema=plan().schema, keep=plan().keep, id_column="id"))
        assert other.reconcile([]).adopted, "the same job adopts it"
        other._plan = replace(plan(), job="another job's id")
        with pytest.raises(SinkError, match=r"g0001-00000-000000\.parquet: not a part of this job"):
            other.reconcile([])
        with pytest.raises(SinkError, match="a part of another run is in the way"):
            other.write(output(0))

    def test_other_files_are_nobodys_business(self, sink: ParquetSink, tmp_path: Path):
        sink.prepare(plan())
        (tmp_path / "README.md").write_text("hello", encoding="utf-8")
        assert sink.reconcile([]).adopted == ()

    def test_the_same_window_gives_the_same_bytes(self, tmp_path: Path):
        for name in ("a", "b"):
            sink = ParquetSink(LocalStorage(tmp_path / name))
            sink.prepare(plan())
            sink.write(output(0))
        part = "g0001-00000-000000.parquet"
        assert (tmp_path / "a" / part).read_bytes() == (tmp_path / "b" / part).read_bytes()

    def test_a_part_that_is_gone_or_damaged_is_never_counted(self, sink: ParquetSink, tmp_path: Path):
        sink.prepare(plan())
        record = sink.write(output(0))
        path = tmp_path / str(record.part)
        content = path.read_bytes()
        path.write_bytes(content[:-20])
        with pytest.raises(BooksError, match="not a readable part"):
            sink.count([record])
        path.unlink()
        with pytest.raises(BooksError, match="the part is gone"):
            sink.count([record])

    def test_nothing_unfinished_is_left_in_sight(self, sink: ParquetSink, tmp_path: Path):
        sink.prepare(plan())
        record = sink.write(output(0))
        assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == [record.part]
        assert not [p for p in (tmp_path / ".embedctl" / "tmp").rglob("*") if p.is_file()]
