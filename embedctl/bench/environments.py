"""A virtual environment for each peer, made once: their pins clash, so none can share another's.

Enters: a peer's requirements. Leaves: its interpreter, or the one line that says why there is none.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from embedctl.bench.client import PeerFailed
from embedctl.bench.contenders import Environment

INSTALL_TIMEOUT_S = 1800.0
_REQUIRES = "from importlib.metadata import requires; print('\\n'.join(requires('{name}') or []))"


def python_of(name: str, environment: Environment, *, root: Path, constraints: Path) -> str:
    """The interpreter of `root/name`, installed when its requirements changed. :raises PeerFailed: pip refused."""
    folder = root / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    text = repr(environment) + (constraints.read_text(encoding="utf-8") if environment.constrained else "")
    wanted = hashlib.sha256(text.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
        return str(python)
    print(f"installing {name}: {' '.join(environment.requirements)}", file=sys.stderr, flush=True)  # noqa: T201
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    held = ["-c", str(constraints)] if environment.constrained else []
    if environment.no_deps:
        _run([*pip, "--no-deps", *environment.requirements])
        _run([*pip, *held, *_needed(str(python), environment)])
    else:
        _run([*pip, *held, *environment.requirements])
    if environment.remove:
        _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *environment.remove])
    stamp.write_text(wanted, encoding="ascii")
    return str(python)


def _needed(python: str, environment: Environment) -> list[str]:
    """What the installed packages ask for, less what is left out."""
    found = []
    for requirement in environment.requirements:
        name = re.split(r"[=<>\[]", requirement)[0]
        found += _run([python, "-c", _REQUIRES.format(name=name)]).splitlines()
    plain = [r for r in found if "extra ==" not in r]
    return [r for r in plain if re.split(r"[^A-Za-z0-9_.-]", r)[0] not in environment.leave_out]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise PeerFailed(f"could not be installed: {exc}") from exc
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("ERROR", "error"))] or ["pip failed"]
        raise PeerFailed(f"could not be installed: {lines[0][:300]}")
    return done.stdout
