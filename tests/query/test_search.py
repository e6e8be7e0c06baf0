"""Search against a plain full sort over what pyarrow reads, for every vector type; and real neighbours."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from embedctl import job
from embedctl.errors import BooksError, EncoderError, PlanMismatch, UsageError
from embedctl.events import Silent
from embedctl.job.destination import Destination, open_existing
from embedctl.query import search as room
from embedctl.query.queries import Asking, Query, embed_queries, query_prompt
from embedctl.query.search import Wanted, jsonable, search
from embedctl.sinks.memory import MemorySink
from embedctl.spec import VECTOR_TYPES, JobSpec

FAKE = ("--model", "fake:dim=16")


class Heard(Silent):
    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


def _search(destination: Path, *texts: str, asking: Asking | None = None, **options):
    queries = [Query(id=f"q{n}", text=text) for n, text in enumerate(texts)]
    like = options.pop("like", None)
    wanted = Wanted(**options)
    return search(str(destination), queries, like=like, wanted=wanted, asking=asking or Asking(), listener=Silent())


def _ids(report, number: int = 0) -> list:
    return [hit["id"] for hit in report["queries"][number]["hits"]]


def _twin(destination: Path, vector: np.ndarray, vector_type: str, k: int) -> list[tuple[str, float]]:
    """Everything in memory, one stable sort."""
    table = ds.dataset(destination, format="parquet").to_table()
    stored = np.array(table["embedding"].combine_chunks().flatten()).reshape(table.num_rows, -1)
    if vector_type in ("binary", "ubinary"):
        bytes_ = stored.astype(np.int16) + (128 if vector_type == "binary" else 0)
        bits = np.unpackbits(bytes_.astype(np.uint8), axis=1)[:, : len(vector)]
        scores = (bits == (vector > 0)).mean(axis=1)
    else:
        values = stored.astype(np.float64)
        if vector_type in ("int8", "uint8"):
            plan, _ = open_existing(JobSpec(to=str(destination)))
            low, high = np.array(plan.int8_ranges["embedding"])
            levels = values + (128 if vector_type == "int8" else 0)
            values = low + np.minimum(levels + 0.5, 255) * (high - low) / 255
        wide = vector.astype(np.float64)
        scores = values @ wide / np.linalg.norm(values, axis=1) / np.linalg.norm(wide)
    scores = scores.astype(np.float32)
    order = np.argsort(-scores, kind="stable")[:k]
    return [(table["id"][i].as_py(), float(scores[i])) for i in order.tolist()]


@pytest.mark.parametrize("vector_type", VECTOR_TYPES)
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_every_vector_type_is_its_plain_twin(embed, vector_type, k):
    texts = [f"text {n % 97}" for n in range(400)]  # equal texts: equal scores
    out = embed(texts, *FAKE, "--vector-type", vector_type, "--window-rows", "60")
    assert len(list(out.glob("*.parquet"))) > 3
    report = _search(out, "text 5", "something else", k=k)
    plan, _ = open_existing(JobSpec(to=str(out)))
    queries = [Query(id="a", text="text 5"), Query(id="b", text="something else")]
    vectors = embed_queries(plan, queries, Asking(), Silent())["embedding"]
    for number, vector in enumerate(vectors):
        hits = report["queries"][number]["hits"]
        expected = _twin(out, vector, vector_type, k)
        assert [hit["id"] for hit in hits] == [id for id, _ in expected]
        np.testing.assert_allclose([hit["score"] for hit in hits], [s for _, s in expected], rtol=2e-7)
        assert [hit["rank"] for hit in hits] == list(range(1, min(k, 400) + 1))
    assert report["vectors"] == 400
    assert report["finished"] is True


TEXTS = [
    "How to bake bread at home", "Merging two Python dictionaries into one", "Income tax law in Germany",
    "Jupiter is the largest planet of the solar system", "Sourdough starter, flour and water",
    "The dict.update method", "Which expenses a tax return may deduct", "Rings of Saturn seen by telescope",
]  # fmt: skip


def test_real_neighbours(embed):
    out = embed(TEXTS, "--keep", "text")
    report = _search(out, "baking a loaf", "python dict union", "paying taxes", "astronomy", k=2)
    assert [set(_ids(report, n)) for n in range(4)] == [{"r0", "r4"}, {"r1", "r5"}, {"r2", "r6"}, {"r3", "r7"}]
    assert _ids(_search(out, like="r3", k=1)) == ["r7"]
    first = report["queries"][0]["hits"][0]
    assert first["columns"] == {"text": TEXTS[int(first["id"][1:])]}
    assert first["chunk"] is None
    assert report["similarity"] == "cosine"
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize("flags", [("--dim", "64"), ("--pooling", "cls"), ("--dtype", "bfloat16")])
def test_queries_are_made_as_the_corpus_was(embed, flags):
    """A text that is in the corpus finds itself with score 1, whatever makes the vectors."""
    out = embed(TEXTS, *flags)
    for n in (0, 5):
        hit = _search(out, TEXTS[n], k=1)["queries"][0]["hits"][0]
        assert (hit["id"], round(hit["score"], 3)) == (f"r{n}", 1.0)


def test_where_is_over_id_and_kept_columns(embed):
    out = embed(
        [f"text {n}" for n in range(50)], *FAKE, "--keep", "n,lang", "--window-rows", "9",
        ids=list(range(50)), n=list(range(50)), lang=["en", "de"] * 25,
    )  # fmt: skip
    everything = _ids(_search(out, "x", k=50))
    assert sorted(everything) == list(range(50))
    assert _ids(_search(out, "x", k=50, where="n > 20 AND lang = 'de'")) == [i for i in everything if i > 20 and i % 2]
    assert _ids(_search(out, "x", k=50, where="id IN (3, 4)")) == [i for i in everything if i in (3, 4)]
    assert _ids(_search(out, "x", k=50, where="true")) == everything
    assert _ids(_search(out, "x", where="n < 0")) == []
    with pytest.raises(UsageError, match="--where: no column 'text'; the corpus has id, n, lang"):
        _search(out, "x", where="text = 'a'")
    with pytest.raises(UsageError, match="--where: no column 'embedding'"):
        _search(out, "x", where="embedding IS NULL")


def test_chunks_show_their_place_and_like_leaves_the_document_out(embed):
    long = " ".join(f"word{n}" for n in range(60))
    out = embed([long, "short text", long + " more"], *FAKE, "--chunk", "tokens:10", "--window-rows", "2")
    report = _search(out, "word1", k=100)
    hits = report["queries"][0]["hits"]
    assert len(hits) == report["vectors"] > 10
    assert {(h["id"], h["chunk"]) for h in hits} >= {("r0", 0), ("r0", 1), ("r1", 0), ("r2", 2)}
    assert all(h["char_end"] > h["char_start"] for h in hits)
    for like, first in (("r0", 0), ("r0#2", 2)):
        found = _search(out, like=like, k=1)["queries"][0]["hits"][0]
        assert (found["id"], found["chunk"], round(found["score"], 5)) == ("r2", first, 1.0)
    assert "r0" not in _ids(_search(out, like="r0#2", k=100))
    with pytest.raises(UsageError, match="no row with the id 'r0#99'"):
        _search(out, like="r0#99")


@pytest.mark.parametrize("vector_type", VECTOR_TYPES)
def test_like_needs_no_model_and_takes_every_type(embed, vector_type, monkeypatch):
    out = embed(["a", "b", "a", "c"], *FAKE, "--vector-type", vector_type, ids=["5#1", "x", "y", "z"])
    monkeypatch.setattr(room, "embed_queries", None)
    hit = _search(out, like="5#1", k=1)["queries"][0]["hits"][0]
    assert hit["id"] == "y"
    assert hit["score"] == pytest.approx(1.0, abs=1e-6)


def test_whole_number_ids_are_asked_by_their_text(embed):
    out = embed(["a", "b", "a"], *FAKE, ids=[7, 8, 9])
    assert _ids(_search(out, like="7", k=1)) == [9]
    with pytest.raises(UsageError, match="no row with the id '07'"):
        _search(out, like="07")


def test_a_killed_run_is_searched_as_far_as_it_came(embedctl, tmp_path):
    """The third window's part is there, its ledger record is not: it does not count yet."""
    pq.write_table(pa.table({"id": [f"r{n}" for n in range(100)], "text": [f"text {n}" for n in range(100)]}),
                   tmp_path / "c.parquet")  # fmt: skip
    killed = embedctl(
        "embed", "c.parquet", *FAKE, "--to", "out", "--window-rows", "20", env={"EMBEDCTL_FAILPOINT": "after-part:3"}
    )
    assert killed.returncode == -9
    out, heard = tmp_path / "out", Heard()
    assert len(list(out.glob("*.parquet"))) == 3
    report = search(str(out), [Query(id="", text="text 3")], wanted=Wanted(), asking=Asking(), listener=heard)
    assert (report["finished"], report["vectors"], _ids(report)[0]) == (False, 40, "r3")
    assert heard.notes == [f"{out} is not finished: only what is committed so far is searched"]
    assert embedctl("embed", "c.parquet", *FAKE, "--to", "out", "--window-rows", "20", "-q").returncode == 0
    report = _search(out, "text 99", k=1)
    assert (report["finished"], report["vectors"], _ids(report)) == (True, 100, ["r99"])


def test_a_part_that_is_not_committed_is_not_read(embed):
    out = embed(["a", "b"], *FAKE)
    shutil.copy(next(out.glob("*.parquet")), out / "stray.parquet")
    assert sorted(_ids(_search(out, "a", k=9))) == ["r0", "r1"]


def test_the_current_version_is_read_once_there_is_one(embed, tmp_path):
    """A later generation that is not finished does not show."""
    out = embed([f"text {n}" for n in range(10)], *FAKE)
    version = out / ".embedctl" / "versions" / "out__00000000_1"
    version.mkdir(parents=True)
    part = next(out.glob("*.parquet"))
    (version / part.name).hardlink_to(part)
    (out / ".embedctl" / "current").symlink_to("versions/out__00000000_1")
    part.unlink()  # the top folder is on its way to another state
    report = _search(out, "text 3", k=1)
    assert _ids(report) == ["r3"]
    assert report["finished"] is True
    shutil.rmtree(version)
    with pytest.raises(BooksError, match="the version it names is gone"):
        _search(out, "text 3")


def test_after_a_retry_both_generations_are_found(tmp_path, monkeypatch, capsys):
    from embedctl.cli.app import main

    monkeypatch.chdir(tmp_path)
    rows = [{"id": "a", "text": "one"}, {"id": "b", "text": None}, {"id": "c", "text": "three"}]
    Path("c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    assert main(["embed", "c.jsonl", *FAKE, "--to", "out", "-q"]) == 3
    rows[1]["text"] = "two"
    Path("c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    assert main(["retry", "out", "-q"]) == 0, capsys.readouterr().err
    assert (tmp_path / "out" / ".embedctl" / "current").is_symlink()
    assert sorted(_ids(_search(tmp_path / "out", "two"))) == ["a", "b", "c"]
    assert _ids(_search(tmp_path / "out", "two", k=1)) == ["b"]


def test_int8_ranges_of_standard_input_come_from_the_ledger(embedctl, tmp_path):
    lines = "".join(json.dumps({"id": f"r{n}", "text": f"text {n}"}) + "\n" for n in range(30))
    made = embedctl("embed", "-", "--format", "jsonl", *FAKE, "--vector-type", "int8", "--to", "out", "-q", input=lines)
    assert made.returncode == 0, made.stderr
    plan, _ = open_existing(JobSpec(to=str(tmp_path / "out")))
    assert not plan.int8_ranges
    assert _ids(_search(tmp_path / "out", "text 7", k=1)) == ["r7"]


def test_nothing_embedded_gives_nothing(embed):
    out = embed(["a", "b"], *FAKE, "--where", "id = 'none'")
    assert _ids(_search(out, "a")) == []
    with pytest.raises(UsageError, match="no row with the id 'r0'"):
        _search(out, like="r0")


def test_broken_parts_are_named(embed):
    out = embed(["a", "b"], *FAKE)
    part = next(out.glob("*.parquet"))
    part.write_bytes(b"PAR1 not really")
    with pytest.raises(BooksError, match=f"{part}: not a readable part") as told:
        _search(out, "a")
    assert told.value.hint == f"embedctl verify {out}"
    part.unlink()
    with pytest.raises(BooksError, match=f"{part}: the part is gone"):
        _search(out, "a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "text is empty"), (" \n", "only white space"), ("a\udc80", "lone surrogate")],
)
def test_a_query_that_cannot_be_embedded_is_refused(embed, text, reason):
    with pytest.raises(UsageError, match=reason):
        _search(embed(["a"], *FAKE), text)


def test_a_query_that_gives_nan_is_told(embed):
    from embedctl.tokens.fake import FakeTokenizer

    token = int(FakeTokenizer(max_length=16, prompt="")(["poison"]).ids_T[1])
    out = embed(["a", "b"], "--model", f"fake:nan={token}")
    with pytest.raises(EncoderError, match="query 'q0': the vector has NaN or Inf"):
        _search(out, "poison")


def test_long_queries_are_cut_and_told(embed):
    out = embed(["a"], "--model", "fake:max_length=8")
    heard = Heard()
    search(str(out), [Query(id="q", text="word " * 50)], wanted=Wanted(), asking=Asking(), listener=heard)
    assert heard.notes == ["1 of 1 queries are longer than the model's 8 tokens: cut"]


def test_no_destination_there(tmp_path):
    with pytest.raises(UsageError, match="no embeddings made by embedctl there"):
        _search(tmp_path, "a")


def test_a_store_without_a_search_says_so(embed, monkeypatch):
    out = embed(["a"], *FAKE)
    plan, found = open_existing(JobSpec(to=str(out)))
    deaf: Destination = replace(found, uri="store://x", sink=MemorySink())
    monkeypatch.setattr(room, "open_existing", lambda spec: (plan, deaf))
    with pytest.raises(UsageError, match="store://x: this kind of destination cannot be searched from here"):
        _search(out, "a")


def _model_with(tmp_path: Path, name: str, **settings) -> Path:
    """The default model's folder with other prompts, its files linked."""
    from embedctl.models.load import find_model

    source = find_model("all-MiniLM-L6-v2").root
    assert source is not None
    folder = tmp_path / name
    shutil.copytree(source, folder, copy_function=lambda a, b: Path(b).symlink_to(Path(a).resolve()))
    path = folder / "config_sentence_transformers.json"
    config = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps({**config, **settings}))
    return folder


def test_the_query_side_has_its_own_prompt(embed, tmp_path):
    from sentence_transformers import SentenceTransformer

    prompts = {"query": "query: ", "passage": "passage: "}
    folder = _model_with(tmp_path, "asymmetric", prompts=prompts)
    out = embed(TEXTS, "--model", str(folder), "--prompt-name", "passage")
    plan, _ = open_existing(JobSpec(to=str(out)))
    asked = [Query(id="q", text="bread")]
    reference = SentenceTransformer(str(folder), device="cpu")
    for asking, expected in (
        (Asking(), reference.encode_query(["bread"])),
        (Asking(prompt=""), reference.encode(["bread"])),
        (Asking(prompt="ask: "), reference.encode(["ask: bread"])),
        (Asking(prompt_name="passage"), reference.encode(["passage: bread"])),
    ):
        vector = embed_queries(plan, asked, asking, Silent())["embedding"]
        assert float((vector * expected).sum()) > (1 - 1e-6 if plan.resolved["dtype"] == "float32" else 0.9995)
    assert np.abs(reference.encode_query(["bread"]) - reference.encode(["bread"])).max() > 0.01
    with pytest.raises(UsageError, match="has no prompt 'quary'; it has: query, passage"):
        embed_queries(plan, asked, Asking(prompt_name="quary"), Silent())
    with pytest.raises(UsageError, match="give one of them"):
        Asking(prompt="a", prompt_name="b")


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({"query": "q: ", "document": "d: "}, None, "q: "),
        ({"query": "q: ", "document": "d: "}, "document", "q: "),
        ({"any": "a: "}, "any", "a: "),
        ({"any": "a: "}, None, ""),
        ({}, None, ""),
    ],
)
def test_which_prompt_a_query_gets(prompts, default, expected):
    from embedctl.models.load import find_model

    folder = replace(find_model("fake"), prompts=prompts, default_prompt_name=default)
    assert query_prompt(folder, Asking()) == expected


def test_a_moved_model_is_found_and_another_is_refused(embed, tmp_path):
    folder = _model_with(tmp_path, "first")
    out = embed(TEXTS, "--model", str(folder))
    folder.rename(tmp_path / "second")
    with pytest.raises(UsageError, match="first"):
        _search(out, "bread")
    assert _ids(_search(out, TEXTS[0], k=1, asking=Asking(model=str(tmp_path / "second")))) == ["r0"]
    with pytest.raises(PlanMismatch, match="not the ones that the corpus was embedded with"):
        _search(out, "bread", asking=Asking(model="fake"))


def test_kept_values_as_json_can_hold_them(embed):
    import datetime
    import decimal

    when = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    columns = {
        "when": pa.array([when], pa.timestamp("us", "UTC")), "raw": [b"\x00\xff"], "money": [decimal.Decimal("1.50")],
        "odd": [float("nan")], "big": [2**60 + 1], "deep": [{"a": [1, None], "b": {"c": "x"}}], "none": [None],
    }  # fmt: skip
    out = embed(["a"], *FAKE, "--keep", ",".join(columns), **columns)
    kept = _search(out, "a")["queries"][0]["hits"][0]["columns"]
    assert json.loads(json.dumps(kept, allow_nan=False)) == {
        "when": "2024-05-06T07:08:09+00:00", "raw": "AP8=", "money": "1.50", "odd": None, "big": 2**60 + 1,
        "deep": {"a": [1, None], "b": {"c": "x"}}, "none": None,
    }  # fmt: skip
    assert jsonable([("k", float("inf"))]) == [["k", None]]


def test_volume_in_bounded_pieces(embed, monkeypatch):
    """Many rows in one part are read in pieces, and the answer is the twin's."""
    texts = [f"text {n}" for n in range(20_000)]
    out = embed(texts, "--model", "fake:dim=32", "--window-rows", "15000")
    sizes = []
    real = room.nearest

    def spying(stretches, *args, **kwargs):
        def pieces():
            for stretch in stretches:
                sizes.append(len(stretch.keys))
                yield stretch

        return real(pieces(), *args, **kwargs)

    monkeypatch.setattr(room, "nearest", spying)
    report = _search(out, "text 12345", k=20)
    assert max(sizes) <= 4096
    assert sum(sizes) == 20_000
    plan, _ = open_existing(JobSpec(to=str(out)))
    vector = embed_queries(plan, [Query(id="", text="text 12345")], Asking(), Silent())["embedding"][0]
    assert _ids(report) == [id for id, _ in _twin(out, vector, "float32", 20)]
    assert _ids(report)[0] == "r12345"


def test_searching_writes_nothing(embed):
    out = embed(["a", "b"], *FAKE)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    _search(out, "a")
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert job.status(str(out))["status"]
    assert pq.read_table(next(out.glob("*.parquet"))).num_rows == 2
