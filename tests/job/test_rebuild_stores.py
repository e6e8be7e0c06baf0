"""A state that is lost, made again from stores of other engines than Qdrant's."""

from __future__ import annotations

import shutil

import pytest

from tests.job.stores import FAKE, cli, corpus, place, rows, write

__all__ = ["cli", "corpus", "place"]


@pytest.fixture(params=["lancedb", "pgvector", pytest.param("milvus", marks=pytest.mark.slow)])
def store(request, place) -> str:
    """The URI of a table of its own."""
    if request.param == "pgvector":
        server = request.getfixturevalue("postgres")
        server.sql("DROP SCHEMA public CASCADE")
        server.sql("CREATE SCHEMA public")
        return server.uri("docs")
    pytest.importorskip("lancedb" if request.param == "lancedb" else "milvus_lite")
    return f"lancedb://{place}/lance/docs" if request.param == "lancedb" else f"milvus-lite://{place}/m.db/docs"


@pytest.mark.parametrize("chunk", [(), ("--chunk", "tokens:8")], ids=["rows", "chunks"])
def test_a_finished_state_comes_back_whole(cli, corpus, place, store, chunk):
    job = ("embed", corpus, *FAKE, *chunk, "--to", store, "--create")
    before = cli(*job)
    (place / "gone.txt").write_text("r3\nr100")
    gone = cli("delete", store, "--ids", "gone.txt")["vectors"]
    books = cli("status", store)["rows"]
    shutil.rmtree("state")
    assert "its state is not in" in cli("status", store, code=2)
    assert "its state is not in" in cli("delete", store, "--ids", "gone.txt", code=2)
    assert "embedctl state rebuild" in cli(*job, code=2)
    done = cli("state", "rebuild", store)
    assert (done["finished"], done["windows_to_do"], done["vectors"]) == (True, 0, before["units"] - gone)
    again = cli(*job)
    assert (again["status"], again["rows"]) == ("already done", books)
    assert cli("verify", store)["ok"]
    (place / "gone.txt").write_text("r4")
    assert cli("delete", store, "--ids", "gone.txt")["rows"] == 1, "lists of ids are there again"
    assert "its state is in" in cli("state", "rebuild", store, code=2)


def test_a_store_that_is_not_there_has_no_state_to_lose(cli, store):
    assert "no embeddings made by embedctl there" in cli("status", store, code=2)


def test_a_rebuilt_state_takes_rows_that_changed(cli, place, store):
    made = rows(60)
    job = ("sync", write(place / "c.parquet", made), *FAKE, "--to", store, "--create")
    cli(*job)
    shutil.rmtree("state")
    cli("state", "rebuild", store)
    made[5]["text"], made[6]["n"] = "another text", 7
    write(place / "c.parquet", made[:-1])
    done = cli(*job)
    assert done["rows"]["unchanged"] == done["rows"]["read"] - 3, "content hashes came back too"
    assert cli("verify", store)["ok"]


def test_an_alias_in_a_schema_comes_back_from_the_table_it_serves(cli, corpus, postgres):
    postgres.sql("CREATE SCHEMA IF NOT EXISTS apart")
    served = postgres.uri("apart.docs")
    job = ("embed", corpus, *FAKE, "--to", served, "--swap-alias", "docs")
    assert "try: --swap-alias docs" in cli(*job[:-1], "apart.docs", code=2)
    first = cli(*job)
    assert postgres.sql("SELECT count(*) FROM apart.docs") == [(first["units"],)]
    shutil.rmtree("state")
    assert f"state rebuild {served.replace('postgres@', '')}__" in cli("status", served, code=2)
    assert cli("state", "rebuild", served)["finished"]
    again = cli(*job)
    assert (again["status"], again["collection"]) == ("already done", first["collection"])
