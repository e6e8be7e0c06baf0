"""rerank and classify as commands: columns, ranks, dead letters, books, retry, verify, errors word for word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import Told
from tests.rerank.conftest import ROWS, pair_rows, rows_of, run_rows


def test_pairs_beside_kept_columns(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, shown, _ = told("rerank", pairs_file, "--query-column", "q", "--text-column", "passage", "--keep", "lang",
                          "--model", "fake", "--to", out, "--json", "--quiet")  # fmt: skip
    summary = json.loads(shown)
    assert code == summary["exit_code"] == 3
    assert summary["rows"] == {
        "read": ROWS, "written": ROWS - 3, "unchanged": 0, "skipped": 0, "duplicates": 1, "dead": 2,
    }  # fmt: skip
    rows = rows_of(out)
    assert list(rows[0]) == ["id", "lang", "score"]
    assert pq.read_schema(next(out.glob("*.parquet"))).field("score").type == pa.float32()
    assert [r["id"] for r in rows] == [r["id"] for i, r in enumerate(pair_rows()) if i not in (7, 11, 200)]
    assert len({r["score"] for r in rows}) > ROWS // 2


def test_the_column_at_fault_is_in_the_letter(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told("rerank", pairs_file, "--query-column", "q", "--text-column", "passage", "--model", "fake", "--to", out)
    _, shown, _ = told("status", out, "--dead", "--json")
    reasons = {letter["id"]: letter["reason"] for letter in json.loads(shown)["dead_letters"]}
    assert reasons == {"r7": "passage: text is null", "r11": "q: text is only white space"}


def test_candidates_are_ranked_and_cut(told: Told, runs_file: Path, tmp_path: Path) -> None:
    every, two = tmp_path / "every", tmp_path / "two"
    common = ["rerank", runs_file, "--candidates-column", "hits", "--model", "fake", "--window-rows", "50", "-q"]
    assert told(*common, "--to", every)[0] == 3
    assert told(*common, "--to", two, "--top-k", "2")[0] == 3
    all_rows, best = rows_of(every), rows_of(two)
    corpus = {r["id"]: r["hits"] for i, r in enumerate(run_rows()) if i not in (3, 4, 9, 12)}
    by_id: dict[str, list[dict[str, object]]] = {}
    for found in all_rows:
        by_id.setdefault(found["id"], []).append(found)
    assert list(by_id) == list(corpus)
    for id_, hits in corpus.items():
        ranked = by_id[id_]
        assert [r["rank"] for r in ranked] == list(range(1, len(hits) + 1))
        assert sorted(r["candidate"] for r in ranked) == list(range(len(hits)))
        assert all(r["candidate_id"] == f"d{id_[1:]}-{r['candidate']}" for r in ranked)
        scores = [r["score"] for r in ranked]
        assert scores == sorted(scores, reverse=True)
    assert best == [r for r in all_rows if r["rank"] <= 2]
    _, shown, _ = told("status", two, "--json")
    assert json.loads(shown)["units"] == len(best)


def test_equal_scores_keep_the_order_of_the_list(told: Told, tmp_path: Path) -> None:
    hits = ["the cat", "a fox", "the cat", "a fox"]
    (tmp_path / "in.jsonl").write_text(json.dumps({"query": "what", "hits": hits}) + "\n")
    told("rerank", tmp_path / "in.jsonl", "--candidates-column", "hits", "--model", "fake", "--to", tmp_path / "out")
    order = [(r["candidate"], r["score"]) for r in rows_of(tmp_path / "out")]
    assert [c for c, _ in order] in ([0, 2, 1, 3], [1, 3, 0, 2])
    assert rows_of(tmp_path / "out")[0]["candidate_id"] is None  # JSON lists might have had some


def test_a_null_in_a_list_of_texts_kills_its_row_only(told: Told, tmp_path: Path) -> None:
    rows = [{"query": "what", "hits": ["a", None]}, {"query": "what", "hits": ["a", "b"]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    code, _, _ = told("rerank", tmp_path / "in.jsonl", "--candidates-column", "hits", "--model", "fake",
                      "--to", tmp_path / "out")  # fmt: skip
    assert code == 3
    second = f"in.jsonl:{len(json.dumps(rows[0])) + 1}"
    assert {(r["id"], r["candidate"]) for r in rows_of(tmp_path / "out")} == {(second, 0), (second, 1)}


def test_duplicates_lose_all_their_candidates(told: Told, tmp_path: Path) -> None:
    rows = [{"id": f"x{i % 90}", "query": f"what {i}", "hits": ["a cat", "a fox", f"{i}"]} for i in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    code, shown, _ = told("rerank", tmp_path / "in.parquet", "--candidates-column", "hits", "--model", "fake",
                          "--to", tmp_path / "out", "--window-rows", "40", "--json")  # fmt: skip
    assert code == 0
    assert json.loads(shown)["rows"]["duplicates"] == 10
    assert [r["id"] for r in rows_of(tmp_path / "out")] == [f"x{i}" for i in range(90) for _ in range(3)]


def test_templates_make_both_texts(told: Told, tmp_path: Path) -> None:
    rows = [{"title": "cat", "q": i, "name": "fox", "body": f"ran {i}"} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    plain = [{"q": f"cat: {i}", "passage": f"fox\nran {i}"} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(plain), tmp_path / "plain.parquet")
    told("rerank", tmp_path / "in.parquet", "--query-template", "{title}: {q}", "--text-template", "{name}\\n{body}",
         "--model", "fake", "--to", tmp_path / "a")  # fmt: skip
    told("rerank", tmp_path / "plain.parquet", "--query-column", "q", "--model", "fake", "--to", tmp_path / "b")
    assert [r["score"] for r in rows_of(tmp_path / "a")] == [r["score"] for r in rows_of(tmp_path / "b")]


def test_labels_and_scores(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, _ = told("classify", pairs_file, "--text-column", "passage", "--model", "fake:dim=3", "--to", out)
    assert code == 3
    rows = rows_of(out)
    assert list(rows[0]) == ["id", "label", "score", "scores"]
    for row in rows:
        best = int(np.argmax(row["scores"]))
        assert (row["label"], row["score"]) == (f"LABEL_{best}", row["scores"][best])
    card = json.loads(pq.read_metadata(next(out.glob("*.parquet"))).metadata[b"embedctl.model"])
    assert (card["labels"], card["activation"]) == (["LABEL_0", "LABEL_1", "LABEL_2"], "softmax")


def test_a_named_model_names_its_columns(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told("classify", pairs_file, "--text-column", "passage", "--model", "mood=fake:dim=2", "--model", "hot=fake",
         "--to", out)  # fmt: skip
    assert list(rows_of(out)[0]) == ["id", "mood_label", "mood_score", "mood_scores", "hot_score"]


def test_scores_are_verified_against_the_source(told: Told, runs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told("rerank", runs_file, "--candidates-column", "hits", "--top-k", "3", "--model", "fake", "--to", out)
    code, shown, _ = told("verify", out, "--json")
    checks = {c["name"]: c["ok"] for c in json.loads(shown)["checks"]}
    assert code == 0
    assert checks["sample"] is True


def test_a_score_changed_by_hand_is_found(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told("rerank", pairs_file, "--query-column", "q", "--model", "fake", "--to", out)
    (part,) = out.glob("*.parquet")
    table = pq.read_table(part)
    wrong = pa.array(table.column("score").to_numpy() * np.float32(0.5))
    pq.write_table(table.set_column(table.schema.get_field_index("score"), "score", wrong), part)
    assert told("verify", out, "--sample", "200")[0] == 11


def test_mended_rows_are_retried(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    arguments = ["--query-column", "q", "--text-column", "passage", "--model", "fake"]
    told("rerank", pairs_file, *arguments, "--to", out)
    rows = pair_rows()
    rows[7]["passage"], rows[11]["q"] = "the cat sat", "what"
    pq.write_table(pa.Table.from_pylist(rows), pairs_file, row_group_size=60)
    code, shown, _ = told("retry", out, "--json")
    assert code == 0
    assert json.loads(shown)["rows"]["dead"] == 0
    told("rerank", pairs_file, *arguments, "--to", whole)
    assert {r["id"]: r["score"] for r in rows_of(out)} == {r["id"]: r["score"] for r in rows_of(whole)}


def test_long_pairs_are_cut_and_counted(told: Told, tmp_path: Path) -> None:
    rows = [{"query": "the cat", "passage": "a fox " * n} for n in (2, 200, 3, 300)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    common = ["rerank", tmp_path / "in.parquet", "--model", "fake", "--max-length", "30"]
    _, shown, _ = told(*common, "--to", tmp_path / "out", "--truncated", "--token-count", "--json")
    assert json.loads(shown)["truncated"] == 2
    assert [(r["token_count"], r["truncated"]) for r in rows_of(tmp_path / "out")] == [
        (9, False), (30, True), (11, False), (30, True),
    ]  # fmt: skip
    code, shown, _ = told(*common, "--to", tmp_path / "dead", "--on-overlong", "dead-letter", "--json")
    assert (code, json.loads(shown)["rows"]["dead"]) == (3, 2)


def test_no_rows_still_tell_the_schema(told: Told, tmp_path: Path) -> None:
    schema = pa.schema(
        [("query", pa.string()), ("hits", pa.list_(pa.struct([("id", pa.int64()), ("text", pa.string())])))]
    )
    pq.write_table(schema.empty_table(), tmp_path / "in.parquet")
    out = tmp_path / "out"
    assert (
        told("rerank", tmp_path / "in.parquet", "--candidates-column", "hits", "--model", "fake", "--to", out)[0] == 0
    )
    names = pq.read_schema(next(out.glob("*.parquet"))).names
    assert names == ["id", "chunk", "char_start", "char_end", "rank", "candidate", "candidate_id", "score"]


def test_the_second_run_does_nothing(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    arguments = ["rerank", pairs_file, "--query-column", "q", "--model", "fake", "--to", tmp_path / "out", "--json"]
    told(*arguments)
    code, shown, _ = told(*arguments)
    assert (code, json.loads(shown)["status"]) == (0, "already done")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["rerank", "IN"], "no model given: embedctl rerank has no default one", "embedctl rerank IN --model MODEL"),
        (["rerank", "IN", "--model", "fake"],
         "--query-column: no column 'query'; the corpus has id, q, passage, lang", ""),
        (["rerank", "IN", "--model", "fake", "--query-column", "q", "--query-template", "{q}"],
         "--query-column and --query-template: give one of them", ""),
        (["classify", "IN", "--model", "fake", "--text-column", "passage", "--keep", "score"],
         "--keep: no column 'score'", ""),
        (["rerank", "IN", "--model", "fake", "--query-column", "q", "--candidates-column", "passage"],
         "--candidates-column: column 'passage' is string, not a list", "--text-column passage takes one passage a"),
        (["rerank", "IN", "--model", "fake", "--query-column", "q", "--to", "qdrant://localhost/x"],
         "--to: qdrant://localhost/x is a vector store; scores go into a folder", "--to FOLDER"),
        (["rerank", "IN", "--model", "fake", "--query-column", "q", "--on-overlong", "chunk"],
         "--on-overlong: a text that is scored cannot be cut into chunks", "--on-overlong truncate"),
        (["classify", "IN", "--model", "fake", "--threshold", "3"],
         "--threshold: 3 is out of range; scores are between 0 and 1", ""),
        (["rerank", "IN", "--model", "fake", "--query-column", "q", "--top-k", "3"],
         "--top-k: it is for rows of a query with a list of candidates", "--candidates-column NAME"),
        (["rerank", "IN", "--model", "all-MiniLM-L6-v2", "--query-column", "q"],
         "an embedder, whose modules give no scores", "embedctl embed takes embedders"),
    ],
)  # fmt: skip
def test_errors_say_what_to_type(told: Told, pairs_file: Path, arguments: list[str], message: str, hint: str) -> None:
    code, out, error = told(*[str(pairs_file) if a == "IN" else a for a in arguments])
    assert (code, out) == (2, "")
    assert message in error
    assert hint.replace("IN", str(pairs_file)) in error


def test_a_gold_label_can_stand_beside_the_models_own(told: Told, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": ["x", "y"]}), tmp_path / "in.parquet")
    common = ["classify", tmp_path / "in.parquet", "--keep", "label", "--to", tmp_path / "out"]
    code, _, error = told(*common, "--model", "fake:dim=2")
    assert code == 2
    assert "--keep: 'label' is a column that the scores use themselves" in error
    assert told(*common, "--model", "found=fake:dim=2")[0] == 0
    assert [r["label"] for r in rows_of(tmp_path / "out")] == ["x", "y"]


def test_several_scores_cannot_rank_candidates(told: Told, runs_file: Path) -> None:
    code, _, error = told("rerank", runs_file, "--candidates-column", "hits", "--model", "fake:dim=3")
    assert code == 2
    assert "fake:dim=3 gives 3 scores a pair" in error


def test_scores_cannot_be_searched(told: Told, pairs_file: Path, tmp_path: Path) -> None:
    told("rerank", pairs_file, "--query-column", "q", "--model", "fake", "--to", tmp_path / "out")
    code, _, error = told("search", tmp_path / "out", "cat")
    assert code == 2
    assert "it holds scores of texts, no vectors to search" in error


def test_each_option_of_its_own_is_in_the_help(told: Told) -> None:
    from embedctl.cli.score_options import classify_options, rerank_options
    from embedctl.spec import flag

    for command, options in (("rerank", rerank_options()), ("classify", classify_options())):
        _, shown, _ = told(command, "--help")
        assert {flag(name) for name in options} <= set(shown.split())
        assert "sigmoid" in shown
