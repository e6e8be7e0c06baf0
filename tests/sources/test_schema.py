"""Choosing columns and types before a job starts, over one file and over shards that drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl import registry
from embedctl.errors import UsageError
from embedctl.records import Segment
from embedctl.sources.base import Format
from embedctl.sources.files import discover
from embedctl.sources.roles import is_id, is_json, is_number_id
from embedctl.sources.schema import ResolvedSchema, resolve_schema


class Corpus:
    """Files in a folder, resolved and read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def parquet(self, name: str, **columns: Any) -> None:
        pq.write_table(pa.table(columns), self.folder / f"{name}.parquet")

    def jsonl(self, name: str, *rows: dict[str, Any]) -> None:
        (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")

    def resolve(self, **asked: Any) -> ResolvedSchema:
        files = discover([str(self.folder)])
        formats: dict[str, Format] = {f.format: registry.get("formats", f.format)() for f in files}
        return resolve_schema(files, formats, **asked)

    def read(self, resolved: ResolvedSchema) -> tuple[list[dict[str, Any]], list[str]]:
        cells: list[dict[str, Any]] = []
        reasons: list[str] = []
        for file in discover([str(self.folder)]):
            for block in registry.get("formats", file.format)().read(file, Segment(file=file.index), resolved.schema):
                assert block.columns.schema == resolved.schema
                cells += block.columns.to_pylist()
                reasons += block.errors.values()
        return cells, reasons


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def test_text_and_id_are_found_by_name_and_only_needed_columns_are_asked_for(corpus: Corpus) -> None:
    corpus.parquet("a", docid=[1], other=["x"], body=["b"])
    r = corpus.resolve()
    assert (r.text_columns, r.id_column, r.keep) == (("body",), "docid", ())
    assert r.schema.names == ["body", "docid"]
    assert is_id(r.schema.field("docid"))
    assert corpus.read(r) == ([{"body": "b", "docid": "1"}], [])


def test_the_only_text_column_is_the_text(corpus: Corpus) -> None:
    corpus.parquet("a", id=["1"], headline=["h"], n=[1])
    assert corpus.resolve().text_columns == ("headline",)


def test_an_unclear_text_column_is_asked_for(corpus: Corpus) -> None:
    corpus.parquet("a", x=["1"], y=["h"])
    with pytest.raises(UsageError, match="which column is the text\\? 2 hold text: x, y") as caught:
        corpus.resolve()
    assert caught.value.hint == "--text-column x"


def test_an_automatic_id_must_be_in_all_files(corpus: Corpus) -> None:
    corpus.parquet("a", id=[1], text=["x"])
    corpus.parquet("b", text=["y"])
    assert corpus.resolve().id_column is None
    with pytest.raises(UsageError, match=r"--id-column: column 'id' is missing in b\.parquet; it has text"):
        corpus.resolve(id_column="id")


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (
            {"text_columns": ["txt"]},
            "--text-column: no column 'txt'; the corpus has id, text, year, embedding",
            "'text'",
        ),
        ({"id_column": "idd"}, "--id-column: no column 'idd'", "'id'"),
        ({"keep": ["yaer"]}, "--keep: no column 'yaer'", "'year'"),
        ({"where_columns": ["lang"]}, "--where: no column 'lang'", None),
        ({"text_columns": ["year"]}, "--text-column: column 'year' of a.parquet is int64, not text", "{year}"),
        ({"id_column": "embedding"}, "column 'embedding' of a.parquet is double; an id is text", None),
        ({"keep": ["embedding"]}, "'embedding' is a name the output uses itself", "leave it out"),
        ({"keep": ["*"]}, "'embedding' is a name the output uses itself", "leave it out"),
        ({"keep": ["id"], "id_column": "text"}, "'id' is a name the output uses itself", "--id-column id"),
        ({"keep": ["year:date"]}, "asks for type 'date'; allowed: string, int64, float64, bool", "year:string"),
    ],
)
def test_refusals(corpus: Corpus, asked: dict[str, Any], message: str, hint: str | None) -> None:
    corpus.parquet("a", id=["1"], text=["t"], year=[1999], embedding=[0.5])
    with pytest.raises(UsageError) as caught:
        corpus.resolve(**asked)
    assert message in str(caught.value)
    assert hint is None or (caught.value.hint and hint in caught.value.hint)


def test_ids_are_known_to_be_numbers_only_where_the_files_say_so(corpus: Corpus) -> None:
    corpus.parquet("a", id=pa.array([1], pa.int32()), text=["x"])
    assert is_number_id(corpus.resolve().schema.field("id"))
    corpus.jsonl("b", {"id": 2, "text": "y"})
    field = corpus.resolve().schema.field("id")
    assert is_id(field)
    assert not is_number_id(field)
    corpus.parquet("c", id=pa.array([2**64 - 1], pa.uint64()), text=["z"])
    assert [row["id"] for row in corpus.read(corpus.resolve())[0]] == ["1", "2", "18446744073709551615"]


def test_a_column_that_is_there_twice_is_refused_only_when_needed(corpus: Corpus) -> None:
    table = pa.Table.from_arrays([pa.array(["t"]), pa.array([1]), pa.array([2])], names=["text", "n", "n"])
    pq.write_table(table, corpus.folder / "a.parquet")
    assert corpus.read(corpus.resolve())[0] == [{"text": "t"}]
    with pytest.raises(UsageError, match=r"--keep: column 'n' is there twice in a\.parquet"):
        corpus.resolve(keep=["n"])


def test_keep_takes_stars_paths_and_types(corpus: Corpus) -> None:
    corpus.parquet("a", id=["1"], text=["t"], year=[1999], meta=[{"lang": "en", "n": 3}])
    assert corpus.resolve(keep=["*"]).keep == ("year", "meta")
    r = corpus.resolve(keep=["meta.lang", "year:string", "id"])
    assert r.keep == ("meta.lang", "year")
    assert corpus.read(r)[0] == [{"text": "t", "meta.lang": "en", "year": "1999", "id": "1"}]


def test_parquet_drift_in_width_and_encoding_is_tolerated(corpus: Corpus) -> None:
    corpus.parquet("a", text=["a"], n=pa.array([1], pa.int32()), k=pa.array(["x"]).dictionary_encode())
    corpus.parquet("b", text=pa.array(["b"], pa.large_string()), n=pa.array([2], pa.int64()), k=["y"])
    corpus.parquet("c", text=pa.array([b"c"]), n=pa.array([None], pa.null()), k=pa.array(["z"], pa.string_view()))
    r = corpus.resolve(keep=["n", "k"])
    assert r.schema.field("n").type == pa.int64()
    rows, reasons = corpus.read(r)
    assert not reasons
    assert [(x["text"], x["n"], x["k"]) for x in rows] == [("a", 1, "x"), ("b", 2, "y"), ("c", None, "z")]


def test_drift_between_kinds_names_both_files(corpus: Corpus) -> None:
    corpus.parquet("a", text=["a"], n=[1])
    corpus.parquet("b", text=["b"], n=["one"])
    assert corpus.resolve().schema.names == ["text"]
    with pytest.raises(UsageError) as caught:
        corpus.resolve(keep=["n"])
    assert str(caught.value) == "column 'n' is int64 in a.parquet but string in b.parquet"
    assert corpus.read(corpus.resolve(keep=["n:string"]))[0] == [{"text": "a", "n": "1"}, {"text": "b", "n": "one"}]


def test_json_types_are_inferred_merged_and_held(corpus: Corpus) -> None:
    corpus.jsonl("a", {"text": "x", "n": 1, "f": 1, "m": 1, "t": ["a"], "s": {"k": None}, "z": None, "b": True})
    corpus.jsonl("b", {"text": "y", "n": 2, "f": 1.5, "m": "one", "t": [], "s": {"k": 1, "l": "v"}, "z": 5})
    r = corpus.resolve(keep=["n", "f", "m", "t", "b"])
    types = {f.name: f.type for f in r.schema}
    assert types == {
        "text": pa.string(),
        "n": pa.int64(),
        "f": pa.float64(),
        "m": pa.string(),
        "t": pa.list_(pa.string()),
        "b": pa.bool_(),
    }
    assert is_json(r.schema.field("m"))
    rows, reasons = corpus.read(r)
    assert not reasons
    assert [row["m"] for row in rows] == ["1", "one"]
    assert [row["b"] for row in rows] == [True, None]


def test_a_column_of_nulls_in_one_shard_takes_the_type_of_the_other(corpus: Corpus) -> None:
    corpus.jsonl("a", {"text": "x", "z": None})
    corpus.jsonl("b", {"text": "y", "z": 5})
    assert corpus.resolve(keep=["z"]).schema.field("z").type == pa.int64()


def test_kept_values_that_do_not_fit_are_errors_of_their_row(corpus: Corpus) -> None:
    many = [{"id": i, "text": "x" * 1000, "year": i} for i in range(1100)]
    corpus.jsonl("a", *many, {"id": "s", "text": "y", "year": "MCM"}, {"id": 1.5, "text": "z"}, {"id": 7, "text": "z"})
    rows, reasons = corpus.read(corpus.resolve(keep=["year"]))
    assert reasons == [
        "column 'year' holds 'MCM', not int64",
        "column 'id' is a number, not a string or a whole number",
    ]
    assert [row["id"] for row in rows[-3:]] == ["s", None, "7"]


def test_a_template_takes_scalars(corpus: Corpus) -> None:
    corpus.parquet("a", title=["t"], year=[1999], tags=[["x"]])
    r = corpus.resolve(text_columns=["title", "year"], template=True)
    assert corpus.read(r)[0] == [{"title": "t", "year": 1999}]
    with pytest.raises(UsageError, match="column 'tags' is list"):
        corpus.resolve(text_columns=["tags"], template=True)


def test_json_in_a_template_is_text(corpus: Corpus) -> None:
    corpus.jsonl("a", {"title": "t", "year": 1999})
    r = corpus.resolve(text_columns=["title", "year"], template=True)
    assert corpus.read(r)[0] == [{"title": "t", "year": "1999"}]


def test_a_corpus_without_rows_resolves(corpus: Corpus) -> None:
    corpus.jsonl("a")
    r = corpus.resolve(keep=["n:int64"], id_column="k")
    assert r.schema.names == ["text", "n", "k"]
    assert corpus.read(r) == ([], [])


def test_an_empty_shard_among_others_does_not_matter(corpus: Corpus) -> None:
    corpus.jsonl("a")
    corpus.jsonl("b", {"id": 1, "text": "x"})
    assert corpus.resolve().id_column == "id"
