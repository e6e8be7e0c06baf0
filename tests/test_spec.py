"""A spec is validated once: every value in its type and range, every refusal with its place and a way out."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedctl.errors import UsageError
from embedctl.settings import resolve
from embedctl.spec import JobSpec, flag
from embedctl.units import parse_share, parse_size


def test_flag_beats_variable_beats_file_beats_default(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text('threads = 1\nbatch-tokens = 1\ndim = 1\nchunk = "tokens:9"\n', encoding="utf-8")
    environ = {"EMBEDCTL_THREADS": "2", "EMBEDCTL_BATCH_TOKENS": "2", "EMBEDCTL_UNKNOWN": "x", "THREADS": "9"}
    spec = resolve({"threads": 3, "dim": None}, config=config, environ=environ)
    assert (spec.threads, spec.batch_tokens, spec.dim, spec.chunk, spec.workers) == (3, 2, 1, "tokens:9", None)


def test_nothing_asked_is_the_default() -> None:
    assert resolve({}, environ={}) == JobSpec()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("8GiB", 8 << 30), ("500MB", 500_000_000), ("1.5k", 1500), (" 2 Ki ", 2048), ("1tb", 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert resolve({"window_bytes": text}, environ={}).window_bytes == size


@settings(deadline=None)
@given(st.integers(0, 1 << 50))
def test_a_number_of_bytes_is_itself(size: int) -> None:
    assert parse_size(str(size)) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 XB", "1e3", "8GiBi"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size like 8GiB"):
        parse_size(text)
    with pytest.raises(UsageError, match=re.escape(f"--memory: {text!r} is not a size like 8GiB")):
        resolve({"memory": text}, environ={})


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("100%", 1.0), ("0.5%", 0.005)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)
    assert resolve({"sample": text}, environ={}).sample == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("few", "--sample: 'few' is not a share like 1% or 0.01"),
        ("0", "--sample: 0 is out of range"),
        ("101%", "--sample: 1.01 is out of range"),
        ("nan", "--sample: nan is out of range"),
        ("-1%", "--sample: -0.01 is out of range"),
    ],
)
def test_what_is_no_share(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({"sample": text}, environ={})
    assert str(caught.value) == message


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("on", True), ("false", False), ("0", False)])
def test_switches_from_the_environment(text: str, value: bool) -> None:
    assert resolve({}, environ={"EMBEDCTL_COMPILE": text}).compile is value


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("threads = true", "threads: True is not a whole number"),
        ("threads = 1.5", "threads: 1.5 is not a whole number"),
        ("keep = 5", "keep: 5 is not a list"),
        ("offline = 'maybe'", "offline: 'maybe' is not yes or no"),
        ("where = false", "where: False is not text"),
        (f"memory = '{'9' * 400}'", "is not a size like 8GiB"),
    ],
)
def test_a_wrong_type_in_the_file_names_its_key(tmp_path: Path, toml: str, message: str) -> None:
    config = tmp_path / "job.toml"
    config.write_text(toml, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        resolve({}, config=config, environ={})
    assert str(caught.value).startswith(f"{config}: ")
    assert str(caught.value).endswith(message)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    with pytest.raises(UsageError, match=r"^--config: cannot read .*job\.toml: No such file or directory$"):
        resolve({}, config=config)
    config.write_bytes(b"a = \xff")
    with pytest.raises(UsageError, match="is not valid TOML"):
        resolve({}, config=config)
    config.write_text("a = = 1", encoding="utf-8")
    with pytest.raises(UsageError, match="is not valid TOML"):
        resolve({}, config=config)


def test_lists_are_cut_at_commas_where_that_is_meant() -> None:
    assert resolve({"keep": ("a,b", "c")}, environ={}).keep == ("a", "b", "c")
    assert resolve({"inputs": ("a,b.jsonl",)}, environ={}).inputs == ("a,b.jsonl",)
    assert resolve({}, environ={"EMBEDCTL_KEEP": "a,,b"}).keep == ("a", "b")


@pytest.mark.parametrize("name", [f.name for f in fields(JobSpec) if f.metadata["choices"]])
def test_a_word_that_is_no_choice_gets_the_nearest(name: str) -> None:
    choices = next(f.metadata["choices"] for f in fields(JobSpec) if f.name == name)
    with pytest.raises(UsageError) as caught:
        JobSpec(**{name: choices[0] + "x"})
    assert str(caught.value) == f"{flag(name)}: {choices[0] + 'x'!r} is not one of {', '.join(choices)}"
    assert caught.value.hint == f"{flag(name)} {choices[0]}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limit": 0}, "--limit: 0 is too small; at least 1"),
        ({"pool_factor": float("nan")}, "--pool-factor: nan is too small; at least 1"),
        ({"threads": 0}, "--threads: 0 is too small; at least 1"),
        ({"memory": 1000}, "--memory: 1000 is too small; at least 1048576"),
        ({"window_rows": 0}, "--window-rows: 0 is too small; at least 1"),
        ({"max_points_per_s": 0}, "--max-points-per-s: 0 is too small; at least 1"),
        ({"shard_index": 2, "num_shards": 2}, "--shard-index: 2 must be below --num-shards 2"),
        ({"shard_index": -1}, "--shard-index: -1 is too small; at least 0"),
        ({"max_dead": "some"}, "--max-dead: 'some' is neither a count nor a share"),
        ({"max_dead": "-1"}, "--max-dead: '-1' is neither a count nor a share"),
        ({"chunk": "tokens:0"}, "--chunk: 'tokens:0' is not KIND:TOKENS"),
        ({"chunk": "words:9"}, "--chunk: 'words:9' is not KIND:TOKENS"),
        ({"overlap": 3}, "--overlap and --chunk-pool need --chunk"),
        ({"chunk_pool": "mean"}, "--overlap and --chunk-pool need --chunk"),
        ({"chunk": "tokens:9", "overlap": 9}, "--overlap: 9 must be smaller than the chunk of 9 tokens"),
        ({"text_column": "a", "text_template": "{a}"}, "--text-column and --text-template: give one of them"),
        ({"prompt": "a", "prompt_name": "b"}, "--prompt and --prompt-name: give one of them"),
        ({"output": ("spares",)}, "--output: 'spares' is not one of dense, sparse, multivector"),
        ({"output": ("dense", "dense")}, "--output: the same kind is asked for twice"),
        ({"model": ("a", "b")}, "--model: several models need a name each, all different"),
        ({"model": ("x=a", "x=b")}, "--model: several models need a name each, all different"),
        (
            {"model": ("x=a", "y=b"), "dim": 8},
            "--dim: cannot be given for several models; each has its own folder's setting",
        ),
    ],
)
def test_what_no_job_can_be(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        JobSpec(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "limit"), [(None, (None, None)), ("0", (0, None)), ("12", (12, None)), ("2.5%", (None, 0.025))]
)
def test_the_limit_of_dead_rows(text: str | None, limit: tuple[int | None, float | None]) -> None:
    assert JobSpec(max_dead=text).dead_limit() == limit


def test_the_chunk_rule() -> None:
    assert JobSpec().chunk_rule is None
    assert JobSpec(chunk="semantic:128", overlap=127).chunk_rule == ("semantic", 128)


def test_every_field_has_one_kind() -> None:
    kinds = ("rows", "recipe", "tuning", "policy", "run")
    shares = [JobSpec().of_kind(kind).keys() for kind in kinds]  # type: ignore[arg-type]
    assert sorted(name for share in shares for name in share) == sorted(f.name for f in fields(JobSpec))
