"""One LanceDB table on disk: opened when needed, every call within a time, every commit made durable.

Enters: the folder of a database, a table's name. Leaves: a `Table`. LanceDB publishes a version by renaming a file,
which survives a killed process; new files are flushed to the disk here, so that they survive a power cut too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.storage import sink_error

if TYPE_CHECKING:
    from lancedb.db import DBConnection

CALL_S, BUILD_S = 600.0, 12 * 3600.0
TRIES, FLUSHES = 8, 4
_FOLDERS = ("data", "_deletions", "_transactions", "_versions", "_indices", "_refs/tags")
_T = TypeVar("_T")
Lance = Any
"""A LanceDB table."""


class Table:
    """A process that forks opens it anew: LanceDB's threads do not follow."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = f"lancedb://{folder / name}"
        self.table, self.folder = name, folder
        self._root = folder / f"{name}.lance"
        self._known: set[str] = set()
        self._database: DBConnection | None = None
        self._opened: Lance = None
        self._owner = os.getpid()

    def exists(self) -> bool:
        """Whether it has a version; one that was killed while it was made has none."""
        return any((self._root / "_versions").glob("*.manifest"))

    def make(self, schema: pa.Schema) -> None:
        self._run(lambda: self._db().create_table(self.table, schema=schema), CALL_S)
        self._sync()

    def ask(self, call: Callable[[Lance], _T], *, within_s: float = CALL_S) -> _T:
        """What the call answers. :raises SinkError: LanceDB refuses, or does not answer in time."""
        return self._run(lambda: call(self._latest()), within_s)

    def change(self, call: Callable[[Lance], _T], *, within_s: float = CALL_S) -> _T:
        """A commit, durable when this returns; again where another writer was quicker. :raises SinkError: as `ask`."""
        for number in range(TRIES):
            try:
                done = self._run(lambda: call(self._latest()), within_s)
                break
            except SinkError as exc:
                if "onflict" not in str(exc) or number == TRIES - 1:
                    raise
                time.sleep(random.uniform(0.05, 0.2) * 2**number)
        self._sync()
        return done

    def close(self) -> None:
        self._opened = self._database = None

    def _db(self) -> DBConnection:
        import lancedb

        if self._owner != os.getpid():
            self._owner, self._database, self._opened = os.getpid(), None, None
        if self._database is None:
            self._database = lancedb.connect(str(self.folder))
        return self._database

    def _latest(self) -> Lance:
        database = self._db()
        if self._opened is None:
            self._opened = database.open_table(self.table)
        else:
            self._opened.checkout_latest()
        return self._opened

    def _run(self, call: Callable[[], _T], within_s: float) -> _T:
        """The call's result, waited for no longer than this: its engine has been seen to wait for itself for ever."""
        box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                box.put((call(), None))
            except BaseException as exc:
                box.put((None, exc))

        threading.Thread(target=work, daemon=True, name="lancedb").start()
        try:
            done, failed = box.get(timeout=within_s)
        except queue.Empty as exc:
            raise SinkError(
                f"{self.name}: no answer within {within_s:g} s",
                hint="run the same command again: it goes on where it stopped",
            ) from exc
        if failed is not None:
            raise self._told(failed) from failed
        result: _T = done
        return result

    def _told(self, exc: BaseException) -> BaseException:
        if isinstance(exc, (SinkError, UsageError)):
            return exc
        if isinstance(exc, OSError):
            return sink_error(self._root, exc)
        text = " ".join(str(exc).split())[:500]
        full = "No space left" in text
        return SinkError(
            f"{self.name}: LanceDB refused: {text}",
            hint="free some space, then run the same command again: it goes on where it stopped" if full else None,
        )

    def _sync(self) -> None:
        """Flush what is new in the table's folders since this process last looked."""
        new: list[str] = []
        for folder in _FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                found = os.scandir(self._root / folder)
                new += [e.path for e in found if e.path not in self._known and e.is_file()]
        with ThreadPoolExecutor(FLUSHES) as at_once:
            list(at_once.map(_flush, [*new, *{os.path.dirname(path) for path in new}]))
        self._known.update(new)


def _flush(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return  # another writer compacted it away
    except OSError as exc:
        raise sink_error(path, exc) from exc
