"""`embedctl bench` and the parts of `scripts/bench` that need no peer."""

from __future__ import annotations

import json

import pytest

from embedctl.bench import run, user


@pytest.mark.slow
def test_a_corpus_is_measured_and_settings_advised(embedctl, tmp_path):
    rows = [json.dumps({"text": f"row {i} " + "word " * (i % 40)}) for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    done = embedctl("bench", "rows.jsonl", "--rounds", "1", "--json", "--quiet", "--threads", "1", timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["corpus"]["texts"] == 40
    assert told["contenders"][0]["name"] == "embedctl"
    assert all(c["status"] == "ok" and not c["wrong"] for c in told["contenders"])
    assert told["advice"]["batch_tokens"] in user.SIZES
    assert told["roofline"]["reached"]["products"] > 0
    assert set(user.brief(told)) == {"machine", "model", "corpus", "speed", "reached", "advice"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-"], "bench cannot read standard input"),
        (["rows.jsonl", "--model", "fake"], "the fake model has no speed to measure"),
        (["empty.jsonl"], "no row has a text to embed"),
    ],
)
def test_refusals(embedctl, tmp_path, args, words):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n', encoding="utf-8")
    done = embedctl("bench", *args)
    assert words in done.stderr
    assert done.returncode in (2, 4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--peers", "tei"], "--peers: 'tei' is nobody's name"),
        (["--corpora", "x"], "--corpora: 'x' is not one of skewed, short, long, worst"),
        (["--rounds", "0"], "--rounds: 0 must be at least 1"),
        (["--models", "x", "--peers", "embedctl"], "--models: 'x' is not one of all-MiniLM-L6-v2, bge-small-shape"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_installed(args, words, tmp_path, capsys):
    assert run.main([*args, "--out", str(tmp_path / "out"), "--environments", str(tmp_path / "envs")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "envs").exists()
