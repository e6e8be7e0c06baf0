"""`avg_len=auto`: the corpus is read once for its average length in words before it is embedded.

Enters: a drafted plan. Leaves: the same plan, with the average in it and in its recipe. Refused: standard input, which
can be read only once, and chunks, which are no documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embedctl.errors import UsageError
from embedctl.job import wiring
from embedctl.models.folder import ModelFolder
from embedctl.models.lexical import AUTO, Lexical, parse
from embedctl.plan import Pass, Plan
from embedctl.recipe import job_of, recipe_of
from embedctl.spec import JobSpec
from embedctl.stages.windows import WindowReader


def counted(plan: Plan, spec: JobSpec, folders: Sequence[ModelFolder]) -> Plan:
    """:raises UsageError: see the module."""
    wanted = [parse(f.name) if f.kind == "lexical" else None for f in folders]
    if not any(found is not None and found.avg_len == AUTO for found in wanted):
        return plan
    if plan.is_stream:
        raise UsageError("avg_len=auto reads the corpus twice; standard input cannot be", hint="bm25:avg_len=256")
    if plan.spec["chunk"]:
        raise UsageError("avg_len=auto counts documents, and --chunk cuts them", hint="bm25:avg_len=256")
    passes = tuple(_with_average(one, found, plan) for one, found in zip(plan.passes, wanted, strict=True))
    recipe = recipe_of(spec, plan.text_columns, passes)
    return replace(plan, passes=passes, recipe=recipe, job=job_of(recipe, plan.snapshot, spec))


def _with_average(one: Pass, found: Lexical | None, plan: Plan) -> Pass:
    if found is None or found.avg_len != AUTO:
        return one
    from embedctl.encoders.lexical import word_counts

    reader = WindowReader(plan, wiring.row_rules(plan), wiring.blocks_of(plan))
    words = rows = 0
    for slice_ in plan.slices:
        for window in reader.windows(slice_, {}):
            rows += len(window.texts)
            words += int(word_counts(found, window.texts).sum())
    return replace(one, resolved={**one.resolved, "avg_len": words / rows if words else 1.0})
