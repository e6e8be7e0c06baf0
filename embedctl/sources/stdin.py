"""Standard input as a file that is read once, after a look at its first bytes.

Enters: the process's standard input. Leaves: chunks of bytes in order. Refused: a second reading, a terminal.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

from embedctl.errors import SourceError, UsageError

CHUNK_BYTES = 1 << 16


class StandardInput:
    """Bytes that can be peeked at before they are read, and read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._head = bytearray()
        self._taken = False
        self._lock = threading.Lock()

    def peek(self, num_bytes: int) -> bytes:
        """The first `num_bytes`, fewer only at the end. They are still there for `chunks`."""
        with self._lock:
            if self._taken:
                raise SourceError("-: standard input can be read only once", hint="save it to a file first")
            while len(self._head) < num_bytes:
                more = self._stream.read(min(CHUNK_BYTES, num_bytes - len(self._head)))
                if not more:
                    break
                self._head += more
            return bytes(self._head[:num_bytes])

    def chunks(self) -> Iterator[bytes]:
        """All bytes from the first on.

        :raises SourceError: asked for a second time.
        """
        with self._lock:
            if self._taken:
                raise SourceError("-: standard input can be read only once", hint="save it to a file first")
            self._taken = True
            head, self._head = bytes(self._head), bytearray()
        if head:
            yield head
        # One call hands over what has arrived: a slow producer's rows are not held back until a chunk is full.
        read = getattr(self._stream, "read1", self._stream.read)
        while chunk := read(CHUNK_BYTES):
            yield chunk


_current: tuple[object, StandardInput] | None = None


def standard_input() -> StandardInput:
    """The process's standard input, the same object each time, as long as `sys.stdin` is the same.

    :raises UsageError: it is a terminal or closed.
    """
    global _current
    if _current is None or _current[0] is not sys.stdin:
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise UsageError("-: nothing is piped into standard input", hint="cat corpus.jsonl | embedctl embed -")
        _current = (sys.stdin, StandardInput(_unbuffered(sys.stdin.buffer)))
    return _current[1]


def _unbuffered(stream: BinaryIO) -> BinaryIO:
    """The stream without its buffer, whose lock a waiting reader would hold when the interpreter ends: that aborts it.

    Made blocking, since a read that finds nothing yet would look like the end.
    """
    raw: BinaryIO | None = getattr(stream, "raw", None)
    if raw is None:
        return stream
    os.set_blocking(raw.fileno(), True)
    return raw
