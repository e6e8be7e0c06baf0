"""Job files: several jobs, defaults, variables, and every mistake told before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedctl.errors import UsageError
from embedctl.job.commands import COMMANDS
from embedctl.job.jobfile import chosen, read


@pytest.fixture
def jobs(tmp_path: Path):
    """`jobs(toml, environ)`: the jobs of a file of this content."""

    def of(toml: str, environ: dict[str, str] | None = None, flags: dict | None = None, name: str = "night.toml"):
        path = tmp_path / name
        path.write_text(toml, encoding="utf-8")
        return read([path], flags or {}, COMMANDS, environ or {})

    return of


def test_tables_and_defaults_in_order(jobs):
    first, second = jobs(
        '[defaults]\nmodel = "fake"\nbatch-tokens = 64\n'
        '[job.b]\ninputs = ["b.parquet"]\nbatch_tokens = 8\n[job.a]\ninputs = "a.jsonl"\ncommand = "embed"\n'
    )
    assert [(j.name, j.command, j.spec.inputs) for j in (first, second)] == [
        ("b", "embed", ("b.parquet",)),
        ("a", "embed", ("a.jsonl",)),
    ]
    assert (first.spec.batch_tokens, second.spec.batch_tokens) == (8, 64)
    assert first.spec.model == second.spec.model == ("fake",)


def test_a_list_of_jobs(jobs):
    found = jobs('[[job]]\nname = "x"\ninputs = ["x"]\n[[job]]\nname = "y"\ninputs = ["y"]\n')
    assert [j.name for j in found] == ["x", "y"]


def test_a_flat_file_is_one_job_named_after_it(jobs, tmp_path):
    (job,) = jobs('inputs = ["x.parquet"]\ntext-column = "body"\n')
    assert (job.name, job.spec.text_column, job.folder) == ("night", "body", tmp_path)


def test_flag_beats_variable_beats_job_beats_defaults(jobs):
    defaults = "[defaults]\nthreads = 1\ndim = 1\nlimit = 1\nworkers = 1\n"
    toml = f'{defaults}[job.a]\ninputs = "x"\nthreads = 2\ndim = 2\nlimit = 2\n'
    (job,) = jobs(toml, {"EMBEDCTL_DIM": "3", "EMBEDCTL_LIMIT": "3"}, {"limit": 4})
    assert (job.spec.workers, job.spec.threads, job.spec.dim, job.spec.limit) == (1, 2, 3, 4)


def test_jobs_that_give_scores(jobs):
    (job,) = jobs(
        '[job.r]\ncommand = "rerank"\ninputs = "pairs.parquet"\nmodel = "m"\ncandidates-column = "c"\ntop-k = 3\n'
    )
    assert (job.spec.task, job.spec.query_column, job.spec.top_k, job.spec.to) == (
        "rerank", "query", 3, "pairs.scores",
    )  # fmt: skip


def test_variables(jobs):
    toml = 'inputs = ["${DATA}/x", "${NONE:-y}", "$${NOT}", "a$b", "${EMPTY:-}z"]\nthreads = "${N:-3}"\n'
    (job,) = jobs(toml, {"DATA": "/data", "EMPTY": ""})
    assert job.spec.inputs == ("/data/x", "y", "${NOT}", "a$b", "z")
    assert job.spec.threads == 3


BAD = [
    ('[job.a]\ninputs = "x"\ntreads = 1', "{f}: job a: unknown key 'treads'", "did you mean 'threads'?"),
    ('[job.a]\ninputs = "x"\ncomand = "embed"', "{f}: job a: unknown key 'comand'", "did you mean 'command'?"),
    ('[job.a]\ninputs = "x"\ncommand = "embd"', "{f}: job a: command 'embd' is not one of", 'command = "embed"'),
    ('[job.a]\ninputs = "x"\ncommand = ["embed"]', "{f}: job a: command ['embed'] is not one of", None),
    ('[job.a]\ninputs = "x"\nthreads = "two"', "{f}: job a: threads: 'two' is not a whole number", None),
    ('[job.a]\ninputs = "x"\nthreads = 0', "{f}: job a: --threads: 0 is too small; at least 1", None),
    ('[job.a]\ninputs = "${DATA}"', "{f}: job a: inputs: the variable DATA is not set", "export DATA=..."),
    ('[job.a]\ninputs = "${DATA"', "{f}: job a: inputs: '${DATA' holds a broken reference", "${NAME}"),
    ("[job.a]\nmodel = 'fake'", "{f}: job a: no input given", 'inputs = ["corpus.parquet"]'),
    ("[jobs.a]\ninputs = 'x'", "{f}: job night: unknown key 'jobs'", None),
    ("[job.a]\ninputs = 'x'\n[default]\nmodel = 'm'", "{f}: unknown key 'default' beside", "did you mean 'defaults'?"),
    ("model = 'fake'\n[job.a]\ninputs = 'x'", "{f}: unknown key 'model' beside", "put it into [defaults]"),
    ("[defaults]\nmodel = 'fake'", "{f}: no job in it", "[job.docs]"),
    ("[[job]]\ninputs = 'x'", "{f}: a [[job]] without a name", 'name = "docs"'),
    ("[[job]]\nname='a'\ninputs='x'\n[[job]]\nname='a'\ninputs='x'", "{f}: two jobs are named 'a'", "of its own"),
    ("[job.'a b']\ninputs = 'x'", "{f}: 'a b' is no name for a job", None),
    ("[job.a]\ninputs = 'x'\nname = 'b'", "{f}: job.a: it has a name already", None),
    ("job = 3", "{f}: no job in it", None),
    ("job = [3]", "{f}: no job in it", None),
    ("[job]\na = 3", "{f}: no job in it", None),
    ("[job.a]\ninputs = 'x'\n[job.a.extra]\nk = 1", "{f}: job a: unknown key 'extra'", None),
    ("[job.a]\ninputs = 'x'\n[job.a.where]\nk = 1", "{f}: job a: where: {'k': 1} is not text", None),
    ("[job.a]\ninputs = 'x'\nnotify-url = 'ftp://x'", "{f}: job a: --notify-url: not an http://", None),
    ("[job.a]\ninputs = 'x'\ntask = 'rerank'", "{f}: job a: unknown key 'task'", "command says what the job does"),
    ("[job.a]\ninputs = 'x'\ntop-k = 3", "{f}: job a: top-k: embed does not take it", 'command = "rerank"'),
    ("[job.a]\ninputs = 'x'\ncommand = 'rerank'", "{f}: job a: no model given", 'model = "./reranker"'),
    ("a = = 1", "{f}: not valid TOML", None),
]  # fmt: skip


@pytest.mark.parametrize(("toml", "message", "hint"), BAD, ids=[b[0].replace("\n", " ") for b in BAD])
def test_mistakes_are_named(jobs, tmp_path, toml, message, hint):
    with pytest.raises(UsageError) as caught:
        jobs(toml)
    assert str(caught.value).startswith(message.replace("{f}", str(tmp_path / "night.toml")))
    assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "toml", ['threads = "${PIN}"', 'chunk = "${PIN}"', 'sample = "${PIN}"', 'notify-url = "${PIN}"']
)
def test_what_a_variable_stands_for_is_never_in_an_error(jobs, toml):
    with pytest.raises(UsageError) as caught:
        jobs(f'inputs = "x"\n{toml}', {"PIN": "hunter2-hunter2"})
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_secrets_are_hidden_in_what_is_said_later_and_plain_values_are_not(jobs):
    (job,) = jobs('inputs = "${DATA}"\nto = "qdrant://h/${API_KEY}"', {"DATA": "/data", "API_KEY": "hunter2"})
    assert job.spec.to == "qdrant://h/hunter2"
    assert job.hide("cannot reach qdrant://h/hunter2 for /data") == "cannot reach qdrant://h/${API_KEY} for /data"


def test_files_share_one_list_of_names(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('[job.a]\ninputs = "x"', encoding="utf-8")
    two.write_text('[job.a]\ninputs = "x"', encoding="utf-8")
    with pytest.raises(UsageError, match=r"one\.toml and .*two\.toml: two jobs are named 'a'"):
        read([one, two], {}, COMMANDS, {})


def test_a_missing_file_names_the_command_that_writes_one(tmp_path):
    with pytest.raises(UsageError, match=r"no\.toml: cannot read the job file: No such file or directory") as caught:
        read([tmp_path / "no.toml"], {}, COMMANDS, {})
    assert caught.value.hint == "embedctl init corpus/ writes one"


def test_only(jobs):
    found = jobs("[job.docs]\ninputs = 'x'\n[job.tickets]\ninputs = 'x'")
    assert [j.name for j in chosen(found, ["tickets"])] == ["tickets"]
    assert [j.name for j in chosen(found, [])] == ["docs", "tickets"]
    with pytest.raises(UsageError, match="--only: no job named 'doc'; there are docs, tickets") as caught:
        chosen(found, ["doc"])
    assert caught.value.hint == "--only docs"
