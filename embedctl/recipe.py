"""What makes the numbers, and what makes a job, as hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from embedctl.outputs import OutputSpec
from embedctl.plan import Pass
from embedctl.spec import JobSpec

_DECIDED = (
    "text_column", "model", "revision", "engine", "prompt", "prompt_name", "max_length", "dim", "dtype", "output",
    "vector_type",
)  # fmt: skip
"""Fields of the recipe that count as what they became, in the passes."""


def recipe_of(spec: JobSpec, text_columns: Sequence[str], passes: Sequence[Pass]) -> str:
    """Hash of what makes the numbers: the text rule, and of each model its contents, settings and outputs.

    What is left at its default is not part of it, so that a setting that comes later changes no recipe of today.
    """
    default = JobSpec().of_kind("recipe")
    made_of = {k: v for k, v in spec.of_kind("recipe").items() if k not in _DECIDED and v != default[k]}
    made_of |= {"text": list(text_columns), "passes": [_numbers_of(p) for p in passes]}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _numbers_of(one: Pass) -> dict[str, Any]:
    resolved = {k: one.resolved[k] for k in ("dtype", "prompt", "max_length", "dim")}
    resolved |= {k: one.resolved[k] for k in ("avg_len",) if k in one.resolved}
    return {**resolved, "weights": one.model["fingerprint"], "outputs": [_told(o) for o in one.outputs]}


def _told(output: OutputSpec) -> dict[str, Any]:
    return {k: v for k, v in output.to_json().items() if v not in (None, [])}


def job_of(recipe: str, snapshot: str, spec: JobSpec) -> str:
    """Names one job on one corpus: a part of another is never adopted."""
    made_of = [recipe, snapshot, spec.of_kind("rows", "tuning")]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
