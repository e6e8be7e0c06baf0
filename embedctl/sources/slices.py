"""Cuts a corpus into slices, and picks its sample. Pure: no file is touched.

Enters: the segments of every file, in order, with their sizes. Leaves: slices without gap or overlap, order kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from embedctl.records import Segment, Slice, SourceFile

SizedSegment = tuple[Segment, int]
"""A segment and the bytes it takes, about."""


def size_segments(file: SourceFile, segments: Sequence[Segment]) -> list[SizedSegment]:
    """Each segment of one file with its size in bytes: exact for byte ranges, an even share for row ranges."""
    if len(segments) > 1 and segments[-1].end is None:
        ends = [s.end if s.end is not None else file.size_bytes for s in segments]
        return [(s, max(e - s.begin, 0)) for s, e in zip(segments, ends, strict=True)]
    share = file.size_bytes // max(len(segments), 1)
    return [(s, share) for s in segments]


def cut_slices(
    segments: Iterable[SizedSegment], target_bytes: int, *, max_segments: int = 4096, limit_rows: int | None = None
) -> list[Slice]:
    """Slices of about `target_bytes`, of whole segments, in order.

    A segment larger than the target is a slice of its own; small files share one. With `limit_rows` all is one slice,
    because only then is "the first n rows" the same for any number of workers.
    """
    if limit_rows is not None:
        every = tuple(segment for segment, _ in segments)
        return [Slice(index=0, segments=every, limit_rows=limit_rows)] if every else []
    out: list[Slice] = []
    held: list[Segment] = []
    num_bytes = 0
    for segment, size in segments:
        if held and (num_bytes + size > target_bytes or len(held) >= max_segments):
            out.append(Slice(index=len(out), segments=tuple(held)))
            held, num_bytes = [], 0
        held.append(segment)
        num_bytes += size
    if held:
        out.append(Slice(index=len(out), segments=tuple(held)))
    return out


def sample_mask(file_uri: str, positions: np.ndarray, fraction: float) -> np.ndarray:
    """bool (n,): true for about `fraction` of the rows, always the same ones for a file's URI and its positions.

    Splitmix64 (Steele, Lea, Flood 2014) over the position, seeded with the BLAKE2b hash of the URI: neither the order
    of files nor their number matters.
    """
    if fraction >= 1:
        return np.ones(len(positions), dtype=bool)
    seed = np.uint64(int.from_bytes(hashlib.blake2b(file_uri.encode(), digest_size=8).digest(), "little"))
    with np.errstate(over="ignore"):
        z = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z < np.uint64(int(fraction * 2**64))
