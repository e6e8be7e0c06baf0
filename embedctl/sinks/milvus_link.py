"""The way to a Milvus server, or to Milvus Lite in this process: one client's calls, its errors put in our words.

Enters: method names of `MilvusClient`. Leaves: their results. The client itself tries again what is over a rate
limit or cut off, until the time for a request is over; a server that is away is waited for here.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from embedctl.errors import Locked, SinkError, Transient, UsageError
from embedctl.storage import sink_error

if TYPE_CHECKING:
    from pymilvus import MilvusClient  # type: ignore[import-untyped]

TIMEOUT_S = 120
CONNECT_S = 10.0
PATIENCE_S, FIRST_S, LONGEST_S = 300.0, 0.1, 15.0
_DEFAULT_PORT = 19530


class Away(SinkError, Transient):
    """Nobody answers just now."""


class NotLoaded(SinkError):
    """The collection must be loaded into memory before it is read: servers forget it when they restart."""

    code: ClassVar[int] = 101


class ServerLink:
    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._scheme = "https" if parts.scheme.endswith("https") else "http"
        self._address = f"{parts.hostname}:{parts.port or _DEFAULT_PORT}"
        self.name = f"{parts.scheme}://{self._address}"
        self._timeout_s = timeout_s()
        self._client: MilvusClient | None = None
        self._met = False

    def client(self) -> MilvusClient:
        """:raises Away: nobody answers, or the key is refused."""
        if self._client is None:
            token = os.environ.get("MILVUS_TOKEN", "")
            self._client = connected(f"{self._scheme}://{self._address}", token, self.name)
        return self._client

    def call(self, method: str, collection: str, **arguments: Any) -> Any:
        """Tried again, with backoff and jitter, while a server that did answer is away."""
        began, pause = time.monotonic(), FIRST_S
        while True:
            try:
                found = called(self.client(), self.name, method, collection, self._timeout_s, arguments)
                self._met = True
                return found
            except Away:
                self.close()
                if not self._met or time.monotonic() - began >= PATIENCE_S:
                    raise
            time.sleep(pause + random.uniform(0, pause))
            pause = min(2 * pause, LONGEST_S)

    def sync(self) -> None:
        """A server sees to it."""

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.close()


class LiteLink:
    """One folder, opened by this process alone."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._timeout_s = timeout_s()
        self._client: MilvusClient | None = None
        self._server: Any = None
        self._database: Any = None
        self._synced: set[Path] = set()

    def client(self) -> MilvusClient:
        """:raises Locked: another process has it open. :raises UsageError: the folder is something else."""
        if self._client is None:
            if self._folder.exists() and (not self._folder.is_dir() or not self._looks_right()):
                raise UsageError(
                    f"--to: {self._folder} is there and is no Milvus Lite folder", hint="choose a new folder with --to"
                )
            self._open()
        return self._client

    def call(self, method: str, collection: str, **arguments: Any) -> Any:
        return called(self.client(), self.name, method, collection, self._timeout_s, arguments)

    def sync(self) -> None:
        """Its files reach the disk, for which it does not wait. Data files never change once they are there."""
        try:
            for path in self._folder.rglob("*"):
                if path.suffix in (".parquet", ".arrow", ".json") and path not in self._synced:
                    _fsync(path)
                    _fsync(path.parent)
                    if path.suffix == ".parquet":
                        self._synced.add(path)
        except FileNotFoundError:
            self.sync()  # a compaction took one away
        except OSError as exc:
            raise sink_error(self._folder, exc) from exc

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
            self._server.stop(grace=1).wait()
            self._database.close()
            self._in_use.unlink(missing_ok=True)

    @property
    def _in_use(self) -> Path:
        """There from the opening to an orderly end."""
        return self._folder.parent / f".{self._folder.name}.in-use"

    def _drop_indexes(self) -> None:
        """A killed process may have left one half written; Milvus Lite makes those that are missing from the rows."""
        for path in self._folder.rglob("*"):
            if path.suffix in (".idx", ".sidx"):
                path.unlink(missing_ok=True)

    def _looks_right(self) -> bool:
        return (self._folder / "LOCK").exists() or not any(self._folder.iterdir())

    def _open(self) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread  # type: ignore[import-untyped]
        from milvus_lite.exceptions import DataDirLockedError  # type: ignore[import-untyped]

        quiet()
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._server, self._database, port = start_server_in_thread(str(self._folder))
            if self._in_use.exists():
                self._drop_indexes()
            self._in_use.touch()
        except DataDirLockedError as exc:
            raise Locked(f"{self.name}: another process has it open", hint="close it there, or wait for it") from exc
        except OSError as exc:
            raise sink_error(self._folder, exc) from exc
        except Exception as exc:  # the engine raises nothing narrower
            raise SinkError(f"{self.name}: the engine cannot open it: {exc}") from exc
        self._client = connected(f"http://127.0.0.1:{port}", "", self.name)


def connected(uri: str, token: str, name: str) -> MilvusClient:
    from pymilvus import MilvusClient, MilvusException

    quiet()
    try:
        return MilvusClient(uri=uri, token=token, timeout=CONNECT_S)
    except MilvusException as exc:
        hint = "see that the server is up, and MILVUS_TOKEN right; then run the same command again"
        raise Away(f"{name}: no connection: {exc.message}", hint=hint) from exc


def called(
    client: MilvusClient, name: str, method: str, collection: str, timeout_s: int, arguments: dict[str, Any]
) -> Any:
    """:raises Away: nobody answers just now. :raises SinkError: refused, or not answered in time."""
    import grpc  # type: ignore[import-untyped]
    from pymilvus import MilvusException
    from pymilvus.client.types import Status  # type: ignore[import-untyped]

    try:
        return getattr(client, method)(collection, timeout=timeout_s, **arguments)
    except (MilvusException, grpc.RpcError, ValueError) as exc:
        text = getattr(exc, "message", None) or str(exc)
        code = exc.code() if isinstance(exc, grpc.RpcError) else getattr(exc, "code", None)
        away = code in (Status.CONNECT_FAILED, grpc.StatusCode.UNAVAILABLE)
        raise (Away if away else NotLoaded if code == NotLoaded.code else SinkError)(
            f"{name}/{collection}: {method.replace('_', ' ')} failed: {text}"[:600],
            hint="run the same command again: it goes on where it stopped",
        ) from exc


def quiet() -> None:
    """They log, with a traceback, what they raise as well, and what Milvus Lite has not and the client does without."""
    for noisy in ("pymilvus", "milvus_lite", "grpc._server"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """No other process that knows of the file `lock` is in here meanwhile."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def timeout_s() -> int:
    """:raises UsageError: MILVUS_TIMEOUT_S is not a number."""
    text = os.environ.get("MILVUS_TIMEOUT_S", str(TIMEOUT_S))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"MILVUS_TIMEOUT_S: {text!r} is not a whole number of seconds")
    return int(text)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
