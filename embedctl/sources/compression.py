"""Streaming decompression of gz (several members), zst (several frames) and bz2 (several streams).

Enters: a `SourceFile`. Leaves: its decompressed bytes in bounded chunks. Refused: what is truncated, corrupt or
followed by something else; what could be read before comes first.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from typing import Protocol

from embedctl.errors import SourceError
from embedctl.records import SourceFile

CHUNK_BYTES = 1 << 18
# One kilobyte of zstd can hold 32 MiB of one repeated letter; the decompressor has no output limit of its own.
_ZST_FEED_BYTES = 1 << 10


def plain(file: SourceFile, offset: int) -> Iterator[bytes]:
    """The bytes of an uncompressed file from `offset` on."""
    try:
        with open(file.path, "rb", buffering=0) as stream:
            stream.seek(offset)
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except OSError as exc:
        raise SourceError(f"{file.uri}: cannot be read: {exc.strerror}") from exc


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gz:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            out = self._inner.decompress(data, CHUNK_BYTES)
            if out:
                yield out
            data = self._inner.unconsumed_tail
            if self.eof or (not data and len(out) < CHUNK_BYTES):
                return


class _Bz2:
    def __init__(self) -> None:
        self._inner = bz2.BZ2Decompressor()

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            out = self._inner.decompress(data, CHUNK_BYTES)
            if out:
                yield out
            data = b""
            if self.eof or self._inner.needs_input:
                return


class _Zst:
    def __init__(self) -> None:
        import zstandard

        # 2 GiB windows are what `zstd --long=31` writes, as public comment dumps are.
        self._inner = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._after = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data + self._after

    def feed(self, data: bytes) -> Iterator[bytes]:
        for i in range(0, len(data), _ZST_FEED_BYTES):
            out = self._inner.decompress(data[i : i + _ZST_FEED_BYTES])
            if out:
                yield out
            if self.eof:
                self._after = data[i + _ZST_FEED_BYTES :]
                return


_DECOMPRESSORS: dict[str, type[_Gz] | type[_Bz2] | type[_Zst]] = {"gz": _Gz, "bz2": _Bz2, "zst": _Zst}


def decompress(file: SourceFile) -> Iterator[bytes]:
    """All members or frames one after another. Zero bytes after the last one are padding."""
    assert file.compression is not None
    make = _DECOMPRESSORS[file.compression]
    inner: _Decompressor | None = None
    members, produced = 0, 0
    try:
        for data in plain(file, 0):
            while data:
                if inner is None:
                    data = data.lstrip(b"\0") if members else data
                    if not data:
                        break
                    inner = make()
                for out in inner.feed(data):
                    produced += len(out)
                    yield out
                data = inner.unused_data if inner.eof else b""
                if inner.eof:
                    inner, members = None, members + 1
    except SourceError:
        raise
    except Exception as exc:  # zlib.error, OSError, EOFError, ZstdError: the codecs share no base
        raise _broken(file, f"is not valid {file.compression} data ({_first_line(exc)})", produced) from exc
    if inner is not None or (members == 0 and file.size_bytes):
        raise _broken(file, f"is a truncated {file.compression} file: it ends in the middle of a stream", produced)


def _first_line(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0]


def _broken(file: SourceFile, what: str, produced: int) -> SourceError:
    return SourceError(
        f"{file.uri}: {what}; {produced} decompressed bytes could be read",
        hint="copy or download the file again, then run the same command",
    )
