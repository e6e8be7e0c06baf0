"""What the numbers were measured on."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_PACKAGES = ("embedctl", "torch", "transformers", "tokenizers", "numpy", "pyarrow")


def told() -> dict[str, Any]:
    """JSON-ready: processor, features that matter to speed, threads, memory_bytes, versions."""
    from embedctl.job.limits import available_cpus

    info = _read("/proc/cpuinfo")
    flags = set(_field(info, "flags").split())
    memory = _field(_read("/proc/meminfo"), "MemTotal").split()
    return {
        "processor": _field(info, "model name") or platform.processor() or platform.machine(),
        "features": [f for f in _FEATURES if f in flags],
        "threads": available_cpus(),
        "memory_bytes": int(memory[0]) << 10 if memory else None,
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    lines = (line.partition(":") for line in text.splitlines() if line.startswith(name))
    return next((value.strip() for _, _, value in lines), "")
