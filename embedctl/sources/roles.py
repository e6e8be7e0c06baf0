"""Marks on the fields of a read schema that tell a reader how lenient to be with a value.

`id`: whole numbers are taken as their decimal text; `number-id`: the same, and every file's type is whole numbers.
`json`: a value that is not text is kept as its JSON text. `unknown`: only nulls were seen where the type was inferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]
    AnyField = pa.Field[Any]
else:  # the classes take no parameters at run time
    AnyArray = pa.Array
    AnyField = pa.Field

_KEY = b"embedctl"


def mark_id(field: AnyField, *, numbers: bool = False) -> AnyField:
    """The field as the id column; `numbers`: every file's type says whole numbers that fit int64."""
    return field.with_metadata({_KEY: b"number-id" if numbers else b"id"})


def mark_json(field: AnyField) -> AnyField:
    """The field as one whose values are of mixed types and kept as JSON text."""
    return field.with_metadata({_KEY: b"json"})


def mark_unknown(field: AnyField) -> AnyField:
    """The field as one of which only nulls were seen."""
    return field.with_metadata({_KEY: b"unknown"})


def is_id(field: AnyField) -> bool:
    return (field.metadata or {}).get(_KEY) in (b"id", b"number-id")


def is_number_id(field: AnyField) -> bool:
    return (field.metadata or {}).get(_KEY) == b"number-id"


def is_json(field: AnyField) -> bool:
    return (field.metadata or {}).get(_KEY) == b"json"


def is_unknown(field: AnyField) -> bool:
    return (field.metadata or {}).get(_KEY) == b"unknown"
