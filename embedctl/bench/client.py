"""The other end of `worker.py`: starts a contender's process, asks it, and reads from outside what it cost.

Refuses to wait for ever: a contender that does not answer in time is ended, with all processes it started, and
reported.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PeerFailed(Exception):
    """The contender refused, died or was too slow; the message says which. Never leaves the bench."""


class Contestant:
    """One contender's process and its children."""

    def __init__(self, python: str, peer_file: Path, *, cpus: Sequence[int] | None, env: Mapping[str, str]) -> None:
        """`cpus`: the processors it may use, None for all of this process's."""
        worker = Path(__file__).with_name("worker.py")
        self._words = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [python, "-P", str(worker), str(peer_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        if cpus is not None:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(self._process.pid, cpus)

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """:raises PeerFailed: it refused, ended, or gave no answer in time (it is then ended)."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(timeout_s))
        except (OSError, ValueError) as exc:
            self.close()
            raise PeerFailed(self._last_words() or "its process ended") from exc
        if not answer.pop("ok"):
            raise PeerFailed(answer["error"])
        return answer

    def _line(self, timeout_s: float) -> bytes:
        stream = self._process.stdout
        assert stream is not None
        until, got = time.monotonic() + timeout_s, b""
        with selectors.DefaultSelector() as ready:
            ready.register(stream, selectors.EVENT_READ)
            while not got.endswith(b"\n"):
                if not ready.select(max(0.0, until - time.monotonic())):
                    self.close()
                    raise PeerFailed(f"no answer within {timeout_s:.0f} s")
                piece = os.read(stream.fileno(), 1 << 16)
                if not piece:
                    break
                got += piece
        return got

    def cpu_s(self) -> float:
        """User and system seconds of the process and its children, those that have ended included."""
        ticks = 0
        for pid in self._family():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / _TICKS_PER_S

    def peak_bytes(self) -> int:
        """VmHWM, summed over the process and its living children."""
        return sum(_peak_bytes(pid) for pid in self._family())

    def _family(self) -> list[int]:
        parents: dict[int, list[int]] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    stat = Path(entry.path, "stat").read_text(encoding="utf-8")
                    parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
        found = [self._process.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def _last_words(self) -> str:
        if self._log.closed:
            return self._words
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End it and what it started. Safe to call again."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
                assert self._process.stdin is not None
                self._process.stdin.write(b'{"do": "stop"}\n')
                self._process.stdin.close()
                self._process.wait(5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._words = self._last_words()
        self._log.close()


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0
