"""Vectors that are in tables already: which columns they are, and the windows of such a corpus.

Enters: Parquet or Arrow files of any origin. Leaves: a plan without a text, and windows whose outputs were read, not
computed. Refused: a column that holds no vectors, files that disagree, chunks of documents: one id in many rows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embedctl import registry
from embedctl.errors import UsageError
from embedctl.job import limits, planning, wiring
from embedctl.job.vector_columns import (
    card_of,
    dim_of,
    is_payload,
    read_field,
    refuse_chunks,
    vector_columns,
    window_rows,
)
from embedctl.outputs import OutputSpec, Values, take
from embedctl.plan import LOADED, Pass, Plan
from embedctl.recipe import job_of
from embedctl.records import Slice, SourceFile, Window, WindowOutput, WindowRecord
from embedctl.sinks.columns import kind_of, values_of
from embedctl.sources.drift import FileSchema
from embedctl.sources.files import snapshot
from embedctl.sources.roles import is_number_id
from embedctl.sources.schema import column_names, read_schemas, resolve_schema
from embedctl.sources.slices import cut_slices, sample_mask, size_segments
from embedctl.sources.where import Where, columns_of
from embedctl.spec import JobSpec
from embedctl.stages.commit import dead_rows, record_of
from embedctl.stages.windows import RowRules, WindowReader

if TYPE_CHECKING:
    AnyField = pa.Field[Any]
    AnyArray = pa.Array[Any]
    AnyColumn = pa.ChunkedArray[Any]
else:  # the classes take no parameters at run time
    AnyField, AnyArray, AnyColumn = pa.Field, pa.Array, pa.ChunkedArray


def draft(spec: JobSpec, files: Sequence[SourceFile]) -> Plan:
    """:raises UsageError, SourceError: before any work, naming the column or file."""
    formats = {name: registry.get("formats", name)() for name in sorted({f.format for f in files})}
    schemas = _schemas(files, formats)
    names = column_names(schemas)
    columns = vector_columns(spec, schemas, names)
    kept = spec.keep or tuple(n for n in names if n not in columns.values() and is_payload(n, spec.id_column))
    where = sorted(columns_of(spec.where, names)) if spec.where else ()
    schema = resolve_schema(
        files, formats, text_columns=(), template=True, id_column=spec.id_column, keep=kept, where_columns=where,
        schemas=schemas,
    )  # fmt: skip
    refuse_chunks(names, schema.id_column)
    fields = {name: read_field(schemas, column) for name, column in columns.items()}
    read = pa.schema([*schema.schema, *(f for f in fields.values() if f.name not in schema.schema.names)])
    card = card_of(files)
    dims = {name: dim_of(spec, field, files, formats) for name, field in fields.items()}
    numbers = schema.id_column is not None and is_number_id(schema.schema.field(schema.id_column))
    passes = _passes(spec, fields, dims, card, _resolved(spec, columns, numbers))
    recipe = str(card.get("recipe") or _hash([o.to_json() for one in passes for o in one.outputs]))
    sized = [s for f in files for s in size_segments(f, formats[f.format].segments(f, spec.slice_bytes))]
    seen = snapshot(files)
    spec = replace(spec, window_rows=min(spec.window_rows, window_rows(files)))
    return Plan(
        generation=1,
        job=job_of(recipe, seen, spec),
        recipe=recipe,
        snapshot=seen,
        spec=spec.of_kind("rows", "recipe", "tuning"),
        passes=passes,
        schema=read,
        id_column=schema.id_column,
        text_columns=(),
        keep=tuple(schema.keep),
        inputs=tuple(os.path.abspath(i) for i in spec.inputs),
        files=tuple(files),
        slices=tuple(cut_slices(sized, spec.slice_bytes, limit_rows=spec.limit)) or planning.NO_ROWS,
        libraries=planning.libraries(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The windows of such a plan, their outputs read from their columns."""

    plan: Plan

    def windows(self, slice_: Slice, done: Mapping[int, WindowRecord]) -> Iterator[WindowOutput]:
        """Those that are not `done` (by number), in order."""
        plan, where, fraction = self.plan, self.plan.spec["where"], self.plan.spec["sample"]
        sample: Callable[[str, np.ndarray], np.ndarray] | None = None
        if fraction is not None:
            sample = lambda uri, positions: sample_mask(uri, positions, fraction)  # noqa: E731
        rules = RowRules(
            where=Where(where, plan.schema).mask if where else None,
            sample=sample,
            render=lambda batch, _: [""] * batch.num_rows,
            problem=lambda _: None,
            on_duplicate=plan.spec["on_duplicate"],
            hashed=False,
        )
        columns: list[str] = list(plan.resolved[LOADED].values())
        read = replace(plan, keep=tuple(dict.fromkeys((*plan.keep, *columns))))
        for window in WindowReader(read, rules, wiring.blocks_of(read)).windows(slice_, done):
            yield self._output(window)

    def _output(self, window: Window) -> WindowOutput:
        plan = self.plan
        outputs: dict[str, Values] = {}
        reasons: dict[int, str] = {}
        for spec in plan.outputs:
            column = window.kept.column(plan.resolved[LOADED][spec.name])
            outputs[spec.name], bad = values_of(_one(column), spec)
            reasons = {**{i: _told(why, spec, plan) for i, why in bad.items()}, **reasons}
        died = dead_rows(window, reasons)
        alive = np.setdiff1d(np.arange(len(window.ids)), np.fromiter(reasons, dtype=np.int64, count=len(reasons)))
        return WindowOutput(
            record=record_of(window, died, units=len(alive), tokens=0, padded_tokens=0, truncated=0),
            ids=[window.ids[i] for i in alive.tolist()],
            positions=window.positions[alive] if plan.id_column else None,
            outputs={name: take(values, alive) for name, values in outputs.items()},
            kept=window.kept.select(list(plan.keep)).take(pa.array(alive, pa.int64())),
            token_count=np.zeros(len(alive), dtype=np.int64),
            truncated=np.zeros(len(alive), dtype=bool),
            chunk=None,
            char_start=None,
            char_end=None,
            dead=tuple(sorted((*window.dead, *died), key=lambda d: (d.file, d.position))),
        )


def _schemas(files: Sequence[SourceFile], formats: Mapping[str, Any]) -> list[FileSchema]:
    if odd := [f.uri for f in files if f.format not in ("parquet", "arrow")]:
        raise UsageError(f"{odd[0]}: vectors are loaded from Parquet or Arrow files only")
    return read_schemas(files, formats)


def _resolved(spec: JobSpec, columns: Mapping[str, str], numbers: bool) -> dict[str, Any]:
    """What of a plan's settings means something where nothing is computed. numbers: ids are whole numbers."""
    return {
        LOADED: dict(columns), "id_type": "int64" if numbers else "string", "window_rows": spec.window_rows,
        "window_bytes": spec.window_bytes, "slice_bytes": spec.slice_bytes, "device": "cpu",
        "threads": spec.threads or limits.available_cpus(), "batch_tokens": 0,
    }  # fmt: skip


def _told(why: str, spec: OutputSpec, plan: Plan) -> str:
    return why if len(plan.outputs) == 1 else f"{spec.name}: {why}"


def _one(column: AnyColumn) -> AnyArray:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _passes(
    spec: JobSpec, fields: Mapping[str, AnyField], dims: Mapping[str, int], card: Mapping[str, Any], own: dict[str, Any]
) -> tuple[Pass, ...]:
    """One for all columns; with `--model`, what that model is, so that words can be searched for."""
    similarity = spec.distance or str(card.get("similarity", "cosine"))
    outputs = tuple(_output_spec(spec, name, field, dims[name], similarity) for name, field in fields.items())
    model = {
        "name": "loaded vectors", "architecture": "none", "fingerprint": "", "max_length": None, "prompt": "",
        "prompts": {}, "normalised": False, **card, "similarity": similarity, "dim": outputs[0].dim,
    }  # fmt: skip
    return (Pass(asked=spec.models[0][1] if spec.model else "", model=model, resolved=own, outputs=outputs),)


def _output_spec(spec: JobSpec, name: str, field: AnyField, dim: int, similarity: str) -> OutputSpec:
    kind = kind_of(field.type)
    assert kind is not None
    if kind == "sparse":
        return OutputSpec(name=name, kind=kind, dim=dim, similarity="dot")
    if kind == "multivector":
        return OutputSpec(name=name, kind=kind, dim=dim, vector_type="float16", similarity=similarity)
    packed = spec.vector_type in ("binary", "ubinary")
    return OutputSpec(
        name=name, kind=kind, dim=dim * 8 if packed else dim, vector_type=spec.vector_type, similarity=similarity
    )


def _hash(obj: Any) -> str:
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()
