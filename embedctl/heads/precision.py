"""How vectors are stored: float32 to a smaller vector type. numpy only.

Enters: float32 (N, C). Leaves: (N, C) in the type's numpy dtype; for the binary types (N, ceil(C / 8)), packed. Same
numbers as sentence-transformers' `quantize_embeddings`. Refuses: integer types without ranges; float16 overflow is
told by `overflows`, never stored as infinity.
"""

from __future__ import annotations

import numpy as np

from embedctl.errors import EncoderError, UsageError
from embedctl.spec import VECTOR_TYPES

_FLOAT16_MAX = float(np.finfo(np.float16).max)


def calibrate(vectors: np.ndarray) -> np.ndarray:
    """float32 (2, C): least and greatest value of each dimension over the sample (N, C) with N >= 2.

    Rows that are not finite do not count. :raises EncoderError: fewer than two rows are left.
    """
    rows = vectors[np.isfinite(vectors).all(axis=1)]
    if len(rows) < 2:
        raise EncoderError(
            f"integer vectors need a sample of at least 2 rows to find their ranges, got {len(rows)}",
            hint="--vector-type float32",
        )
    return np.stack([rows.min(axis=0), rows.max(axis=0)]).astype(np.float32)


def overflows(vectors: np.ndarray, vector_type: str) -> np.ndarray:
    """bool (N,): rows that the vector type cannot hold (float16 only)."""
    if vector_type != "float16":
        return np.zeros(len(vectors), dtype=bool)
    held: np.ndarray = (np.abs(vectors) >= _FLOAT16_MAX + 16).any(axis=1)
    return held


def quantize(vectors: np.ndarray, vector_type: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """Vectors in `vector_type`. `ranges`: float32 (2, C), for int8 and uint8; values outside are clipped to the ends.

    binary: bit set where > 0, packed high bit first, shifted by -128 into int8; ubinary: the same as uint8.

    :raises EncoderError: a row overflows float16. :raises UsageError: unknown type, or no ranges for an integer type.
    """
    x = np.asarray(vectors, dtype=np.float32)
    if vector_type == "float32":
        return x
    if vector_type == "float16":
        over = np.flatnonzero(overflows(x, vector_type))
        if len(over):
            raise EncoderError(f"row {over[0]}: a number is too large for float16", hint="--vector-type float32")
        return x.astype(np.float16)
    if vector_type in ("int8", "uint8"):
        return _buckets(x, vector_type, ranges)
    if vector_type in ("binary", "ubinary"):
        packed = np.packbits(x > 0, axis=-1)
        return packed if vector_type == "ubinary" else (packed ^ 0x80).view(np.int8)
    raise UsageError(f"--vector-type: {vector_type!r} is not one of {', '.join(VECTOR_TYPES)}")


def _buckets(x: np.ndarray, vector_type: str, ranges: np.ndarray | None) -> np.ndarray:
    """256 equal steps between each dimension's ends."""
    if ranges is None:
        raise UsageError(f"--vector-type {vector_type}: no ranges were found for it")
    ends = np.asarray(ranges, dtype=np.float32)
    if ends.shape != (2, x.shape[1]):
        raise UsageError(
            f"--vector-type {vector_type}: ranges have shape {ends.shape}, the vectors need (2, {x.shape[1]})"
        )
    steps = (ends[1] - ends[0]) / 255
    steps = np.where(steps == 0, 1, steps).astype(np.float32)
    levels = np.clip(np.floor((x - ends[0]) / steps), 0, 255)
    stored: np.ndarray = levels.astype(np.uint8) if vector_type == "uint8" else (levels - 128).astype(np.int8)
    return stored
