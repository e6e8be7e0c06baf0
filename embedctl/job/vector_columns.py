"""Which columns of a table are its vectors, what they hold, and what else embedctl may have written into the files.

Enters: the files' schemas and footers. Leaves: columns by output, one type that all files can be read with, sizes.
Refused: a column that holds no vectors, files that disagree, chunks of documents: one id in many rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedctl.errors import UsageError
from embedctl.outputs import SINGLE
from embedctl.records import SourceFile
from embedctl.sinks.columns import kind_of
from embedctl.sources.drift import FileSchema
from embedctl.sources.schema import RESERVED_NAMES
from embedctl.spec import JobSpec

if TYPE_CHECKING:
    AnyField = pa.Field[Any]
else:  # the class takes no parameters at run time
    AnyField = pa.Field

MAX_SPARSE_DIM = 1_000_000_000
WINDOW_TARGET_BYTES = 64 << 20
_CARD_KEYS = (b"embedctl.model", b"embedctl.export")


def vector_columns(spec: JobSpec, schemas: Sequence[FileSchema], names: Sequence[str]) -> dict[str, str]:
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


def is_payload(name: str, id_column: str | None) -> bool:
    return not name.startswith("_") and (name not in RESERVED_NAMES or name == id_column)


def refuse_chunks(names: Sequence[str], id_column: str | None) -> None:
    if "chunk" in names and "char_start" in names and id_column is not None:
        raise UsageError(
            "the rows are chunks: one id stands in many of them, of which only the first would be kept",
            hint="load the folder that embedctl wrote, with its .embedctl/; it carries chunks",
        )


def read_field(schemas: Sequence[FileSchema], column: str) -> AnyField:
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


def window_rows(files: Sequence[SourceFile]) -> int:
    """So many rows that a window is about WINDOW_TARGET_BYTES, by the files' own sizes."""
    heaviest = 1.0
    for file in files:
        if file.format != "parquet":
            continue
        footer = pq.read_metadata(file.path)
        size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
        heaviest = max(heaviest, size / max(footer.num_rows, 1))
    return max(1, int(WINDOW_TARGET_BYTES / heaviest))


def dim_of(spec: JobSpec, field: AnyField, files: Sequence[SourceFile], formats: Mapping[str, Any]) -> int:
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


def card_of(files: Sequence[SourceFile]) -> dict[str, Any]:
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
