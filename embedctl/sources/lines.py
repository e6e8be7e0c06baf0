"""The one reader of lines: plain or compressed files and standard input, in bounded memory.

Enters: a `SourceFile` and a byte range. Leaves: `Line`s with decompressed byte offsets; rows before a break in a
compressed file come first, then the error. Refused: truncated or corrupt compression, UTF-16, and tables or compressed
files under another name.
A byte order mark is not part of the first line's content, but of its offset; empty lines are not lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from embedctl.errors import SourceError
from embedctl.records import Segment, SourceFile
from embedctl.sources.base import MAX_ROW_BYTES
from embedctl.sources.compression import decompress, plain
from embedctl.sources.files import STDIN
from embedctl.sources.stdin import standard_input

_BOM = b"\xef\xbb\xbf"
_OTHER_KINDS = (
    (b"\x1f\x8b\x08", "a gz file", "give it the ending .gz, or: zcat FILE | embedctl embed -"),
    (b"\x28\xb5\x2f\xfd", "a zst file", "give it the ending .zst, or: zstdcat FILE | embedctl embed -"),
    (b"BZh91AY&SY", "a bz2 file", "give it the ending .bz2, or: bzcat FILE | embedctl embed -"),
    (b"PAR1", "a Parquet file", "--format parquet"),
    (b"ARROW1\0\0", "an Arrow file", "--format arrow"),
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """offset: decompressed byte at which it begins. end: where the next begins. content: without the line end.

    `too_long`: it passes MAX_ROW_BYTES and its content was dropped.
    """

    offset: int
    end: int
    content: bytes
    too_long: bool


def can_seek(file: SourceFile) -> bool:
    """Whether a reader can enter the file in the middle without reading what comes before."""
    return file.compression is None and file.path != STDIN


def byte_segments(file: SourceFile, target_bytes: int) -> list[Segment]:
    """Even byte ranges of about `target_bytes`; one for the whole file where it cannot be entered in the middle."""
    if not can_seek(file) or file.size_bytes <= target_bytes:
        return [Segment(file=file.index)]
    count = round(file.size_bytes / target_bytes) or 1
    cuts = [file.size_bytes * i // count for i in range(count)]
    ends: list[int | None] = [*cuts[1:], None]
    return [Segment(file=file.index, begin=b, end=e) for b, e in zip(cuts, ends, strict=True)]


def read_lines(file: SourceFile, begin: int = 0, end: int | None = None) -> Iterator[Line]:
    """The lines whose first byte lies in [begin, end).

    :raises SourceError: the file cannot be read, its compression is broken, or it is no UTF-8 text.
    """
    # From the byte before: when it ends a line, the line at `begin` is ours; otherwise its rest is another's.
    origin = max(begin - 1, 0)
    for line in split_lines(_checked(file, chunks_from(file, origin), origin), origin, all_lines=False):
        if end is not None and line.offset >= end:
            return
        if line.offset >= begin:
            yield line


def read_physical_lines(file: SourceFile) -> Iterator[Line]:
    """Every line from the file's start, empty ones too, content with its line end (for CSV, where it may be data)."""
    return split_lines(_checked(file, chunks_from(file, 0), 0), 0, all_lines=True)


def head(file: SourceFile, max_bytes: int) -> bytes:
    """The first decompressed bytes, at most `max_bytes`, without disturbing a later reading.

    :raises SourceError: the file cannot be read so far, or it is no UTF-8 text.
    """
    out = bytearray()
    if file.path == STDIN:
        out += standard_input().peek(max_bytes)
    else:
        for chunk in chunks_from(file, 0):
            out += chunk
            if len(out) >= max_bytes:
                break
    first = bytes(out[:max_bytes])
    _refuse_other_kinds(file, first)
    return first


def chunks_from(file: SourceFile, offset: int) -> Iterator[bytes]:
    """Decompressed bytes from `offset` to the end, in bounded chunks."""
    if can_seek(file):
        yield from plain(file, offset)
        return
    source = standard_input().chunks() if file.path == STDIN else decompress(file)
    behind = offset
    for chunk in source:
        if behind >= len(chunk):
            behind -= len(chunk)
            continue
        yield chunk[behind:] if behind else chunk
        behind = 0


def _checked(file: SourceFile, chunks: Iterator[bytes], origin: int) -> Iterator[bytes]:
    """The chunks, after a look at the first one of a file."""
    first = b"" if origin else next(chunks, b"")
    _refuse_other_kinds(file, first)
    if first:
        yield first
    yield from chunks


def _refuse_other_kinds(file: SourceFile, first: bytes) -> None:
    if first.startswith(_UTF16):
        raise SourceError(
            f"{file.uri}: is UTF-16 text; only UTF-8 can be read",
            hint=f"iconv -f UTF-16 -t UTF-8 {os.path.basename(file.path)} > utf8.{file.format}",
        )
    for magic, kind, hint in _OTHER_KINDS:
        if first.startswith(magic):
            raise SourceError(f"{file.uri}: is {kind}, not {file.format} text", hint=hint)


def split_lines(chunks: Iterator[bytes], origin: int, *, all_lines: bool) -> Iterator[Line]:
    """Cut chunks into lines. Content over MAX_ROW_BYTES is dropped as it comes, only its length is kept."""
    parts: list[bytes] = []
    offset, held, dropped = origin, 0, 0
    for chunk in chunks:
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            if parts or dropped:
                size = held + dropped + len(piece) + 1
                too_long = dropped > 0 or size > MAX_ROW_BYTES
                line = _line(offset, offset + size, b"" if too_long else b"".join((*parts, piece)), too_long, all_lines)
                parts, held, dropped = [], 0, 0
            else:
                size = len(piece) + 1
                line = _line(offset, offset + size, piece, False, all_lines)
            offset += size
            if line is not None:
                yield line
        if pieces[-1]:
            parts.append(pieces[-1])
            held += len(pieces[-1])
        if held > MAX_ROW_BYTES:
            dropped += held
            parts, held = [], 0
    size = held + dropped
    if size:
        last = _line(offset, offset + size, b"".join(parts) if not dropped else b"", dropped > 0, all_lines, final=True)
        if last is not None:
            yield last


def _line(
    offset: int, end: int, content: bytes, too_long: bool, all_lines: bool, *, final: bool = False
) -> Line | None:
    if offset == 0 and content.startswith(_BOM):
        content = content[3:]
    if all_lines:
        return Line(offset, end, content if final else content + b"\n", too_long)
    if content.endswith(b"\r"):
        content = content[:-1]
    return Line(offset, end, content, too_long) if content or too_long else None
