"""The whole job beside encoding alone, the pipeline beside the tokenizer alone, memory, and `--help`.

Each is measured in processes of its own; numbers are seconds, bytes, or ratios of the two.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedctl.bench.client import Contestant, PeerFailed

MIN_TOKENS = 64
"""Rows of the pipeline measurement have at least so many tokens."""


def job(texts: Sequence[str], model: str, *, max_length: int, env: dict[str, str], timeout_s: float) -> dict[str, Any]:
    """`embedctl embed` from a Parquet file to a committed destination: wall_s, peak_bytes, and its own summary's
    seconds.

    :raises PeerFailed: the command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.parquet")
        write_rows(rows, texts)
        command = [
            sys.executable, "-m", "embedctl", "embed", str(rows), "--to", str(Path(folder, "out")),
            "--model", model, "--max-length", str(max_length), "--json", "--quiet",
        ]  # fmt: skip
        with open(Path(folder, "answer"), "w+b") as answer, open(Path(folder, "log"), "w+b") as log:
            begun = time.perf_counter()
            process = subprocess.Popen(command, stdout=answer, stderr=log, env={**os.environ, **env}, cwd=folder)
            usage, status = _wait(process, timeout_s)
            wall_s = time.perf_counter() - begun
            answer.seek(0)
            log.seek(0)
            if os.waitstatus_to_exitcode(status) not in (0, 3):
                words = log.read().decode(errors="replace").strip().splitlines()
                raise PeerFailed(words[0] if words else f"status {status}")
            summary = json.loads(answer.read())
    return {"wall_s": wall_s, "peak_bytes": usage << 10, "rows": summary["rows"]["written"],
            "tokens": summary["tokens"], "seconds": summary["seconds"], "padding": summary["padding"]}  # fmt: skip


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, int]:
    """(largest resident set in KiB, status)."""
    until = time.monotonic() + timeout_s
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_maxrss, status
        if time.monotonic() > until:
            process.kill()
            os.wait4(process.pid, 0)
            process.returncode = -9
            raise PeerFailed(f"the job took more than {timeout_s:.0f} s")
        time.sleep(0.01)


def write_rows(file: Path, texts: Sequence[str]) -> None:
    """A Parquet file with `id` and `text`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())}), file)


def job_over_encoding(
    texts: Sequence[str], model: str, contestant: Contestant, size: int, *, max_length: int, scratch: Path,
    env: dict[str, str], timeout_s: float,
) -> dict[str, Any]:  # fmt: skip
    """The job on these texts and on one of them (which is its start), and the encoder alone on all.

    Keys: job, start_s, encode_s, and the ratios `wall` (job less start, over encoding) and `wall_with_start`.
    """
    file = scratch / "job.json"
    file.write_text(json.dumps(list(texts)), encoding="utf-8")
    start = job(texts[:1], model, max_length=max_length, env=env, timeout_s=timeout_s)
    whole = job(texts, model, max_length=max_length, env=env, timeout_s=timeout_s)
    request = {"do": "round", "corpus": str(file), "size": size}
    encode_s = contestant.ask(request, timeout_s=timeout_s)["encode_s"]
    return {
        "job": whole,
        "start_s": start["wall_s"],
        "encode_s": encode_s,
        "encoder_peak_bytes": contestant.peak_bytes(),
        "ratio": {
            "wall": (whole["wall_s"] - start["wall_s"]) / encode_s,
            "wall_with_start": whole["wall_s"] / encode_s,
        },
    }


def pipeline_over_tokenizer(
    texts: Sequence[str], model: str, *, max_length: int, rounds: int, scratch: Path, timeout_s: float
) -> dict[str, Any]:
    """Tokens/s of the pipeline whose encoder and sink cost nothing, over the tokenizer library's on the same texts."""
    rows = scratch / "pipeline.parquet"
    write_rows(rows, texts)
    request = {"rows": str(rows), "model": model, "max_length": max_length, "rounds": rounds}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "embedctl.bench.unladen", json.dumps(request)],
            capture_output=True, encoding="utf-8", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise PeerFailed(f"the pipeline took more than {timeout_s:.0f} s") from exc
    if done.returncode:
        raise PeerFailed((done.stderr.strip().splitlines() or ["failed"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory(
    texts: Sequence[str], rows: int, model: str, encoder_peak_bytes: int, *, max_length: int, timeout_s: float
) -> dict[str, Any]:
    """Peak of the job on so many short rows, and what it has more than a process that only encodes."""
    many = [f"{texts[i % len(texts)]} {i}" for i in range(rows)]
    found = job(many, model, max_length=max_length, env={}, timeout_s=timeout_s)
    peak = found["peak_bytes"]
    return {
        "rows": rows,
        "peak_bytes": peak,
        "over_encoder_bytes": peak - encoder_peak_bytes,
        "wall_s": found["wall_s"],
    }


def help_s(rounds: int) -> float:
    """Median seconds of `embedctl --help`."""
    found = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "embedctl", "--help"], capture_output=True, check=True)
        found.append(time.perf_counter() - begun)
    return statistics.median(found[1:])
