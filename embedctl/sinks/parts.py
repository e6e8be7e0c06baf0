"""Names of Parquet parts, and what footers carry beside the record: positions and content hashes of live rows.

Enters: window keys, revisions, arrays of a number a row. Leaves: file names, short text, and both back again.
"""

from __future__ import annotations

import base64
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embedctl.errors import BooksError
from embedctl.outputs import Multivector, Values
from embedctl.records import WindowKey

if TYPE_CHECKING:
    AnyArray = pa.Array[Any]
else:  # the class takes no parameters at run time
    AnyArray = pa.Array

_NAME = re.compile(r"g(\d{4,})-(\d{5,})-(\d{6,})(?:-d(\d*))?\.parquet")


def part_name(key: WindowKey, revision: int) -> str:
    """`<window>.parquet`, then `-d`, `-d2`, `-d3` for what replaces it."""
    return f"{key.stem}{'' if not revision else '-d' if revision == 1 else f'-d{revision}'}.parquet"


def window_in(name: str) -> tuple[WindowKey, int] | None:
    """The window and revision that a part's name tells; None where it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    key = WindowKey(generation=int(match[1]), slice=int(match[2]), window=int(match[3]))
    return key, 0 if match[4] is None else int(match[4] or 1)


def unreadable(path: Path, exc: Exception) -> BooksError:
    """What to say of a part that is there and cannot be read."""
    return BooksError(
        f"{path}: not a readable part ({exc})",
        hint="move it away: the next embedctl sync, or the command that made it, embeds its rows again",
    )


def packed_positions(positions: np.ndarray) -> bytes:
    """int64 (n,) as text: consecutive ones take next to nothing."""
    return base64.b64encode(zlib.compress(np.diff(positions, prepend=0).astype("<i8").tobytes(), 1))


def unpacked_positions(packed: bytes | None) -> np.ndarray:
    if not packed:
        return np.zeros(0, np.int64)
    return np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype="<i8"))


def packed_hashes(hashes: np.ndarray) -> bytes:
    """uint64 (n, 2) as text. Hashes do not compress, but for columns where nothing is kept."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(hashes.T).astype("<u8").tobytes(), 1))


def unpacked_hashes(packed: bytes) -> np.ndarray:
    flat = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype="<u8").astype(np.uint64)
    return np.ascontiguousarray(flat.reshape(2, -1).T)


def output_array(values: Values) -> AnyArray:
    """n values as a column, without a copy and without Python numbers: FixedSizeList<C>; of sparse vectors
    Struct<indices: List<uint32>, values: List<float32>>, of multivectors List<FixedSizeList<C>>."""
    if isinstance(values, np.ndarray):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    offsets = pa.array(values.offsets, pa.int32())
    if isinstance(values, Multivector):
        return pa.ListArray.from_arrays(offsets, output_array(values.vectors))
    lists = [pa.ListArray.from_arrays(offsets, pa.array(flat)) for flat in (values.indices, values.values)]
    return pa.StructArray.from_arrays(lists, names=["indices", "values"])


def whole_column(table: pa.Table, name: str) -> AnyArray:
    """A column in one piece."""
    column: Any = table.column(name)
    whole: AnyArray = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return whole
