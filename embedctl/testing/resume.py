"""Kills a real process and compares what a resume leaves with an unbroken run.

For third parties' sinks and encoders too.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

COMMIT_POINTS = ("before-part", "staged", "after-part", "before-ledger", "after-ledger")
"""The failpoints around one commit, in the order they are passed."""

_PATIENCE_S = 120.0


def run(
    arguments: Sequence[str], *, failpoint: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`python -m embedctl ARGUMENTS` to its end, killed at `failpoint` when it gets there."""
    environ = {**os.environ, "EMBEDCTL_FAILPOINT": failpoint} if failpoint else dict(os.environ)
    return subprocess.run(
        [sys.executable, "-m", "embedctl", *arguments],
        capture_output=True, text=True, env=environ, cwd=cwd, timeout=_PATIENCE_S, check=False,
    )  # fmt: skip


def run_and_kill(arguments: Sequence[str], after_s: float, *, signum: int = signal.SIGKILL) -> int:
    """Start the command, signal it after `after_s`, wait; its return code (negative: killed by a signal)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "embedctl", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + after_s
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(signum)
    return process.wait(timeout=_PATIENCE_S)


def moments(arguments: Sequence[str], seed: int) -> Iterator[float]:
    """Seconds after which to kill a run: somewhere in what this command takes whole, now and here."""
    began = time.monotonic()
    run(arguments)
    whole_s, chance = time.monotonic() - began, random.Random(seed)
    while True:
        yield whole_s * chance.uniform(0.3, 1.0)


def parts(destination: Path) -> dict[str, str]:
    """Name -> SHA-256 of every part of a Parquet destination."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(destination.glob("*.parquet"))}


def assert_same_after_resume(arguments: Sequence[str], unbroken: Path, broken: Path) -> None:
    """Run the command again on the broken destination; its parts must then equal the unbroken run's, byte for byte.

    `arguments` are those of `embed` without `--to`.
    """
    done = run([*arguments, "--to", str(broken)])
    assert done.returncode in (0, 3), done.stderr
    assert parts(broken) == parts(unbroken)
