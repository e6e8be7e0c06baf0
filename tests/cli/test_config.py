"""Flag beats variable beats file beats default, through the command's own gathering of options."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from embedctl.cli import options
from embedctl.errors import UsageError


@pytest.fixture
def spec_for(tmp_path, monkeypatch):
    """`spec_for(args, env={}, toml="")`: the JobSpec that `embed ARGS` would run."""

    def run(*args: str, env: dict[str, str] | None = None, toml: str | None = None):
        seen = []
        app = typer.Typer()

        @app.command()
        @options.job_options()
        def command(*, flags, inputs: options.Inputs = None, config: options.Config = None) -> int:
            seen.append(options.spec_of(flags, inputs, config))
            return 0

        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        if toml is not None:
            (tmp_path / "job.toml").write_text(toml, encoding="utf-8")
            args = (*args, "--config", str(tmp_path / "job.toml"))
        result = CliRunner().invoke(app, ["x.parquet", *args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return seen[0]

    return run


def test_defaults(spec_for):
    spec = spec_for()
    assert spec == options.resolve({"inputs": ("x.parquet",)})


def test_file_then_variable_then_flag(spec_for):
    toml = 'batch-tokens = 100\ndim = 64\nmodel = "file"\nkeep = ["a", "b"]'
    env = {"EMBEDCTL_BATCH_TOKENS": "200", "EMBEDCTL_MODEL": "variable"}
    spec = spec_for("--model", "flag", toml=toml, env=env)
    assert (spec.dim, spec.batch_tokens, spec.model, spec.keep) == (64, 200, ("flag",), ("a", "b"))


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--keep", "a,b", "--keep", "c"], "keep", ("a", "b", "c")),
        (["--sample", "1%"], "sample", 0.01),
        (["--memory", "8GiB"], "memory", 8 << 30),
        (["--compile"], "compile", True),
        (["--no-compile"], "compile", False),
        (["--token-count"], "token_count", True),
        (["-o", "out", "-m", "m"], "to", "out"),
        (["--max-dead", "0.1%"], "max_dead", "0.1%"),
        (["--output", "dense"], "output", ("dense",)),
        (["--text-template", "{a}\\n{b}"], "text_template", "{a}\\n{b}"),
    ],
)
def test_values_arrive_in_their_types(spec_for, args, field, value):
    assert getattr(spec_for(*args), field) == value


def test_a_flag_not_given_leaves_the_variable_alone(spec_for):
    assert spec_for(env={"EMBEDCTL_TOKEN_COUNT": "yes"}).token_count is True


def test_unknown_key_suggests_the_nearest(spec_for, tmp_path):
    with pytest.raises(UsageError) as caught:
        spec_for(toml="batch_token = 5")
    assert str(caught.value) == f"{tmp_path / 'job.toml'}: unknown key 'batch_token'"
    assert caught.value.hint == "did you mean 'batch_tokens'?"


def test_bad_values_name_their_place(spec_for, tmp_path):
    with pytest.raises(UsageError, match=r"job.toml: threads: 'two' is not a whole number"):
        spec_for(toml='threads = "two"')
    with pytest.raises(UsageError, match=r"^EMBEDCTL_THREADS: 'two' is not a whole number"):
        spec_for(env={"EMBEDCTL_THREADS": "two"})


def test_inputs_from_the_file(embedctl, tmp_path: Path):
    (tmp_path / "job.toml").write_text('inputs = ["nowhere.parquet"]', encoding="utf-8")
    done = embedctl("embed", "--config", "job.toml")
    assert done.returncode == 4, done.stderr
    assert "nowhere.parquet" in done.stderr


def test_overrides_hold_only_what_was_said(monkeypatch):
    monkeypatch.setenv("EMBEDCTL_THREADS", "3")
    flags = {"threads": None, "batch_tokens": "64", "device": None}
    assert options.overrides(flags) == {"threads": 3, "batch_tokens": 64}
