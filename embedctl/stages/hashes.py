"""Content hashes: how a later run knows, without the text, whether a row is the one it was.

Enters: ids, rendered texts, kept columns. Leaves: uint64 arrays, the same on every machine and under every version of
the libraries: BLAKE2b over UTF-8 for text, splitmix64 over the bits of numbers, canonical JSON for nested cells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embedctl.sinks.payload import payloads

if TYPE_CHECKING:
    AnyColumn = pa.ChunkedArray[Any]
else:  # the class takes no parameters at run time
    AnyColumn = pa.ChunkedArray

_NULL = np.uint64(0x6E756C6C6E756C6C)


def row_hashes(texts: Iterable[str], kept: pa.Table) -> np.ndarray:
    """uint64 (n, 2): of each row's text, and of its kept columns. Texts are looked at one by one."""
    text_64 = text_hashes(texts)
    kept_64 = kept_hashes(kept) if kept.num_columns else np.zeros(len(text_64), dtype=np.uint64)
    return np.stack([text_64, kept_64], axis=1)


def id_hashes(ids: Sequence[str]) -> np.ndarray:
    """uint64 (n, 2): 128 bits of each id."""
    digests = b"".join(hashlib.blake2b(i.encode("utf-8", "surrogatepass"), digest_size=16).digest() for i in ids)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64).reshape(-1, 2)


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """uint64 (n,)"""
    digests = b"".join(hashlib.blake2b(t.encode("utf-8", "surrogatepass"), digest_size=8).digest() for t in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def kept_hashes(kept: pa.Table) -> np.ndarray:
    """uint64 (n,): of all columns in their order; types and names are not part of it, for the plan fixes them."""
    found = np.zeros(kept.num_rows, dtype=np.uint64)
    for column in kept.columns:
        found = _mixed(found ^ _cells(column))
    return found


def _cells(column: AnyColumn) -> np.ndarray:
    """uint64 (n,): of each cell of one column."""
    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        return _cells(column.cast(kind.value_type))
    if types.is_null(kind):
        return np.full(len(column), _NULL, dtype=np.uint64)
    if types.is_string(kind) or types.is_large_string(kind):
        return _by_value(column)
    bits = _bits(column)
    if bits is None:
        rows = payloads(pa.table({"": column}))
        return text_hashes([json.dumps(row[""], ensure_ascii=False, separators=(",", ":")) for row in rows])
    hashed = _mixed(bits)
    if column.null_count:
        hashed[column.is_null().to_numpy()] = _NULL
    return hashed


def _by_value(column: AnyColumn) -> np.ndarray:
    """Each distinct text is hashed once; null is no text."""
    if not len(column):
        return np.zeros(0, dtype=np.uint64)
    coded: Any = pa.concat_arrays(column.chunks).dictionary_encode()
    values = np.append(text_hashes(coded.dictionary.to_pylist()), _NULL)
    found: np.ndarray = values[coded.indices.fill_null(len(values) - 1).to_numpy()]
    return found


def _bits(column: AnyColumn) -> np.ndarray | None:
    """The value of each cell as 64 bits, null as 0; None where a cell is more than one number."""
    types, kind = pa.types, column.type
    if types.is_floating(kind):
        floats: np.ndarray = column.cast(pa.float64()).fill_null(pa.scalar(0.0)).to_numpy()
        return floats.view(np.uint64)
    if types.is_date32(kind) or types.is_time32(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind) or types.is_date64(kind) or types.is_time64(kind) or types.is_duration(kind):
        column = column.cast(pa.int64())
    elif types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not types.is_integer(kind):
        return None
    numbers: np.ndarray = column.fill_null(pa.scalar(0, column.type)).to_numpy()
    return numbers.astype(np.uint64 if types.is_unsigned_integer(kind) else np.int64).view(np.uint64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    z = bits + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = z ^ (z >> np.uint64(31))
    return found
