"""`search` and `eval` as typed."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.cli.words import MOST_CELL, hit_cells, hit_columns


@pytest.fixture
def out(here, tmp_path):
    """Six rows of whole-number ids, a long text and a table's enemies among what is kept."""
    texts = ["one", "two", "three " * 40, "[bold]four[/bold]", "fi\x1b[31mve\n\tsix", "seven"]
    pq.write_table(pa.table({"id": [1000 * n for n in range(6)], "text": texts}), tmp_path / "c.parquet")
    assert here("embed", "c.parquet", "--model", "fake", "--keep", "text", "--to", "out", "-q").returncode == 0
    return tmp_path / "out"


def test_hits_are_aligned_lines_off_a_terminal(here, out):
    done = here("search", "out", "one", "-k", "6")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["rank", "score", "id", "text"]
    assert lines[1].split() == ["1", "1.0000", "0", "one"]
    assert len(lines) == 7
    place = lines[0].index("text")
    assert {line[place:] for line in lines[1:]} == {
        "one", "two", ("three " * 40)[: MOST_CELL - 1] + "…", "[bold]four[/bold]", "fi [31mve six", "seven",
    }  # fmt: skip
    assert "1000" in done.stdout
    assert "1,000" not in done.stdout
    assert "\x1b" not in done.stdout


def test_hits_are_a_table_on_a_terminal(out):
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "embedctl", "search", "out", "one", "-k", "6"]
    with subprocess.Popen(command, cwd=out.parent, stdout=follower, stderr=subprocess.PIPE, env=env) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert process.returncode == 0
    assert re.search("┃ rank ┃ +score ┃ id   ┃ text", text)
    assert "[bold]four[/bold]" in text
    assert "fi [31mve six" in text


def test_json_is_one_object(here, out):
    done = here("search", "out", "one", "-k", "2", "--json")
    report = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert list(report) == [
        "version", "destination", "model", "vector_type", "similarity", "finished", "vectors", "queries",
    ]  # fmt: skip
    (query,) = report["queries"]
    assert (query["text"], len(query["hits"])) == ("one", 2)
    assert query["hits"][0] == {
        "rank": 1, "score": 1.0, "id": 0, "chunk": None, "char_start": None, "char_end": None,
        "columns": {"text": "one"},
    }  # fmt: skip


def test_many_queries_each_have_their_table(here, out, tmp_path):
    rows = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    done = here("search", "out", "--queries", "q.jsonl", "-k", "1")
    lines = done.stdout.splitlines()
    assert lines[0] == "a: one"
    assert lines[2].split()[2:] == ["0", "one"]
    assert lines[3:5] == ["", "b: two"]
    assert lines[6].split()[2:] == ["1000", "two"]


def test_like_and_where(here, out):
    done = here("search", "out", "--like", "1000", "--where", "id > 3000")
    assert done.stdout.count("\n") == 3
    assert here("search", "out", "x", "--where", "id < 0").stdout == "nothing found\n"
    chunked = {"chunk": 2, "char_start": 5, "char_end": 9, "rank": 1, "score": 0.5, "id": "a", "columns": {"rank": 7}}
    columns = hit_columns([chunked])
    assert columns == ["rank", "score", "id", "chunk", "span", "rank"]
    assert hit_cells(chunked, columns) == ["1", "0.5000", "a", "2", "5-9", "7"]


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (("search", "out"), "give one of: a query, --like, --queries", "embedctl search out 'what to look for'"),
        (("search", "out", "x", "--like", "y"), "give one of: a query, --like, --queries", ""),
        (("search", "out", "x", "-k", "0"), "-k: '0' is not a whole number of at least 1", "-k 10"),
        (("search", "out", "x", "-k", "ten"), "-k: 'ten' is not a whole number of at least 1", "-k 10"),
        (("search", "out", "x", "--where", "lang = 'en'"), "--where: no column 'lang'; the corpus has id, text", ""),
        (("search", "out", "x", "--prompt", "a", "--prompt-name", "b"), "give one of them", ""),
        (("search", "out", "x", "--prompt-name", "query"), "fake has no prompt 'query'; it has: none", ""),
        (("search", "out", "x", "--model", "nothing"), "--model: nothing is neither a folder nor a known model", ""),
        (("search", "elsewhere", "x"), "elsewhere: no embeddings made by embedctl there", "embedctl embed"),
        (("search", "out", "--like", "1"), "--like: out has no row with the id '1'", "embedctl search out"),
        (("eval", "out", "--queries", "none", "--qrels", "none"), "--qrels: cannot read none: No such file", ""),
        (("eval", "out", "--queries", "q"), "missing option '--qrels'", "embedctl eval --help"),
        (("search", "out", ""), "query '1': text is empty", ""),
    ],
)
def test_errors_say_what_and_what_next(here, out, args, message, hint):
    done = here(*args)
    assert done.returncode in (2, 4)
    assert done.stdout == ""
    assert message in done.stderr
    assert hint in done.stderr
    assert done.stderr.startswith("error: ")


def test_eval_tells_the_measures(here, out, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n', encoding="utf-8")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\na\t0\t1\nb\t1000\t1\nb\t77\t1\n", "utf-8")
    done = here("eval", "out", "--queries", "q.jsonl", "--qrels", "qrels.tsv")
    assert done.returncode == 0
    assert "ndcg@10 0.8066, mrr@10 1, recall@100 0.75\n" in done.stdout
    assert done.stderr == "note: 1 of 3 judged documents are not in out: they count as not found\n"
    report = json.loads(here("eval", "out", "--queries", "q.jsonl", "--qrels", "qrels.tsv", "--json").stdout)
    assert report["measures"] == {"ndcg@10": pytest.approx(0.8066, abs=1e-4), "mrr@10": 1.0, "recall@100": 0.75}
    assert report["unknown"]["documents"] == 1


@pytest.mark.parametrize("command", ["search", "eval"])
def test_help_has_examples(embedctl, command):
    done = embedctl(command, "--help")
    assert done.returncode == 0
    assert f"\n embedctl {command} corpus" in done.stdout
    assert "--json" in done.stdout
