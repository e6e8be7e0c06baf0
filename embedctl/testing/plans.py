"""A plan made by hand, for tests of what obeys one: no corpus, no model.

Enters: a `JobSpec` and the columns. Leaves: a `Plan` whose recipe, job and snapshot are fixed words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from embedctl.outputs import SINGLE, OutputSpec
from embedctl.plan import Pass, Plan
from embedctl.records import Slice, SourceFile
from embedctl.spec import JobSpec

DIM = 4


def hand_plan(
    spec: JobSpec | None = None,
    *,
    schema: pa.Schema | None = None,
    id_column: str | None = None,
    keep: Sequence[str] = (),
    uris: Sequence[str] = ("a.jsonl",),
    slices: Sequence[Slice] = (),
    resolved: Mapping[str, Any] | None = None,
    outputs: Sequence[OutputSpec] = (OutputSpec(name=SINGLE, kind="dense", dim=DIM),),
) -> Plan:
    """Files are `uris`, read by nobody. `resolved` is added to what a sink asks for (`id_type`: string)."""
    return Plan(
        generation=1,
        job="0123456789abcdef",
        recipe="ab" * 32,
        snapshot="cd" * 32,
        spec=(spec or JobSpec()).of_kind("rows", "recipe", "tuning"),
        passes=(
            Pass(
                asked="by hand",
                model={"name": "by hand", "normalised": True, "similarity": "cosine", "fingerprint": "ef" * 32},
                resolved={"id_type": "string", **(resolved or {})},
                outputs=tuple(outputs),
            ),
        ),
        schema=schema or pa.schema([("text", pa.string())]),
        id_column=id_column,
        text_columns=("text",),
        keep=tuple(keep),
        inputs=("corpus",),
        files=tuple(
            SourceFile(index=i, uri=uri, path=uri, format="jsonl", compression=None, size_bytes=1, version="1")
            for i, uri in enumerate(uris)
        ),
        slices=tuple(slices),
    )
