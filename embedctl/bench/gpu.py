"""What `scripts/gpu_check` runs: one check after another on the CUDA device, each a line of a table.

Leaves: 0 when every check that ran passed, 1 otherwise. Where there is no device each check is told as not run, and the
exit code is 0. A check that fails or raises does not keep the others from running.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedctl.bench.models import REAL, BenchModel, own_copy, random_bert
from embedctl.encoders.attention import choose_attention
from embedctl.encoders.base import Encoder
from embedctl.encoders.open import open_encoder
from embedctl.errors import EmbedctlError, OutOfDeviceMemory
from embedctl.models.load import find_model
from embedctl.outputs import dense
from embedctl.records import Batch, Tokenized
from embedctl.tokens.pack import make_batches, split_batch

DEVICE = "cuda"
BATCH_TOKENS = 65536
KERNELS = ("sdpa", "varlen", "flash")
BASE = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
BARS = {"float32": (1 - 1e-6, 1 - 1e-6), "bfloat16": (0.9995, 0.9999)}
"""Lowest and mean cosine to float32, one sequence at a time."""

MIN_MATMUL_SHARE, MIN_SPEEDUP, MAX_IDLE = 0.5, 1.5, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """ok is None where it was not run; detail then says why."""

    name: str
    ok: bool | None
    detail: str


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or with --json one object. See the module for the code."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("not run: no CUDA device" if not args.json else json.dumps({"version": 1, "device": None, "checks": []}))  # noqa: T201
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = [_outcome(name, check) for name, check in _checks(Path(folder))]
    if args.json:
        told = {"version": 1, "device": torch.cuda.get_device_name(), "checks": [asdict(o) for o in found]}
        print(json.dumps(told))  # noqa: T201
    else:
        _print(found)
    return 1 if any(o.ok is False for o in found) else 0


def _checks(folder: Path) -> list[tuple[str, Callable[[], tuple[bool | None, str]]]]:
    """Names and checks, cheapest first. Models are opened when the first check asks for them."""

    @cache
    def minilm() -> BenchModel:
        return own_copy(REAL, Path(find_model(REAL, offline=True).path or ""), folder, 256)

    @cache
    def base() -> BenchModel:
        return own_copy("base-shape", Path(minilm().path), folder, 512, partial(random_bert, BASE))

    checks: list[tuple[str, Callable[[], tuple[bool | None, str]]]] = [
        ("device", lambda: (True, torch.cuda.get_device_name())),
        *((f"parity {d}", partial(_parity, minilm, d, None)) for d in BARS),
        *((f"attention {k}", partial(_kernel, minilm, k)) for k in KERNELS),
        ("packing", partial(_packing, minilm)),
        ("out of memory", partial(_out_of_memory, minilm)),
        ("matmul share and idle", partial(_share, base)),
        ("sentence-transformers float16", partial(_beside, base)),
    ]
    return checks


def _outcome(name: str, check: Callable[[], tuple[bool | None, str]]) -> Outcome:
    begun = time.perf_counter()
    try:
        ok, detail = check()
    except (EmbedctlError, ImportError, RuntimeError, ValueError) as exc:
        missing = isinstance(exc, ImportError)
        ok, detail = None if missing else False, str(exc).splitlines()[0][:160] if str(exc) else repr(exc)
    torch.cuda.empty_cache()
    return Outcome(name=name, ok=ok, detail=f"{detail} ({time.perf_counter() - begun:.0f} s)")


def _open(model: BenchModel, dtype: str, device: str = DEVICE, kernel: str | None = None) -> Encoder:
    return open_encoder(find_model(model.path), dtype=dtype, device=device, attention=kernel, compile=False)


def sequences(number: int, longest: int, seed: int = 3, *, skewed: bool = True) -> Tokenized:
    """Random ids of MiniLM's vocabulary, lengths log-normal as real text has them, or all the longest."""
    chance = np.random.default_rng(seed)
    lengths = (
        np.clip(chance.lognormal(4.2, 0.9, number).astype(np.int64), 3, longest) if skewed else np.full(number, longest)
    )
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = chance.integers(1000, 30000, int(offsets[-1])).astype(np.int32)
    return Tokenized(ids_T=ids, offsets=offsets, truncated=np.zeros(number, dtype=bool))


def encode_all(encoder: Encoder, tokens: Tokenized, budget: int) -> np.ndarray:
    """float32 (N, dim) in the order of the texts, batches halved where memory does not hold them."""
    vectors = np.zeros((len(tokens.truncated), encoder.dims["dense"]), dtype=np.float32)
    todo: list[Batch] = list(make_batches(tokens, budget, padded=encoder.padded))
    while todo:
        batch = todo.pop(0)
        try:
            vectors[batch.units] = dense(encoder.encode(batch))
        except OutOfDeviceMemory:
            torch.cuda.empty_cache()
            todo[:0] = split_batch(batch)
    return vectors


def _agreement(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    a, b = found.astype(np.float64), expected.astype(np.float64)
    cosine = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float(cosine.min()), float(cosine.mean())


def _parity(model: Callable[[], BenchModel], dtype: str, kernel: str | None) -> tuple[bool, str]:
    tokens = sequences(64, 256)
    reference = encode_all(_open(model(), "float32", "cpu"), tokens, 1)
    least, mean = _agreement(encode_all(_open(model(), dtype, kernel=kernel), tokens, 8192), reference)
    return least >= BARS[dtype][0] and mean >= BARS[dtype][
        1
    ], f"cosine to CPU float32: mean {mean:.7f}, least {least:.7f}"


def _kernel(model: Callable[[], BenchModel], kernel: str) -> tuple[bool | None, str]:
    try:
        choose_attention(DEVICE, "bfloat16", kernel)
    except EmbedctlError as exc:
        return None, str(exc)
    ok, detail = _parity(model, "bfloat16", kernel)
    encoder, tokens = _open(model(), "bfloat16", kernel=kernel), sequences(4000, 256)
    encode_all(encoder, tokens, BATCH_TOKENS)
    seconds = _seconds(lambda: encode_all(encoder, tokens, BATCH_TOKENS), 3)
    return ok, f"{tokens.offsets[-1] / seconds:,.0f} tokens/s; {detail}"


def _packing(model: Callable[[], BenchModel]) -> tuple[bool, str]:
    """The same rows alone, in small batches, in one large one, and among others all as long as they are."""
    encoder, tokens = _open(model(), "bfloat16"), sequences(200, 256)
    alone = encode_all(encoder, tokens, 1)
    worst = min(_agreement(encode_all(encoder, tokens, budget), alone)[0] for budget in (700, 8192, BATCH_TOKENS))
    even = sequences(40, 128, skewed=False)
    worst = min(worst, _agreement(encode_all(encoder, even, 8192), encode_all(encoder, even, 1))[0])
    return worst >= BARS["bfloat16"][0], f"least cosine across packings {worst:.7f}"


def _out_of_memory(model: Callable[[], BenchModel]) -> tuple[bool | None, str]:
    """Nearly all memory taken away: the whole must still come out, in halves, with the same vectors."""
    encoder, tokens = _open(model(), "bfloat16"), sequences(2000, 256)
    expected = encode_all(encoder, tokens, 8192)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + (192 << 20)) / total))
    refused = 0
    try:
        whole = next(iter(make_batches(tokens, int(tokens.offsets[-1]))))
        try:
            encoder.encode(whole)
        except OutOfDeviceMemory:
            refused = 1
        found = encode_all(encoder, tokens, int(tokens.offsets[-1]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    if not refused:
        return None, "the device took the whole in 192 MiB; nothing to recover from"
    least, _ = _agreement(found, expected)
    return least >= BARS["bfloat16"][0], f"refused, halved, done; least cosine {least:.7f}"


def matmul_tflops(dtype: torch.dtype = torch.bfloat16, size: int = 8192) -> float:
    """The device's rate on one large square product."""
    a, b = (torch.randn(size, size, dtype=dtype, device=DEVICE) for _ in range(2))
    return 2e-12 * size**3 / (sum(_device_seconds(lambda: a @ b) for _ in range(10)) / 10)


def _device_seconds(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _seconds(call: Callable[[], object], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def _share(model: Callable[[], BenchModel]) -> tuple[bool, str]:
    """Products' share of the measured bfloat16 rate, and the part of the time in which the device had nothing to do."""
    encoder, weights = _open(model(), "bfloat16"), 12 * (4 * 768**2 + 2 * 768 * 3072)
    shares = []
    rate = matmul_tflops()
    for length in (128, 256, 512):
        tokens = sequences(BATCH_TOKENS * 4 // length, length, skewed=False)
        encode_all(encoder, tokens, BATCH_TOKENS)
        wall_s = _seconds(lambda tokens=tokens: encode_all(encoder, tokens, BATCH_TOKENS), 3)  # type: ignore[misc]
        shares.append(2e-12 * weights * int(tokens.offsets[-1]) / wall_s / rate)
    idle = idle_share(encoder, sequences(8000, 512))
    told = ", ".join(f"{share:.0%} at {n}" for share, n in zip(shares, (128, 256, 512), strict=True))
    return min(shares) >= MIN_MATMUL_SHARE and idle <= MAX_IDLE, f"of {rate:,.0f} TFLOP/s: {told}; idle {idle:.1%}"


def idle_share(encoder: Encoder, tokens: Tokenized) -> float:
    """1 - busy over wall, after a warm-up: busy is the sum of what ran on the device, by its own events.

    As many batches run at once as in a job."""
    batches = list(make_batches(tokens, BATCH_TOKENS, padded=encoder.padded))
    for batch in batches:
        encoder.encode(batch)
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        begun = time.perf_counter()
        with ThreadPoolExecutor(encoder.lanes) as pool:
            list(pool.map(encoder.encode, batches))
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - begun
    busy_s = 1e-6 * sum(float(event.self_device_time_total) for event in trace.key_averages())
    return max(0.0, 1 - busy_s / wall_s)


def _beside(model: Callable[[], BenchModel]) -> tuple[bool, str]:
    """Tokens/s on skewed texts beside sentence-transformers in float16, its batch size the best of several."""
    from sentence_transformers import SentenceTransformer

    from embedctl.tokens.tokenize import load_tokenizer

    tokenizer = load_tokenizer(Path(model().path), max_length=model().max_length)
    texts = _texts()
    encoder = _open(model(), "bfloat16")
    tokens = int(tokenizer(texts).offsets[-1])
    own_s = _seconds(lambda: encode_all(encoder, tokenizer(texts), BATCH_TOKENS), 4)
    other_s, how = float("inf"), ""
    for kernel in ("flash_attention_2", "sdpa"):
        try:
            kwargs: dict[str, Any] = {"dtype": torch.float16, "attn_implementation": kernel}
            other = SentenceTransformer(model().path, device=DEVICE, model_kwargs=kwargs, local_files_only=True)
        except (ImportError, ValueError, RuntimeError):
            continue
        for size in (64, 256, 1024):
            run = partial(other.encode, texts, batch_size=size, show_progress_bar=False)
            run()
            seconds = _seconds(run, 2)
            if seconds < other_s:
                other_s, how = seconds, f"{kernel}, batches of {size}"
    detail = f"{tokens / own_s:,.0f} to {tokens / other_s:,.0f} tokens/s ({how}): {other_s / own_s:.2f}x"
    return other_s / own_s >= MIN_SPEEDUP, detail


def _texts() -> list[str]:
    """Real docstrings, several times over, so that the device has some seconds of work."""
    from embedctl.bench.corpora import docstrings

    found = docstrings()[:4000]
    return [f"{i} {text}" for i in range(4) for text in found]


def _print(found: Sequence[Outcome]) -> None:
    width = max(len(o.name) for o in found)
    words = {True: "ok", False: "FAILED", None: "not run"}
    for outcome in found:
        print(f"{outcome.name:<{width}}  {words[outcome.ok]:<7}  {outcome.detail}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
