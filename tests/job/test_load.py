"""Vectors that are in Parquet already: a folder carried over whole, tables of any origin, killed anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.sinks.stores import point_id
from embedctl.testing.resume import COMMIT_POINTS, run
from tests.job.stores import FAKE, IDS, cli, corpus, folder, parts, place, points, rows, write

edge = pytest.importorskip("qdrant_edge")

__all__ = ["cli", "corpus", "folder", "place"]

EDGE = "qdrant-edge://./store"
KILLS = [
    pytest.param(
        f"{point}:{which}", marks=[] if f"{point}:{which}" in ("after-part:2", "staged:1") else pytest.mark.slow
    )
    for which in (1, 2, 4)
    for point in COMMIT_POINTS
]
BOOKS = {"read": 200, "written": 189, "unchanged": 0, "skipped": 0, "duplicates": 10, "dead": 1}


def assert_carried(folder: str, store: str = "store") -> None:
    here, there = parts(folder), points(store)
    assert here.keys() == there.keys()
    for name, row in here.items():
        point = there[name]
        assert str(point.id) == str(point_id(row["id"]))
        np.testing.assert_allclose(point.vector, row["embedding"], atol=1e-6)
        assert {k: point.payload[k] for k in ("id", "n", "lang")} == {k: row[k] for k in ("id", "n", "lang")}


def test_a_folder_is_carried_over_with_its_books_and_its_model(cli, corpus, folder):
    done = cli("load", folder, "--to", EDGE)
    assert (done["rows"], done["units"], done["exit_code"]) == (BOOKS, 189, 0)
    assert_carried(folder)
    assert cli("load", folder, "--to", EDGE)["status"] == "already done"
    assert cli("embed", corpus, *FAKE, "--to", EDGE)["status"] == "already done", "it is the job that made the folder"
    letters = cli("status", EDGE, "--dead")["dead_letters"]
    assert [(x["id"], x["reason"]) for x in letters] == [("r17", "text is null")]
    assert [c["ok"] for c in cli("verify", EDGE)["checks"]] == [True, True, True, True, None, None]
    found = cli("search", EDGE, "row 30 says", "-k", "3")
    assert found["model"] == "fake:dim=16"
    assert [h["id"] for h in found["queries"][0]["hits"]] == [
        h["id"] for h in cli("search", folder, "row 30 says", "-k", "3")["queries"][0]["hits"]
    ]


def test_chunks_and_later_generations_are_carried(cli, place):
    made = rows(60)
    write(place / "c.parquet", made)
    chunks = ("--chunk", "tokens:8", "--token-count")
    cli("embed", "c.parquet", *FAKE, *chunks, "--to", "out")
    made[17]["text"] = "mended"
    write(place / "c.parquet", made)
    assert cli("retry", "out")["rows"]["dead"] == 0
    done = cli("load", "out", "--to", EDGE)
    assert (done["rows"]["written"], done["generation"]) == (60, 2)
    here, there = parts("out"), points("store")
    assert here.keys() == there.keys()
    assert len(here) == done["units"] > 60
    assert there["r17#0"].payload["char_end"] == 6
    for name, row in here.items():
        assert str(there[name].id) == point_id(row["id"], row["chunk"])
        assert there[name].payload["token_count"] == row["token_count"]


def test_parquet_to_parquet_gives_the_same_parts(cli, folder):
    cli("load", folder, "--to", "copy")
    assert parts("copy") == parts(folder)
    assert cli("verify", "copy")["ok"]


def test_a_damaged_vector_dies_and_its_neighbours_live(cli, folder):
    part = next(p for p in sorted(Path(folder).glob("*.parquet")))
    table = pq.read_table(part)
    vectors = table.column("embedding").combine_chunks().flatten().to_numpy().reshape(-1, 16).copy()
    vectors[3] = np.nan
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 16)
    place = table.schema.get_field_index("embedding")
    pq.write_table(table.set_column(place, "embedding", column).replace_schema_metadata(table.schema.metadata), part)
    done = cli("load", folder, "--to", EDGE)
    assert done["rows"] == {**BOOKS, "written": 188, "dead": 2}
    assert done["exit_code"] == 3
    letters = cli("status", EDGE, "--dead")["dead_letters"]
    assert (letters[0]["id"], letters[0]["position"], letters[0]["reason"]) == ("r3", 3, "the vector has NaN or Inf")


def test_what_cannot_be_carried_is_refused(cli, place, corpus, folder):
    assert "--where: a folder that embedctl wrote is loaded as it is" in cli(
        "load", folder, "--to", EDGE, "--where", "n > 1", code=2
    )
    assert "--to: where shall the vectors go?" in cli("load", folder, code=2)
    assert "was made by embedctl, and is loaded alone" in cli("load", folder, corpus, "--to", EDGE, code=2)
    cli("embed", corpus, *FAKE, "--to", "half", "--num-shards", "2", "--slice-bytes", "1")
    assert "half: the job there is not finished" in cli("load", "half", "--to", EDGE, code=6)
    cli("load", folder, "--to", EDGE)
    (place / "gone.txt").write_text("r5")
    cli("delete", folder, "--ids", "gone.txt")
    assert "out: changed since it was first loaded here" in cli("load", folder, "--to", EDGE, code=4)
    cli("embed", corpus, "--model", "fake:dim=16,max_length=9", "--to", "other")
    assert "holds another job" in cli("load", "other", "--to", EDGE, code=6)


@pytest.mark.parametrize("point", KILLS)
def test_a_carrying_that_was_killed_goes_on(cli, folder, point):
    if run(["load", folder, "--to", EDGE], failpoint=point).returncode != -9:
        pytest.skip("not passed so often")
    assert cli("load", folder, "--to", EDGE)["rows"] == BOOKS
    assert_carried(folder)
    assert cli("verify", EDGE)["ok"]


def table(count: int = 200) -> pa.Table:
    chance = np.random.default_rng(1)
    vectors: list[Any] = chance.normal(size=(count, 8)).tolist()
    vectors[3], vectors[5], vectors[7], vectors[9] = None, vectors[5][:7], [float("nan")] * 8, [0.0] * 8
    sparse = [
        {"indices": sorted(chance.choice(90, 4, replace=False).tolist(), reverse=True), "values": [1.0, 2.0, 3.0, 4.0]}
        for _ in range(count)
    ]
    return pa.table(
        {
            "doc": [f"d{i if i < IDS else i - IDS + 20}" for i in range(count)],
            "emb": pa.array(vectors, pa.list_(pa.float64())),
            "w": pa.array(sparse, pa.struct([("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))])),
            "late": pa.array(
                [chance.normal(size=(1 + i % 3, 4)).tolist() for i in range(count)], pa.list_(pa.list_(pa.float32()))
            ),
            "n": range(count),
            "_secret": ["x"] * count,
        }
    )


FOREIGN = ("load", "f.parquet", "--id-column", "doc", "--window-rows", "32")
FOREIGN_BOOKS = {"read": 200, "written": 186, "unchanged": 0, "skipped": 0, "duplicates": 10, "dead": 4}


def assert_loaded(store: str = "store") -> None:
    there, given = points(store), table().to_pylist()
    assert len(there) == 186
    for name, point in there.items():
        i = int(name[1:-2])
        norm = np.linalg.norm(given[i]["emb"])
        np.testing.assert_allclose(point.vector["emb"], np.array(given[i]["emb"]) / norm, atol=1e-6)
        assert point.payload["n"] == i
        assert "_secret" not in point.payload
        pairs = zip(given[i]["w"]["indices"], given[i]["w"]["values"], strict=True)
        found = point.vector["w"]
        assert dict(zip(found.indices, found.values, strict=True)) == dict(pairs)
        assert np.shape(point.vector["late"]) == (1 + i % 3, 4)


def test_a_table_of_any_origin(cli):
    pq.write_table(table(), "f.parquet", row_group_size=50)
    done = cli(*FOREIGN, "--to", EDGE)
    assert (done["rows"], done["exit_code"]) == (FOREIGN_BOOKS, 3)
    assert_loaded()
    assert cli(*FOREIGN, "--to", EDGE)["status"] == "already done"
    assert [(x["id"], x["reason"]) for x in cli("status", EDGE, "--dead")["dead_letters"]] == [
        ("d3", "emb: the vector is null"),
        ("d5", "emb: the vector has 7 numbers, not 8"),
        ("d7", "emb: the vector has NaN or Inf"),
        ("d9", "emb: the vector is zero"),
    ]
    for command in (["retry", EDGE], ["embed", "f.parquet", "--to", EDGE, "--text-column", "_secret"]):
        assert "its vectors were loaded, not embedded" in cli(*command, code=6)
    assert "loaded without a model" in cli("search", EDGE, "words", code=2)


@pytest.mark.parametrize("point", KILLS)
def test_a_load_that_was_killed_goes_on(cli, point):
    pq.write_table(table(), "f.parquet", row_group_size=50)
    if run([*FOREIGN, "--to", EDGE], failpoint=point).returncode != -9:
        pytest.skip("not passed so often")
    assert cli(*FOREIGN, "--to", EDGE)["rows"] == FOREIGN_BOOKS
    assert_loaded()


def test_columns_are_chosen_and_named(cli):
    pq.write_table(table(), "f.parquet")
    to = ("--id-column", "doc", "--vector-column", "dense=emb", "--vector-column", "w", "--keep", "n", "--to", "out")
    cli("load", "f.parquet", *to, "--where", "n < 100", "--vector-type", "float16")
    held = pq.read_table(next(Path("out").glob("*.parquet")))
    assert held.column_names == ["id", "n", "dense", "w"]
    assert held.schema.field("dense").type.value_type == pa.float16()
    assert held.num_rows == 96
    hits = cli("search", "out", "--like", "d4", "--using", "w", "-k", "2")["queries"][0]["hits"]
    assert hits[0]["score"] >= hits[1]["score"]


def test_what_is_no_vector_is_refused(cli):
    pq.write_table(table(), "f.parquet")
    pq.write_table(table().select(["doc", "n"]), "g.parquet")
    to = ("--to", EDGE)
    assert "no column 'embe' in f.parquet" in cli("load", "f.parquet", "--vector-column", "embe", *to, code=2)
    assert "column 'n' of f.parquet is int64; vectors are" in cli(
        "load", "f.parquet", "--vector-column", "n", *to, code=2
    )
    assert "which column holds the vectors? there are doc, n" in cli("load", "g.parquet", *to, code=2)
    Path("t.jsonl").write_text('{"id": "a", "emb": [1, 2]}\n')
    assert "Parquet or Arrow files only" in cli("load", "t.jsonl", *to, code=2)
    cli("load", "f.parquet", "--vector-column", "emb", "--to", "out")
    assert "--id-column: asked for 'doc', planned with nothing" in cli(
        "load", "f.parquet", "--vector-column", "emb", "--id-column", "doc", "--to", "out", code=6
    )
    pq.write_table(table(100), "f.parquet")
    assert "1 changed (f.parquet)" in cli("load", "f.parquet", "--vector-column", "emb", "--to", "out", code=4)


def test_with_its_model_loaded_vectors_are_searched_in_words(cli, folder):
    bare = pa.concat_tables([pq.read_table(p) for p in sorted(Path(folder).glob("*.parquet"))])
    pq.write_table(bare.replace_schema_metadata(None), "bare.parquet")
    cli("load", "bare.parquet", "--to", EDGE, "--model", "fake:dim=16")
    asked = ("row 30 says", "-k", "3")
    hits = cli("search", EDGE, *asked)["queries"][0]["hits"]
    assert [h["id"] for h in hits] == [h["id"] for h in cli("search", folder, *asked)["queries"][0]["hits"]]
    assert "gives 8 numbers, embedding has 16" in cli("search", EDGE, "a", "--model", "fake:dim=8", code=6)


def test_files_of_several_shapes_are_one_corpus(cli, place):
    given = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
    kinds = [pa.list_(pa.float32(), 4), pa.list_(pa.float64()), pa.large_list(pa.float32())]
    (place / "many").mkdir()
    for i, kind in enumerate(kinds):
        two = pa.array(given[2 * i : 2 * i + 2].tolist(), kind)
        pq.write_table(pa.table({"id": [2 * i, 2 * i + 1], "v": two}), place / "many" / f"{i}.parquet")
    done = cli("load", "many", "--to", "out")
    assert done["rows"]["written"] == 6
    np.testing.assert_allclose([parts("out")[f"{i}#0"]["embedding"] for i in range(6)], given, rtol=1e-6)
