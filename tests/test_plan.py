"""The plan is obeyed by every resume: what contradicts it is named, what it is can be read back."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from embedctl import plan as plans
from embedctl.errors import PlanMismatch
from embedctl.outputs import OutputSpec
from embedctl.plan import Pass, Plan, check, contradictions, load, publish
from embedctl.recipe import job_of, recipe_of
from embedctl.records import Segment, Slice
from embedctl.spec import JobSpec, flag
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan

OTHER: dict[str, Any] = {
    "format": "csv", "keep": ("a", "b"), "where": "a > 1", "sample": 0.5, "chunk": "sentence:400",
    "model": ("other",), "output": ("sparse",), "device": "cuda:1", "memory": 1 << 30, "threshold": 0.25,
    "max_dead": "1%", "max_delete": "7", "time_limit": "4h", "notify_url": "http://x", "engine": "torch",
}  # fmt: skip
"""Another valid value of a field, where its type alone does not give one."""

NEEDED: dict[str, dict[str, Any]] = {
    "task": {}, "activation": {"task": "rerank"}, "query_column": {"task": "rerank"},
    "query_template": {"task": "rerank"}, "candidates_column": {"task": "rerank"},
    **{key: {"task": "rerank", "candidates_column": "c"} for key in ("candidate_text", "candidate_id", "top_k")},
    "shard_index": {"num_shards": 2}, "image_column": {}, "audio_column": {},
}  # fmt: skip
"""What a spec must hold for a field to mean anything; for all others, chunks."""

PLANNED = [f.name for f in fields(JobSpec) if f.metadata["kind"] in ("rows", "recipe", "tuning")]
TUNING = [f.name for f in fields(JobSpec) if f.metadata["kind"] == "tuning"]


def changed(name: str) -> Any:
    """Another valid value of any field."""
    field = next(f for f in fields(JobSpec) if f.name == name)
    choices = [c for c in field.metadata["choices"] if c != field.default]
    if name in OTHER or choices:
        return OTHER.get(name, choices[0] if choices else None)
    numbers = {"int": (field.default or 0) + 1, "float": 2.5} if "tuple" not in field.type else {}
    of_type: dict[str, Any] = {"tuple": ("x",), "bool": field.default is not True, **numbers, "str": "x"}
    return next(value for kind, value in of_type.items() if kind in field.type)


def base(_for: str = "", **changes: Any) -> JobSpec:
    return JobSpec(**{**NEEDED.get(_for, {"chunk": "tokens:400"}), **changes})


@pytest.mark.parametrize("name", PLANNED)
def test_a_field_asked_for_otherwise_is_named(name: str) -> None:
    found = contradictions(hand_plan(base(name)), base(name, **{name: changed(name)}))
    assert [line.partition(":")[0] for line in found] == ([] if name in ("device", "memory") else [flag(name)])


@pytest.mark.parametrize("name", PLANNED)
def test_a_field_left_out_on_a_resume(name: str) -> None:
    """What makes rows and numbers must be asked for again; tuning is remembered."""
    found = contradictions(hand_plan(base(name, **{name: changed(name)})), base(name))
    assert [line.partition(":")[0] for line in found] == ([] if name in TUNING else [flag(name)])


@pytest.mark.parametrize("name", PLANNED)
def test_a_field_asked_for_again_is_no_contradiction(name: str) -> None:
    spec = base(name, **{name: changed(name)})
    assert contradictions(hand_plan(spec), spec) == []


@pytest.mark.parametrize("name", ["threads", "batch_tokens", "compile"])
def test_tuning_may_be_asked_for_as_it_was_resolved(name: str) -> None:
    resolved = {name: changed(name)}
    assert contradictions(hand_plan(base(), resolved=resolved), base(**resolved)) == []
    assert len(contradictions(hand_plan(base(), resolved={name: 1234}), base(**resolved))) == 1


def test_what_was_found_may_be_asked_for_by_name() -> None:
    """The columns and settings that were left open are no contradiction when they are named on a later run."""
    plan = hand_plan(base(), id_column="id", resolved={"dtype": "bfloat16", "max_length": 256, "dim": 8, "prompt": ""})
    assert contradictions(plan, base(id_column="id", text_column="text", dtype="bfloat16", max_length=256, dim=8)) == []
    found = contradictions(plan, base(id_column="other", text_column="body", dtype="float32"))
    assert [line.partition(":")[0] for line in found] == ["--text-column", "--id-column", "--dtype"]


def test_policy_and_run_may_change() -> None:
    spec = base(on_error="fail", max_dead="1%", if_locked="wait", inputs=("x",), to="y", workers=3, num_shards=2)
    assert contradictions(hand_plan(base()), spec) == []


def test_every_contradiction_is_told_at_once() -> None:
    with pytest.raises(PlanMismatch) as caught:
        check(hand_plan(base(dim=8, keep=("a",))), base(where="x = 1", keep=("a", "b")), "out/")
    assert str(caught.value) == (
        "out/ was planned with other settings: "
        "--keep: asked for a,b, planned with a; --where: asked for 'x = 1', planned with nothing; "
        "--dim: asked for nothing, planned with 8"
    )
    assert caught.value.hint == "repeat the flags it was started with, or choose another destination with --to"


def test_a_plan_from_before_a_field_existed_can_be_resumed() -> None:
    plan = hand_plan(base())
    older = replace(plan, spec={k: v for k, v in plan.spec.items() if k not in ("allow_pickle", "threads", "overlap")})
    assert contradictions(older, base()) == []
    assert [line.partition(":")[0] for line in contradictions(older, base(overlap=3))] == ["--overlap"]


def full_plan() -> Plan:
    """Something in every field, names that JSON does not like among them."""
    plan = hand_plan(
        JobSpec(keep=("a",), sample=0.1, id_column="id", memory=1 << 40),
        schema=pa.schema(
            [pa.field("a", pa.list_(pa.int8())), pa.field("t", pa.timestamp("ns", "UTC"), nullable=False)]
        ),
        id_column="id",
        keep=["a"],
        uris=["dir/ä b.jsonl", "undecodable-\udcff.jsonl", 'quo"te\\.csv'],
        slices=[
            Slice(index=0, segments=(Segment(file=0, begin=0, end=2**53 + 1), Segment(file=1))),
            Slice(index=1, segments=(Segment(file=2, begin=7),), limit_rows=5),
            Slice(index=2, segments=()),
        ],
        resolved={"dtype": "bfloat16", "prompt": "q:\n", "max_length": None},
        outputs=[
            OutputSpec(name="a", kind="dense", dim=4, vector_type="int8"),
            OutputSpec(name="b", kind="sparse", dim=30522, similarity="dot", modifier="idf"),
            OutputSpec(name="c", kind="score", dim=2, labels=("no", "yes")),
        ],
    )
    return replace(
        plan,
        generation=3,
        int8_ranges={"embedding": [[-0.1, 1e-38], [0.5, 3.0]]},
        targets=((0, 1), (1, 0)),
        libraries={"numpy": "2"},
    )


@pytest.mark.parametrize("plan", [full_plan(), hand_plan()], ids=["full", "small"])
def test_a_plan_comes_back_from_json_as_it_was(plan: Plan, tmp_path: Path) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    storage = LocalStorage(tmp_path)
    assert publish(storage, plan)
    found = load(storage)
    assert found == plan
    assert found is not None
    assert found.schema.equals(plan.schema, check_metadata=True)
    assert JobSpec(**found.asked()).of_kind("rows", "recipe", "tuning") == plan.spec


def test_the_newest_plan_counts_and_none_is_replaced(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert load(storage) is None
    first, tenth = hand_plan(), replace(hand_plan(), generation=10)
    assert publish(storage, tenth)
    assert publish(storage, first)
    assert not publish(storage, replace(first, recipe="another"))
    assert load(storage) == tenth
    assert load(storage, 1) == first
    assert load(storage, 2) is None


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    newer = {**hand_plan().to_json(), "format": plans.FORMAT + 1, "embedctl": "99.0"}
    LocalStorage(tmp_path).put_if_absent(".embedctl/plan-0001.json", json.dumps(newer).encode())
    with pytest.raises(PlanMismatch) as caught:
        load(LocalStorage(tmp_path))
    assert str(caught.value) == (
        f"the plan has format {plans.FORMAT + 1}, this embedctl reads {plans.FORMAT} (it was made by 99.0)"
    )
    assert caught.value.hint == "pip install --upgrade embedctl"


def test_a_plan_of_the_first_format_is_read(tmp_path: Path) -> None:
    """Written by 0.1: one model, one dense output, ranges of it."""
    plan = hand_plan(JobSpec(vector_type="int8"))
    old = {k: v for k, v in plan.to_json().items() if k != "passes"}
    card = {**plan.model, "dim": 4}
    ranges = [[-1.0] * 4, [1.0] * 4]
    old |= {"format": 1, "model": card, "resolved": dict(plan.resolved), "int8_ranges": ranges}
    old["spec"] = {**plan.spec, "model": "all-MiniLM-L6-v2", "output": ["dense"]}
    LocalStorage(tmp_path).put_if_absent(".embedctl/plan-0001.json", json.dumps(old).encode())
    found = load(LocalStorage(tmp_path))
    assert found is not None
    assert found.outputs == (OutputSpec(name="embedding", kind="dense", dim=4, vector_type="int8"),)
    assert (found.model, found.resolved, found.int8_ranges) == (card, plan.resolved, {"embedding": ranges})
    assert contradictions(found, JobSpec(vector_type="int8")) == []
    assert contradictions(found, JobSpec(vector_type="int8", model=("all-MiniLM-L6-v2",))) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"format": 1}'])
def test_a_damaged_plan_is_named(content: bytes, tmp_path: Path) -> None:
    LocalStorage(tmp_path).put_if_absent(".embedctl/plan-0001.json", content)
    with pytest.raises(PlanMismatch, match=r"plan-0001\.json: not a readable plan"):
        load(LocalStorage(tmp_path))


@pytest.mark.parametrize("field", fields(JobSpec), ids=lambda f: f.name)
def test_recipe_and_job_change_exactly_with_what_they_are_made_of(field: Any) -> None:
    before, after = base(field.name), base(field.name, **{field.name: changed(field.name)})
    kind = field.metadata["kind"]
    recipes = [recipe_of(spec, ["text"], one_pass()) for spec in (before, after)]
    # The weights say which model it is, and what was resolved counts, not how it was asked for.
    decided = {
        "text_column", "model", "revision", "engine", "prompt", "prompt_name", "max_length", "dim", "dtype", "output",
        "vector_type",
    }  # fmt: skip
    assert (recipes[0] != recipes[1]) == (kind == "recipe" and field.name not in decided)
    jobs = [job_of("recipe", "snapshot", spec) for spec in (before, after)]
    assert (jobs[0] != jobs[1]) == (kind in ("rows", "tuning"))


RESOLVED: dict[str, Any] = {"dtype": "float32", "prompt": "", "max_length": 256, "dim": 8, "threads": 2}


def one_pass(weights: str = "weights", **changed: Any) -> tuple[Pass, ...]:
    outputs = (OutputSpec(name="embedding", kind="dense", dim=8, vector_type=changed.pop("vector_type", "float32")),)
    return (Pass(asked="m", model={"fingerprint": weights}, resolved={**RESOLVED, **changed}, outputs=outputs),)


def test_recipe_and_job_change_with_weights_and_content() -> None:
    spec = JobSpec()
    recipe = recipe_of(spec, ["text"], one_pass())
    assert recipe == recipe_of(spec, ["text"], one_pass(threads=9))
    assert recipe != recipe_of(spec, ["text"], one_pass() * 2)
    others = [
        recipe_of(spec, ["body"], one_pass()),
        recipe_of(spec, ["text"], one_pass("others")),
        *(
            recipe_of(spec, ["text"], one_pass(**{name: "x"}))
            for name in ("dtype", "prompt", "max_length", "dim", "vector_type")
        ),
    ]
    assert len({recipe, *others}) == 1 + len(others)
    jobs = {job_of(recipe, "a", spec), job_of(recipe, "b", spec), job_of(others[0], "a", spec)}
    assert len(jobs) == 3


def test_files_may_move() -> None:
    plan = full_plan()
    moved = [replace(f, path="/elsewhere/" + f.uri) for f in plan.files]
    assert plan.moved_to(moved).files == tuple(moved)
    assert replace(plan.moved_to(moved), files=plan.files) == plan


@pytest.mark.parametrize(
    ("given", "chunked"),
    [
        ({}, False),
        ({"chunk": "tokens:9"}, True),
        ({"chunk": "tokens:9", "chunk_pool": "mean"}, False),
        ({"on_overlong": "chunk"}, True),
    ],
)
def test_whether_rows_give_several_units(given: dict[str, Any], chunked: bool) -> None:
    assert hand_plan(JobSpec(**given)).chunked is chunked
