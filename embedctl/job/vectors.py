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
import pyarrow.parquet as pq

from embedctl import registry
from embedctl.errors import UsageError
from embedctl.job import limits, planning, wiring
from embedctl.outputs import SINGLE, OutputSpec, Values, take
from embedctl.plan import LOADED, Pass, Plan
from embedctl.recipe import job_of
from embedctl.records import Slice, SourceFile, Window, WindowOutput, WindowRecord
from embedctl.sinks.columns import kind_of, values_of
from embedctl.sources.drift import FileSchema
from embedctl.sources.files import snapshot
from embedctl.sources.roles import is_number_id
from embedctl.sources.schema import RESERVED_NAMES, column_names, read_schemas, resolve_schema
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

MAX_SPARSE_DIM = 1_000_000_000
WINDOW_TARGET_BYTES = 64 << 20
_CARD_KEYS = (b"embedctl.model", b"embedctl.export")


def draft(spec: JobSpec, files: Sequence[SourceFile]) -> Plan:
    """:raises UsageError, SourceError: before any work, naming the column or file."""
    formats = {name: registry.get("formats", name)() for name in sorted({f.format for f in files})}
    if odd := [f.uri for f in files if f.format not in ("parquet", "arrow")]:
        raise UsageError(f"{odd[0]}: vectors are loaded from Parquet or Arrow files only")
    schemas = read_schemas(files, formats)
    names = column_names(schemas)
    columns = _vector_columns(spec, schemas, names)
    own = set(columns.values())
    kept = spec.keep or tuple(n for n in names if n not in own and _is_payload(n, spec.id_column))
    where = sorted(columns_of(spec.where, names)) if spec.where else ()
    schema = resolve_schema(
        files, formats, text_columns=(), template=True, id_column=spec.id_column, keep=kept, where_columns=where,
        schemas=schemas,
    )  # fmt: skip
    _refuse_chunks(names, schema.id_column)
    fields = {name: _read_field(schemas, column) for name, column in columns.items()}
    read = pa.schema([*schema.schema, *(f for f in fields.values() if f.name not in schema.schema.names)])
    spec = replace(spec, window_rows=min(spec.window_rows, _window_rows(files)))
    card = _card(files)
    dims = {name: _dim(spec, field, files, formats) for name, field in fields.items()}
    id_field = schema.schema.field(schema.id_column) if schema.id_column else None
    resolved = {
        LOADED: columns, "id_type": "int64" if id_field is not None and is_number_id(id_field) else "string",
        "window_rows": spec.window_rows, "window_bytes": spec.window_bytes, "slice_bytes": spec.slice_bytes,
        "device": "cpu", "threads": spec.threads or limits.available_cpus(), "batch_tokens": 0,
    }  # fmt: skip
    passes = _passes(spec, fields, dims, card, resolved)
    recipe = str(card.get("recipe") or _hash([o.to_json() for one in passes for o in one.outputs]))
    sized = [s for f in files for s in size_segments(f, formats[f.format].segments(f, spec.slice_bytes))]
    seen = snapshot(files)
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
            render=lambda batch: [""] * batch.num_rows,
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


def _told(why: str, spec: OutputSpec, plan: Plan) -> str:
    return why if len(plan.outputs) == 1 else f"{spec.name}: {why}"


def _one(column: AnyColumn) -> AnyArray:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _vector_columns(spec: JobSpec, schemas: Sequence[FileSchema], names: Sequence[str]) -> dict[str, str]:
    """Output -> column, as asked (`NAME=COLUMN` or `COLUMN`), else all columns that can only be vectors."""
    if not spec.vector_column:
        found = [n for n in names if n not in spec.keep and all(_kind(s, n) for s in schemas)]
        asked = [(SINGLE if len(found) == 1 else n, n) for n in found]
        if not asked:
            raise UsageError(
                f"--vector-column: which column holds the vectors? there are {', '.join(names) or 'no columns'}",
                hint=f"--vector-column {names[-1]}" if names else None,
            )
        return dict(asked)
    out: dict[str, str] = {}
    for text in spec.vector_column:
        name, equals, column = text.rpartition("=")
        if text in names:
            name, equals, column = "", "", text
        out[name if equals else SINGLE if len(spec.vector_column) == 1 else column] = column
    for column in out.values():
        for one in schemas:
            if column not in one.schema.names:
                held = ", ".join(one.schema.names)
                raise UsageError(f"--vector-column: no column {column!r} in {one.file.uri}; it has {held}")
            if _kind(one, column) is None:
                raise UsageError(
                    f"--vector-column: column {column!r} of {one.file.uri} is {one.schema.field(column).type}; vectors "
                    "are FixedSizeList or List of numbers, Struct<indices, values>, or List of lists"
                )
    return out


def _kind(one: FileSchema, column: str) -> str | None:
    return kind_of(one.schema.field(column).type) if column in one.schema.names else None


def _is_payload(name: str, id_column: str | None) -> bool:
    return not name.startswith("_") and (name not in RESERVED_NAMES or name == id_column)


def _refuse_chunks(names: Sequence[str], id_column: str | None) -> None:
    if "chunk" in names and "char_start" in names and id_column is not None:
        raise UsageError(
            "the rows are chunks: one id stands in many of them, of which only the first would be kept",
            hint="load the folder that embedctl wrote, with its .embedctl/; it carries chunks",
        )


def _read_field(schemas: Sequence[FileSchema], column: str) -> AnyField:
    """The files' own type where they agree, else one that all can be cast to."""
    types = {s.schema.field(column).type for s in schemas}
    kinds = {kind_of(t) for t in types}
    if len(kinds) > 1:
        held = "; ".join(f"{s.file.uri}: {s.schema.field(column).type}" for s in schemas[:3])
        raise UsageError(f"--vector-column: column {column!r} differs between files: {held}")
    if len(types) == 1:
        return pa.field(column, types.pop())
    common = {
        "dense": pa.list_(pa.float32()),
        "sparse": pa.struct([("indices", pa.list_(pa.int64())), ("values", pa.list_(pa.float32()))]),
        "multivector": pa.list_(pa.list_(pa.float32())),
    }
    return pa.field(column, common[str(kinds.pop())])


def _window_rows(files: Sequence[SourceFile]) -> int:
    """So many rows that a window is about WINDOW_TARGET_BYTES, by the files' own sizes."""
    heaviest = 1.0
    for file in files:
        if file.format != "parquet":
            continue
        footer = pq.read_metadata(file.path)
        size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
        heaviest = max(heaviest, size / max(footer.num_rows, 1))
    return max(1, int(WINDOW_TARGET_BYTES / heaviest))


def _dim(spec: JobSpec, field: AnyField, files: Sequence[SourceFile], formats: Mapping[str, Any]) -> int:
    """Numbers of a stored vector: `--dim`, the fixed size, or that of the first vector."""
    kind = kind_of(field.type)
    if kind == "sparse":
        return spec.dim or MAX_SPARSE_DIM
    inner = field.type.value_type if kind == "multivector" else field.type
    if pa.types.is_fixed_size_list(inner):
        return int(inner.list_size)
    if spec.dim is not None:
        return spec.dim
    for file in files:
        for segment in formats[file.format].segments(file, spec.slice_bytes):
            for block in formats[file.format].read(file, segment, pa.schema([field]), None):
                for cell in block.columns.column(0):
                    vector = cell.values if cell.is_valid else None
                    if kind == "multivector" and vector is not None:
                        vector = vector[0].values if len(vector) and vector[0].is_valid else None
                    if vector is not None and len(vector):
                        return len(vector)
    raise UsageError(f"--vector-column: column {field.name!r} holds no vector at all", hint="--dim 384 says its size")


def _card(files: Sequence[SourceFile]) -> dict[str, Any]:
    """The model card and recipe that embedctl wrote into the files, where all agree; else nothing."""
    found: list[dict[str, Any]] = []
    for file in files:
        metadata = (pq.read_schema(file.path).metadata or {}) if file.format == "parquet" else {}
        texts = [metadata[key] for key in _CARD_KEYS if key in metadata]
        card = json.loads(texts[0]) if texts else {}
        if "source" in card:  # an export's, which tells the model beside other things
            card = {**card.get("model", {}), **({"recipe": card["recipe"]} if "recipe" in card else {})}
        found.append(card)
        if found[-1] != found[0]:
            return {}
    return found[0] if found else {}


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
