"""Turns a cell into the bytes of its picture or sound.

Enters: a column of bytes, of structs of bytes and path as `datasets` writes them, or of text: a path (relative to the
corpus file, or absolute) or a `data:` URI. Leaves: one string a row, as `media` makes them, each read only when it is
asked for, so that the files of a block never lie in memory together. A row without content is told by `problem`.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from embedctl.media import MAX_BYTES, WORDS, Kind, Unreadable, as_bytes, as_failure, as_text, failure_of
from embedctl.records import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRule:
    """How rows' pictures or sounds are found. `column` is one of the planned schema."""

    column: str
    kind: Kind

    def render(self, batch: pa.RecordBatch, file: SourceFile) -> Sequence[str | None]:
        """One a row, in a sequence that reads a row's content when it is looked at; None for a null cell."""
        cells = batch.column(batch.schema.get_field_index(self.column))
        return _Contents(cells, Path(file.path).parent, WORDS[self.kind])

    def problem(self, text: str | None) -> str | None:
        """Why the row cannot be embedded, as far as a header tells, or None."""
        word = WORDS[self.kind]
        if text is None:
            return f"the {word} is null"
        if (failure := failure_of(text)) is not None:
            return failure
        if len(text) > MAX_BYTES:
            return f"the {word} is {len(text):,} bytes; at most {MAX_BYTES:,}"
        try:
            _header_reader(self.kind)(as_bytes(text))
        except Unreadable as exc:
            return str(exc)
        return None


def _header_reader(kind: Kind) -> Callable[[bytes], Any]:
    if kind == "image":
        from embedctl.media.pictures import size_of

        return size_of
    from embedctl.media.sounds import seconds_of

    return seconds_of


class _Contents(Sequence[str | None]):
    """The contents of a column's cells. Remembers the last one only."""

    def __init__(self, cells: pa.Array[Any], folder: Path, word: str) -> None:
        self._cells, self._folder, self._word = cells, folder, word
        self._last: tuple[int, str | None] = (-1, None)

    def __len__(self) -> int:
        return len(self._cells)

    @overload
    def __getitem__(self, i: int) -> str | None: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[str | None]: ...

    def __getitem__(self, i: int | slice) -> str | Sequence[str | None] | None:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        if self._last[0] != i:
            try:
                self._last = (i, self._content(self._cells[i].as_py()))
            except Unreadable as exc:
                self._last = (i, as_failure(str(exc)))
        return self._last[1]

    def __iter__(self) -> Iterator[str | None]:
        return (self[n] for n in range(len(self)))

    def _content(self, cell: Any) -> str | None:
        if isinstance(cell, dict):
            held, path = cell.get("bytes"), cell.get("path")
            cell = path if held is None else held
        if cell is None:
            return None
        return as_text(cell if isinstance(cell, bytes) else self._read(str(cell)))

    def _read(self, name: str) -> bytes:
        if name.startswith("data:"):
            return _of_data_uri(name, self._word)
        if not name or "\0" in name:
            raise Unreadable(f"the {self._word}'s path is empty" if not name else f"{name[:80]!a}: not a path")
        if "://" in name:
            raise Unreadable(f"{name[:200]}: a URL; only files that are here are read")
        path = self._folder / name
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise Unreadable(f"{name[:200]}: not a regular file")
            if found.st_size > MAX_BYTES:
                raise Unreadable(f"{name[:200]}: {found.st_size:,} bytes; at most {MAX_BYTES:,}")
            return path.read_bytes()
        except OSError as exc:
            raise Unreadable(f"{name[:200]}: cannot be read: {exc.strerror or exc}") from exc


def _of_data_uri(text: str, word: str) -> bytes:
    """RFC 2397, base64 or percent-encoded."""
    head, comma, body = text.partition(",")
    try:
        if not comma:
            raise ValueError("it has no comma")
        return base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote_to_bytes(body)
    except (ValueError, binascii.Error) as exc:
        raise Unreadable(f"the {word}'s data: URI cannot be read: {exc}") from exc
