"""Arrow columns as outputs, bad rows told apart.

Enters: a column of FixedSizeList or List (dense), Struct<indices, values> (sparse), List of lists (multivector).
Leaves: values in their stored type, and why a row is bad: null, of another size, not finite, zero, or too large for the
type. Python numbers are never made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedctl.outputs import Multivector, OutputKind, OutputSpec, Sparse, Values, all_zero, not_finite

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]
else:  # the class takes no parameters at run time
    AnyArray = pa.Array

FLOATS = ("float32", "float16")
PACKED = ("binary", "ubinary")
_STORED: dict[str, type[np.generic]] = {
    "float32": np.float32, "float16": np.float16, "int8": np.int8, "uint8": np.uint8, "binary": np.int8,
    "ubinary": np.uint8,
}  # fmt: skip
_FLOAT32 = np.finfo(np.float32)
_MAX_INDEX = (1 << 32) - 1

Reasons = dict[int, str]


def kind_of(kind: Any) -> OutputKind | None:
    """What a column of this type holds; None: no vectors."""
    if pa.types.is_struct(kind):
        found = {f.name: f.type for f in kind}
        pair = [found.get(name) for name in ("indices", "values")]
        return "sparse" if all(t is not None and _is_list(t) and _is_number(t.value_type) for t in pair) else None
    if not _is_list(kind):
        return None
    if _is_list(kind.value_type):
        return "multivector" if _is_number(kind.value_type.value_type) else None
    return "dense" if _is_number(kind.value_type) else None


def width_of(spec: OutputSpec) -> int:
    """Numbers of a stored vector: bits are packed by eight."""
    return -(-spec.dim // 8) if spec.vector_type in PACKED else spec.dim


def values_of(column: AnyArray, spec: OutputSpec) -> tuple[Values, Reasons]:
    """n rows as `spec` stores them, and row -> why it is bad. A bad row's own value is zero or empty."""
    if spec.kind == "sparse":
        return _sparse(column, spec)
    if spec.kind == "multivector":
        return _multivector(column, spec)
    if spec.kind == "score":
        flat = column if pa.types.is_floating(column.type) else _flat(column, np.ones(len(column), dtype=bool))
        return _numpy(flat).astype(np.float32).reshape(-1, spec.dim), {}
    return _dense(column, spec)


def _dense(column: AnyArray, spec: OutputSpec) -> tuple[np.ndarray, Reasons]:
    width = width_of(spec)
    lengths = _lengths(column)
    bad: Reasons = dict.fromkeys(np.flatnonzero(lengths < 0).tolist(), "the vector is null")
    bad |= {
        i: f"the vector has {lengths[i]} numbers, not {width}"
        for i in np.flatnonzero((lengths >= 0) & (lengths != width)).tolist()
    }
    good = lengths == width
    flat = _flat(column, good)
    if flat.null_count:
        rows = np.flatnonzero(good)[np.unique(_nulls(flat) // width)]
        bad |= dict.fromkeys(rows.tolist(), "the vector has a null in it")
        good[rows] = False
        flat = _flat(column, good)
    numbers = _numpy(flat).reshape(-1, width)
    stored, reasons = _stored(numbers, spec)
    rows = np.flatnonzero(good)
    bad |= {int(rows[i]): reason for i, reason in reasons.items()}
    if good.all():
        return stored, bad
    out = np.zeros((len(column), width), dtype=stored.dtype)
    out[good] = stored
    return out, bad


def _stored(numbers: np.ndarray, spec: OutputSpec) -> tuple[np.ndarray, Reasons]:
    """(n, C) of any number type to the stored type, and the rows that it does not fit or that are no vectors."""
    kind = spec.vector_type
    wanted = np.dtype(_STORED[kind])
    bad: Reasons = {}
    if numbers.dtype.kind == "f":
        bad |= dict.fromkeys(np.flatnonzero(not_finite(numbers)).tolist(), "the vector has NaN or Inf")
    with np.errstate(over="ignore", invalid="ignore"):
        stored = numbers.astype(wanted, copy=False)
    changed = ~np.isfinite(stored).all(axis=1) if wanted.kind == "f" else (stored != numbers).any(axis=1)
    for row in np.flatnonzero(changed).tolist():
        bad.setdefault(row, f"the vector does not fit in {kind}")
    if kind in FLOATS:
        for row in np.flatnonzero(all_zero(stored)).tolist():
            bad.setdefault(row, "the vector is zero")
        squares = np.square(stored, dtype=np.float64).sum(axis=1)  # which stores take in float32
        for row in np.flatnonzero((squares > _FLOAT32.max) | (squares < _FLOAT32.tiny)).tolist():
            bad.setdefault(row, "the vector's length is outside of what float32 can square")
    return stored, bad


def _sparse(column: AnyArray, spec: OutputSpec) -> tuple[Sparse, Reasons]:
    pair = [pc.struct_field(column, name) for name in ("indices", "values")]
    lengths = _lengths(pair[0])
    bad: Reasons = dict.fromkeys(np.flatnonzero((lengths < 0) | (_lengths(pair[1]) < 0)).tolist(), "the vector is null")
    for i in np.flatnonzero(lengths != _lengths(pair[1])).tolist():
        bad.setdefault(i, f"the vector has {lengths[i]} indices for {_lengths(pair[1])[i]} values")
    good = np.ones(len(column), dtype=bool)
    good[list(bad)] = False
    row = np.repeat(np.flatnonzero(good), lengths[good])
    flat = [_flat(one, good) for one in pair]
    for hole in np.unique(row[np.concatenate([_nulls(one) for one in flat])]).tolist():
        bad[hole] = "the vector has a null in it"
    indices, values = (_numpy(_filled(one, 0)) for one in flat)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(np.float32)
    outside = (indices < 0) | (indices > min(_MAX_INDEX, spec.dim - 1)) | (indices != np.floor(indices))
    order = np.lexsort((indices, row))
    twice = np.zeros(len(row), dtype=bool)
    twice[1:] = (np.diff(row[order]) == 0) & (np.diff(indices[order]) == 0)
    for flaw, why in (
        (outside, f"the vector has an index that is not from 0 to {spec.dim - 1}"),
        (~np.isfinite(stored), "the vector has NaN or Inf"),
    ):
        for i in np.unique(row[flaw]).tolist():
            bad.setdefault(i, why)
    for i in np.unique(row[order][twice]).tolist():
        bad.setdefault(i, "the vector has an index twice")
    keep = order[~np.isin(row[order], np.fromiter(bad, dtype=np.int64, count=len(bad)))]
    counts = np.bincount(row[keep], minlength=len(column))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    out = Sparse(offsets=offsets, indices=indices[keep].astype(np.uint32), values=stored[keep])
    return out, _with_zeros(out, bad)


def _multivector(column: AnyArray, spec: OutputSpec) -> tuple[Multivector, Reasons]:
    lengths = _lengths(column)
    bad: Reasons = dict.fromkeys(np.flatnonzero(lengths < 0).tolist(), "the vector is null")
    good = lengths >= 0
    row = np.repeat(np.flatnonzero(good), lengths[good])
    inner = _flat(column, good)
    widths = _lengths(inner)
    for i in np.flatnonzero(widths != spec.dim).tolist():
        size = "a null" if widths[i] < 0 else f"one of {widths[i]} numbers, not {spec.dim}"
        bad.setdefault(int(row[i]), f"among its vectors is {size}")
    fits = ~np.isin(row, np.fromiter(bad, dtype=np.int64, count=len(bad)))
    flat = _flat(inner, fits)
    row = row[fits]
    if flat.null_count:
        bad |= dict.fromkeys(row[np.unique(_nulls(flat) // spec.dim)].tolist(), "the vector has a null in it")
        flat = _filled(flat, 0)
    numbers = _numpy(flat).reshape(-1, spec.dim)
    stored, reasons = _stored(numbers, spec)
    for i, reason in reasons.items():
        if reason != "the vector is zero":  # one token's may be; all of them together may not
            bad.setdefault(int(row[i]), reason)
    keep = ~np.isin(row, np.fromiter(bad, dtype=np.int64, count=len(bad)))
    counts = np.bincount(row[keep], minlength=len(column))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    out = Multivector(offsets=offsets, vectors=stored[keep])
    return out, _with_zeros(out, bad)


def _with_zeros(values: Sparse | Multivector, bad: Reasons) -> Reasons:
    """Rows without any number that is not zero are bad too."""
    return {**dict.fromkeys(np.flatnonzero(all_zero(values)).tolist(), "the vector is zero"), **bad}


def _lengths(column: AnyArray) -> np.ndarray:
    """int64 (n,): entries of each list, -1 for null."""
    return _numpy(_filled(pc.list_value_length(column), -1)).astype(np.int64)


def _flat(column: AnyArray, rows: np.ndarray) -> AnyArray:
    """The entries of the lists where `rows` is true, end to end."""
    chosen = column if rows.all() and not column.null_count else column.filter(pa.array(rows))
    flat: AnyArray = pc.list_flatten(chosen)
    return flat


def _filled(array: AnyArray, value: int) -> AnyArray:
    filled: AnyArray = pc.fill_null(array, value)  # type: ignore[arg-type]
    return filled


def _nulls(flat: AnyArray) -> np.ndarray:
    found: np.ndarray = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
    return found


def _numpy(flat: AnyArray) -> np.ndarray:
    numbers: np.ndarray = flat.to_numpy(zero_copy_only=False)
    return numbers


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)
