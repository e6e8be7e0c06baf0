"""JobSpec -> plan: finds the files, agrees on the columns, reads the model's settings, decides what is `auto`."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from embedctl import registry
from embedctl.errors import UsageError
from embedctl.heads.precision import calibrate
from embedctl.job import scoring, wiring
from embedctl.models.folder import ModelFolder
from embedctl.models.load import find_model
from embedctl.outputs import SINGLE, OutputSpec, dense
from embedctl.plan import Pass, Plan, job_of, recipe_of
from embedctl.records import Segment, Slice, SourceFile
from embedctl.sources.files import STDIN, snapshot
from embedctl.sources.roles import is_number_id
from embedctl.sources.schema import RESERVED_NAMES, column_names, read_schemas, resolve_schema
from embedctl.sources.slices import cut_slices, size_segments
from embedctl.sources.where import columns_of
from embedctl.spec import JobSpec
from embedctl.text.template import text_rule

PROBES = 32
PROBE_ROWS = 64
CPU_BATCH_TOKENS = 4096
CUDA_BATCH_TOKENS = 65536
FIRST_WINDOW_ROWS = 1024


NO_ROWS = (Slice(index=0, segments=()),)
"""A corpus without rows is one empty window, so that its part tells readers the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan, and the model folders that it was made with."""

    plan: Plan
    folders: tuple[ModelFolder, ...]


def open_models(spec: JobSpec) -> tuple[ModelFolder, ...]:
    """:raises ModelError: not found, or not understood."""
    return tuple(
        find_model(
            asked,
            revision=spec.revision,
            offline=spec.offline,
            allow_pickle=spec.allow_pickle,
            trust_remote_code=spec.trust_remote_code,
            scorer=spec.task != "embed",
        )
        for _, asked in spec.models
    )


def draft(spec: JobSpec, files: Sequence[SourceFile]) -> Draft:
    """:raises UsageError, ModelError, SourceError: before any work, naming the field, column or file."""
    formats = {name: registry.get("formats", name)() for name in sorted({f.format for f in files})}
    columns = text_rule(spec.text_column, spec.text_template).columns if spec.text_column or spec.text_template else ()
    schemas = read_schemas(files, formats)
    schema = resolve_schema(
        files,
        formats,
        text_columns=() if spec.candidates_column else columns or None,
        template=spec.text_template is not None,
        id_column=spec.id_column,
        keep=spec.keep,
        where_columns=sorted(columns_of(spec.where, column_names(schemas))) if spec.where else (),
        schemas=schemas,
        queries=scoring.query_columns(spec),
        candidates=spec.candidates_column,
    )
    folders = open_models(spec)
    id_field = schema.schema.field(schema.id_column) if schema.id_column else None
    id_type = "int64" if id_field is not None and is_number_id(id_field) else "string"
    passes = passes_of(spec, folders, id_type)
    _check_names(passes, schema.keep)
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
    return Draft(plan=plan, folders=folders)


def passes_of(spec: JobSpec, folders: Sequence[ModelFolder], id_type: str) -> tuple[Pass, ...]:
    """What the settings become for each model. :raises UsageError: an output that the model does not give."""
    passes = []
    for (name, asked), folder in zip(spec.models, folders, strict=True):
        resolved = {**_resolve(spec, folder), "id_type": id_type}
        outputs = _outputs(spec, name, folder)
        passes.append(Pass(asked=asked, model=_card(folder, resolved), resolved=resolved, outputs=outputs))
    _check_outputs(spec, passes)
    return tuple(passes)


def _outputs(spec: JobSpec, name: str | None, folder: ModelFolder) -> tuple[OutputSpec, ...]:
    """The outputs asked for; else, of a named model, the kind of that name; else what the model is made for."""
    if spec.task != "embed":
        return scoring.outputs_of(spec, name, folder)
    wanted = spec.output or ((name,) if name in folder.kinds else folder.kinds[:1])
    for kind in wanted:
        if kind not in folder.kinds:
            raise UsageError(
                f"--output: {folder.name} gives no {kind} output; it gives: {', '.join(folder.kinds)}",
                hint=f"--output {folder.kinds[0]}",
            )
    return tuple(
        OutputSpec(
            name=name if name and len(wanted) == 1 else SINGLE if len(wanted) == 1 else kind,
            kind=kind,
            dim=folder.numbers(kind, spec),
            vector_type={"dense": spec.vector_type, "multivector": "float16"}.get(kind, "float32"),
            similarity="dot" if kind == "sparse" else folder.similarity,
        )
        for kind in folder.kinds
        if kind in wanted
    )


def _check_names(passes: Sequence[Pass], keep: Sequence[str]) -> None:
    """:raises UsageError: an output has the name of another column."""
    taken = {*keep, *RESERVED_NAMES} - {SINGLE}
    for name in (output.name for one in passes for output in one.outputs):
        if name in taken:
            why = "a kept column" if name in keep else "a column the output uses itself"
            raise UsageError(f"--model: {name!r} is {why}; an output cannot have its name", hint=f"--model {name}_=...")


def _check_outputs(spec: JobSpec, passes: Sequence[Pass]) -> None:
    kinds = [output.kind for one in passes for output in one.outputs]
    if spec.chunk_pool and set(kinds) != {"dense"}:
        raise UsageError("--chunk-pool: only dense vectors can be averaged", hint="leave out --chunk-pool")
    if spec.vector_type != "float32" and "dense" not in kinds:
        raise UsageError(f"--vector-type: it is for dense vectors, and there are only {', '.join(kinds)}")


def available_cpus() -> int:
    """Processors this process may use, the cgroup's quota included."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cpus


def available_bytes() -> int:
    """Memory this process may use, the cgroup's limit included."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits)


def _resolve(spec: JobSpec, folder: ModelFolder) -> dict[str, Any]:
    device, dtype = "cpu", "float32"
    if folder.kind != "fake":
        from embedctl.encoders.open import resolve_device, resolve_dtype

        device = resolve_device(spec.device)
        dtype = "float32" if folder.kind == "static" else resolve_dtype(spec.dtype, device)
    prompt = folder.prompt(spec)
    resolved: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "threads": spec.threads or available_cpus(),
        "batch_tokens": spec.batch_tokens or (CUDA_BATCH_TOKENS if device.startswith("cuda") else CPU_BATCH_TOKENS),
        "compile": spec.compile,
        "prompt": prompt,
        "max_length": folder.max_length(spec),
        "dim": folder.dim(spec) if folder.scorer is None else 0,
        "window_rows": spec.window_rows,
        "first_window_rows": FIRST_WINDOW_ROWS,
        "window_bytes": spec.window_bytes,
        "slice_bytes": spec.slice_bytes,
        "machine": platform.machine(),
    }
    if folder.scorer is not None:
        resolved |= scoring.resolved_of(spec, folder)
    tokenizer = wiring.open_tokenizer(folder, resolved, spec.of_kind("recipe"))
    resolved["num_prompt_tokens"] = tokenizer.num_prompt_tokens
    return resolved


def _card(folder: ModelFolder, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader of the vectors should know of their model."""
    return {
        "name": folder.name,
        "architecture": folder.architecture,
        "fingerprint": folder.fingerprint(),
        "dim": resolved["dim"],
        "max_length": resolved["max_length"],
        "prompt": resolved["prompt"],
        "prompts": dict(folder.prompts),
        "similarity": folder.similarity,
        "normalised": folder.normalize,
        **({} if folder.scorer is None else scoring.card_of(folder, resolved)),
    }


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
            good = [
                text
                for i, text in enumerate(rules.render(block.columns))
                if passes[i] and i not in block.errors and text is not None and rules.problem(text) is None
            ]
            texts += good[: PROBE_ROWS - taken]
            taken += len(good)
            if taken >= PROBE_ROWS:
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
        if not texts:
            return [[-1.0] * dim, [1.0] * dim]
        vectors = np.zeros((len(texts), dim), dtype=np.float32)
        for batch in make_batches(tokenizer(texts), one.resolved["batch_tokens"], padded=encoder.padded):
            vectors[batch.units] = dense(encoder.encode(batch))
        ranges: list[list[float]] = calibrate(vectors[np.isfinite(vectors).all(axis=1)]).tolist()
        return ranges
    finally:
        encoder.close()
