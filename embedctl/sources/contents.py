"""Columns that hold pictures or sounds: bytes, structs of bytes and path, or paths as text.

Enters: such a column as the files have it. Leaves: the field that all are read as. Refused: a column of other types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.sources.conform import path_type
from embedctl.sources.drift import FileSchema, is_text_like, normalise, unify
from embedctl.sources.roles import AnyField

PARTS = ("bytes", "path")


def content_field(name: str, present: Sequence[tuple[FileSchema, pa.DataType]], flag: str) -> AnyField:
    """present: the files that have the column, and its type there. :raises UsageError: see the module."""
    for schema, type_ in present:
        if not schema.sampled:
            _check(normalise(type_), f"{flag}: column {name!r} of {schema.file.uri}")
    return unify(name, [schema for schema, _ in present])


def hold_bytes(schemas: Iterable[FileSchema], names: Iterable[str]) -> list[str]:
    """The columns of `names` that some file declares as bytes, alone or in a struct: perhaps pictures or sounds."""
    return [n for n in names if any(_is_bytes(path_type(s.schema, n)) for s in schemas)]


def _is_bytes(type_: pa.DataType | None) -> bool:
    if type_ is None:
        return False
    plain = normalise(type_)
    if pa.types.is_struct(plain):
        return any(f.name == "bytes" and _is_bytes(f.type) for f in plain)
    return pa.types.is_binary(plain) or pa.types.is_fixed_size_binary(plain)


def _check(type_: pa.DataType, what: str) -> None:
    if pa.types.is_struct(type_):
        parts = {f.name: f.type for f in type_}
        if not any(part in parts and _is_plain(parts[part]) for part in PARTS):
            raise UsageError(f"{what} is {type_}, without a field `bytes` or `path`")
    elif not _is_plain(type_):
        raise UsageError(f"{what} is {type_}; allowed: bytes, structs of bytes and path, or paths as text")


def _is_plain(type_: pa.DataType) -> bool:
    return is_text_like(type_) or pa.types.is_fixed_size_binary(type_)
