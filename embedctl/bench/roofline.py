"""How fast this machine could run a model at best: every operator timed alone, at the job's own shapes, in its best
variant.

Enters: a model folder and the sequence lengths of some of the job's batches. Leaves: seconds a token of each
operator, and two ceilings in tokens/s: all operators summed, and matrix products alone. On kinds other than BERT's
only the second.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedctl.bench import operators
from embedctl.bench.operators import Make, Shape

REPEATS = 5
WARM_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """repeats: timings of an operator, the median counts. call_s: how long each lasts at least."""

    repeats: int = REPEATS
    call_s: float = 0.03


def measure(
    folder: Path,
    batches: Sequence[np.ndarray],
    *,
    dtype: str,
    threads: int,
    device: str = "cpu",
    effort: Effort | None = None,
) -> dict[str, Any]:
    """JSON-ready. batches: int (N,) each, the lengths of one batch's sequences, longest first.

    Keys: operators (name -> us_per_token, variant, all variants), tokens_per_s of `operators` and of `products`, and
    tflops of the products.
    """
    effort = effort or Effort()
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float16 if dtype == "float16" else torch.float32
    config = operators.config_of(folder)
    shape = operators.bert_shape(config)
    tokens = int(sum(int(b.sum()) for b in batches))
    seconds: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    with torch.inference_mode():
        for lengths in batches:
            for operator in operators.of(config, shape, lengths, kind, device):
                for variant, (make, calls) in operator.variants.items():
                    try:
                        once_s = _seconds(make, threads, device, effort) * calls * operator.times
                    except Exception as exc:  # a variant that this torch, compiler or processor has not
                        refused[f"{operator.name}, {variant}"] = (
                            str(exc).splitlines()[0][:120] if str(exc) else repr(exc)
                        )
                        continue
                    known = seconds.setdefault(operator.name, {})
                    known[variant] = known.get(variant, 0.0) + once_s
    return _told(seconds, refused, tokens, shape, operators.product_weights(config, shape))


def _told(
    seconds: Mapping[str, Mapping[str, float]],
    refused: Mapping[str, str],
    tokens: int,
    shape: Shape | None,
    weights: int,
) -> dict[str, Any]:
    best = {name: min(variants, key=lambda v: variants[v]) for name, variants in seconds.items()}
    spent = {name: seconds[name][best[name]] for name in seconds}
    fused_s = spent.pop(operators.FUSED_UP, None)
    apart_s = sum(spent.get(name, 0.0) for name in operators.UP_PARTS)
    total_s = sum(spent.values()) - max(0.0, apart_s - fused_s if fused_s is not None else 0.0)
    products_s = sum(s for name, s in spent.items() if name.startswith(operators.PRODUCT))
    us = {name: {v: 1e6 * s / tokens for v, s in variants.items()} for name, variants in seconds.items()}
    return {
        "tokens": tokens,
        "operators": {n: {"us_per_token": us[n][best[n]], "variant": best[n], "variants": us[n]} for n in us},
        "refused": dict(refused),
        "tokens_per_s": {"operators": tokens / total_s if shape else None, "products": tokens / products_s},
        "products_tflops": 2e-12 * weights * tokens / products_s,
    }


def _seconds(make: Make, threads: int, device: str, effort: Effort) -> float:
    """Of one call in the better of two ways: all threads on one call, or a call a thread."""
    if device != "cpu":
        return _timed_cuda(make(), effort)
    torch.set_num_threads(threads)
    together_s = _timed(make(), effort)
    if threads == 1:
        return together_s
    with ThreadPoolExecutor(threads) as pool:
        calls = [make() for _ in range(threads)]
        reps = max(1, round(effort.call_s / max(together_s * threads, 1e-7)))
        list(pool.map(partial(_repeat, 1), calls))
        apart = []
        for _ in range(effort.repeats):
            begun = time.perf_counter()
            list(pool.map(partial(_repeat, reps), calls))
            apart.append((time.perf_counter() - begun) / (reps * threads))
    torch.set_num_threads(threads)
    return min(together_s, statistics.median(apart))


def _repeat(reps: int, call: Callable[[], object]) -> None:
    with torch.inference_mode():
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        for _ in range(reps):
            call()


def _timed(call: Callable[[], object], effort: Effort) -> float:
    begun, warm = time.perf_counter(), 0
    while warm < 2 or time.perf_counter() - begun < WARM_S:
        call()
        warm += 1
    reps = max(1, round(effort.call_s * warm / (time.perf_counter() - begun)))
    found = []
    for _ in range(effort.repeats):
        begun = time.perf_counter()
        for _ in range(reps):
            call()
        found.append((time.perf_counter() - begun) / reps)
    return statistics.median(found)


def _timed_cuda(call: Callable[[], object], effort: Effort) -> float:
    for _ in range(3):
        call()
    found = []
    for _ in range(effort.repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(10):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(float(begin.elapsed_time(end)) / 1e4)
    return statistics.median(found)
