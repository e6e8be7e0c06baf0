"""Brings an Arrow column of a file to the planned type, row by row where that fails.

Enters: an array as a file holds it (any string kind, dictionary, binary, narrower numbers). Leaves: the planned type
and, for rows that do not fit or are not valid UTF-8, a null and the reason.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from embedctl.sources.base import MAX_ROW_BYTES
from embedctl.sources.roles import AnyArray, AnyField, is_id


def take_column(batch: pa.RecordBatch, name: str) -> AnyArray:
    """The column `name`, or the struct field that the dotted path `name` leads to.

    :raises KeyError: no such column.
    """
    if name in batch.schema.names:
        return batch.column(batch.schema.names.index(name))
    top, _, rest = name.partition(".")
    if top not in batch.schema.names or not rest:
        raise KeyError(name)
    array = batch.column(top)
    for field in rest.split("."):
        if not pa.types.is_struct(array.type) or array.type.get_field_index(field) < 0:
            raise KeyError(name)
        array = pc.struct_field(array, field)
    return array


def path_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """The type that `take_column` would find, None where there is no such column."""
    try:
        found: pa.DataType = take_column(_empty(schema), name).type
        return found
    except KeyError:
        return None


def conform(array: AnyArray, field: AnyField) -> tuple[AnyArray, dict[int, str]]:
    """(array of exactly `field.type`, row -> why it could not be read); such rows are null."""
    plain = decode_dictionaries(array)
    try:
        out = _cast(plain, field)
        out.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return _row_by_row(plain, field)
    if len(out) == 1 and out.nbytes > MAX_ROW_BYTES:
        return pa.nulls(1, field.type), {0: f"column {field.name!r} is larger than {MAX_ROW_BYTES >> 20} MiB"}
    return out, {}


def decode_dictionaries(array: AnyArray) -> AnyArray:
    """A dictionary-encoded, run-end-encoded or extension array as plain values."""
    if isinstance(array.type, pa.BaseExtensionType):
        return decode_dictionaries(array.cast(array.type.storage_type))
    if pa.types.is_dictionary(array.type):
        plain: AnyArray = array.cast(array.type.value_type)
        return decode_dictionaries(plain)
    if pa.types.is_run_end_encoded(array.type):
        decoded: AnyArray = pc.run_end_decode(array)  # type: ignore[attr-defined]
        return decode_dictionaries(decoded)
    return array


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def _cast(array: AnyArray, field: AnyField) -> AnyArray:
    if array.type == field.type:
        return array
    if pa.types.is_null(array.type):
        nulls: AnyArray = pa.nulls(len(array), field.type)
        return nulls
    if is_id(field) and pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    out: AnyArray = array.cast(field.type)
    return out


def _row_by_row(array: AnyArray, field: AnyField) -> tuple[AnyArray, dict[int, str]]:
    pieces: list[AnyArray] = []
    errors: dict[int, str] = {}
    for row in range(len(array)):
        one = array.slice(row, 1)
        try:
            # Casting a slice of a damaged array copies nothing of its neighbours.
            out = _cast(one, field)
            out.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as exc:
            errors[row] = _reason(one, field, exc)
            out = pa.nulls(1, field.type)
        pieces.append(out)
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, field.type), errors


def _reason(one: AnyArray, field: AnyField, exc: Exception) -> str:
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    kind = as_bytes.get(one.type)
    raw = (one.view(kind) if kind is not None else one)[0].as_py()
    if isinstance(raw, bytes):
        try:
            decoded = raw.decode("utf-8")
        except UnicodeDecodeError as bad:
            return f"column {field.name!r} is not valid UTF-8 (byte {bad.start})"
        raw = raw if kind is None else decoded
    elif "UTF8" in str(exc):
        return f"column {field.name!r} holds text that is not valid UTF-8"
    return f"column {field.name!r} holds {shorten(raw)}, which does not fit {field.type}"


def shorten(value: object) -> str:
    """A value as shown in a reason: at most 40 characters, no control characters."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
