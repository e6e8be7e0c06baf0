"""JobSpec -> plan: finds the files, agrees on the columns, reads the model's settings, decides what is `auto`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from typing import Any

import numpy as np

from embedctl import registry
from embedctl.errors import UnreadableInput
from embedctl.heads.precision import calibrate
from embedctl.job import media, scoring, wiring
from embedctl.job.averages import counted
from embedctl.job.passes import check_names, open_models, passes_of
from embedctl.models.folder import ModelFolder
from embedctl.outputs import dense
from embedctl.plan import Pass, Plan
from embedctl.recipe import job_of, recipe_of
from embedctl.records import Segment, Slice, SourceFile
from embedctl.sources.contents import hold_bytes
from embedctl.sources.drift import FileSchema
from embedctl.sources.files import STDIN, snapshot
from embedctl.sources.roles import is_number_id
from embedctl.sources.schema import ResolvedSchema, column_names, read_schemas, resolve_schema
from embedctl.sources.slices import cut_slices, size_segments
from embedctl.sources.where import columns_of
from embedctl.spec import JobSpec
from embedctl.spec_media import flag_of, media_of
from embedctl.stages.encode import without
from embedctl.text.template import text_rule

PROBES = 32
PROBE_ROWS = 64
PROBE_CONTENTS = 4
"""In the place of PROBE_ROWS where rows are pictures or sounds, which are large."""


NO_ROWS = (Slice(index=0, segments=()),)
"""A corpus without rows is one empty window, so that its part tells readers the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan, and the model folders that it was made with."""

    plan: Plan
    folders: tuple[ModelFolder, ...]


def draft(spec: JobSpec, files: Sequence[SourceFile]) -> Draft:
    """:raises UsageError, ModelError, SourceError: before any work, naming the field, column or file."""
    formats = {name: registry.get("formats", name)() for name in sorted({f.format for f in files})}
    schemas = read_schemas(files, formats)
    schema = _agreed(spec, files, formats, schemas)
    folders = open_models(spec)
    media.check_texts(folders, spec, hold_bytes(schemas, schema.text_columns))
    id_field = schema.schema.field(schema.id_column) if schema.id_column else None
    id_type = "int64" if id_field is not None and is_number_id(id_field) else "string"
    passes = passes_of(spec, folders, id_type)
    check_names(passes, schema.keep)
    recipe = recipe_of(spec, schema.text_columns, passes)
    seen = snapshot(files)
    sized = [s for f in files for s in size_segments(f, formats[f.format].segments(f, spec.slice_bytes))]
    plan = Plan(
        generation=1,
        job=job_of(recipe, seen, spec),
        recipe=recipe,
        snapshot=seen,
        spec=spec.of_kind("rows", "recipe", "tuning"),
        passes=passes,
        schema=schema.schema,
        id_column=schema.id_column,
        text_columns=tuple(schema.text_columns),
        keep=tuple(schema.keep),
        inputs=tuple(i if i == STDIN else os.path.abspath(i) for i in spec.inputs),
        files=tuple(files),
        slices=tuple(cut_slices(sized, spec.slice_bytes, limit_rows=spec.limit)) or NO_ROWS,
        libraries=libraries(),
    )
    if spec.task != "embed":
        scoring.check_names(plan)
    return Draft(plan=counted(plan, spec, folders), folders=folders)


def _agreed(
    spec: JobSpec, files: Sequence[SourceFile], formats: Mapping[str, Any], schemas: Sequence[FileSchema]
) -> ResolvedSchema:
    """The columns that the job reads, of one type in all files."""
    columns = text_rule(spec.text_column, spec.text_template).columns if spec.text_column or spec.text_template else ()
    content = media_of(spec)
    return resolve_schema(
        files,
        formats,
        text_columns=() if spec.candidates_column else (content[1],) if content else columns or None,
        template=spec.text_template is not None,
        id_column=spec.id_column,
        keep=spec.keep,
        where_columns=sorted(columns_of(spec.where, column_names(schemas))) if spec.where else (),
        schemas=schemas,
        queries=scoring.query_columns(spec),
        candidates=spec.candidates_column,
        content_flag=flag_of(content[0]) if content else None,
    )


def libraries() -> dict[str, str]:
    """Versions of what computes, recorded in the plan and compared with nothing."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "pyarrow", "tokenizers", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """texts: those of the sampled rows that would be embedded. rows and bytes: of all rows looked at in line files."""

    texts: list[str]
    rows: int
    line_bytes: int
    line_rows: int


def probe(plan: Plan) -> Probe:
    """A seeded, spread sample: up to PROBES places, PROBE_ROWS embeddable rows each."""
    blocks, rules = wiring.blocks_of(plan), wiring.row_rules(plan)
    most = PROBE_CONTENTS if media.rule_of(plan) else PROBE_ROWS
    texts: list[str] = []
    rows = line_rows = line_bytes = 0
    for segment, start in _probes(plan):
        taken = 0
        for block in blocks(plan.files[segment.file], segment.begin, segment.end, start):
            rows += len(block.positions)
            if plan.files[segment.file].format in ("jsonl", "text"):
                line_rows += len(block.positions)
                line_bytes += block.next_position - int(block.positions[0])
            passes = rules.where(block.columns) if rules.where else np.ones(len(block.positions), dtype=bool)
            good = (
                text
                for i, text in enumerate(rules.render(block.columns, plan.files[segment.file]))
                if passes[i] and i not in block.errors and text is not None and rules.problem(text) is None
            )
            found = list(islice(good, most - taken))
            texts += found
            taken += len(found)
            if taken >= most:
                break
    return Probe(texts=texts, rows=rows, line_bytes=line_bytes, line_rows=line_rows)


def _probes(plan: Plan) -> list[tuple[Segment, int]]:
    segments = [s for slice_ in plan.slices for s in slice_.segments]
    if not segments:
        return []
    chance = np.random.default_rng(int(plan.job, 16) % 2**63)
    chosen = np.sort(chance.integers(0, len(segments), size=PROBES)) if len(segments) > PROBES else range(len(segments))
    per_segment = 1 if len(segments) > PROBES else max(1, PROBES // len(segments))
    out = []
    for number in chosen:
        segment = segments[int(number)]
        span = (segment.end or segment.begin) - segment.begin
        starts = (
            {segment.begin + int(chance.integers(0, span)) for _ in range(per_segment)} if span > 1 else {segment.begin}
        )
        out += [(segment, start) for start in sorted(starts | ({segment.begin} if per_segment > 1 else set()))]
    return out


def int8_ranges(plan: Plan, folders: Sequence[ModelFolder]) -> dict[str, list[list[float]]]:
    """Ranges of each dimension over the probe's vectors, as nested lists (2, C), for each dense output."""
    texts = sorted(set(probe(plan).texts))
    return {
        output.name: _ranges(plan, folder, one, texts)
        for folder, one in zip(folders, plan.passes, strict=True)
        for output in one.outputs
        if output.kind == "dense"
    }


def _ranges(plan: Plan, folder: ModelFolder, one: Pass, texts: Sequence[str]) -> list[list[float]]:
    from embedctl.tokens.pack import make_batches

    tokenizer = wiring.open_tokenizer(folder, one.resolved, plan.spec)
    encoder = wiring.open_planned_encoder(folder, plan.spec, one.resolved)
    try:
        dim = encoder.dims["dense"]
        vectors = np.zeros((len(texts), dim), dtype=np.float32)
        for batch in make_batches(tokenizer(texts), one.resolved["batch_tokens"], padded=encoder.padded):
            try:
                vectors[batch.units] = dense(encoder.encode(batch))
            except UnreadableInput as exc:
                vectors[[batch.units[i] for i in exc.reasons]] = np.nan
                rest = without(batch, exc.reasons)
                if rest is not None:
                    vectors[rest.units] = dense(encoder.encode(rest))
        finite = vectors[np.isfinite(vectors).all(axis=1)]
        ranges: list[list[float]] = calibrate(finite).tolist() if len(finite) else [[-1.0] * dim, [1.0] * dim]
        return ranges
    finally:
        encoder.close()
