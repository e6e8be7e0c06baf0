"""Whether the types of one column agree across files, and on what.

Enters: the column as several files have it. Leaves: the one field all are read as. Refused: types that differ in more
than width, offset size or encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.records import SourceFile
from embedctl.sources.conform import path_type
from embedctl.sources.infer import merge_inferred, without_nulls
from embedctl.sources.roles import AnyField, is_unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSchema:
    """A file's columns. `sampled`: inferred from its first rows, so types may grow and keys may be missing."""

    file: SourceFile
    schema: pa.Schema
    sampled: bool


def is_text_like(type_: pa.DataType) -> bool:
    """Text, or bytes that may be text; also dictionary-encoded; also a column of nulls."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return is_text_like(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return is_text_like(type_.storage_type)
    return (
        pa.types.is_null(type_)
        or pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
    )


def normalise(type_: pa.DataType) -> pa.DataType:
    """The plain type behind an encoding or an offset width."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return normalise(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return normalise(type_.storage_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    return type_


def unify(name: str, schemas: Sequence[FileSchema]) -> AnyField:
    """The field that every file's column can be read as.

    :raises UsageError: two files disagree; both and their types are named.
    """
    sampled = [_sampled_field(s, name) for s in schemas if s.sampled]
    declared = [s for s in schemas if not s.sampled]
    if not declared:
        return merge_inferred(sampled)
    agreed: pa.DataType = pa.null()
    first = declared[0]
    for s in declared:
        type_ = path_type(s.schema, name)
        assert type_ is not None
        agreed, first = _both(name, agreed, first, normalise(type_), s)
    for s, field in zip((s for s in schemas if s.sampled), sampled, strict=True):
        if not is_unknown(field):
            agreed, first = _both(name, agreed, first, field.type, s)
    return pa.field(name, without_nulls(agreed))


def _sampled_field(s: FileSchema, name: str) -> AnyField:
    if name in s.schema.names:
        return s.schema.field(name)
    type_ = path_type(s.schema, name)
    assert type_ is not None
    return pa.field(name, type_)


def _both(
    name: str, a: pa.DataType, a_file: FileSchema, b: pa.DataType, b_file: FileSchema
) -> tuple[pa.DataType, FileSchema]:
    if pa.types.is_null(b) or a == b:
        return a, a_file
    if pa.types.is_null(a):
        return b, b_file
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if any(kind(a) and kind(b) for kind in numbers):
        pair = [pa.schema([pa.field(name, t)]) for t in (a, b)]
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type, a_file
    raise UsageError(
        f"column {name!r} is {a} in {a_file.file.uri} but {b} in {b_file.file.uri}",
        hint=f"--keep {name}:string reads both as text, or run them as two jobs",
    )
