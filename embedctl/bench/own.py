"""What is measured of this program itself: ceilings of the model at the job's batches, and the job beside its parts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench import corpora, whole
from embedctl.bench.client import Contestant, PeerFailed
from embedctl.bench.contenders import DEFAULT
from embedctl.bench.models import BenchModel
from embedctl.job import limits, passes

BATCH_TOKENS = passes.CPU_BATCH_TOKENS
SAMPLED_BATCHES = 4
_SEED = 11


def token_counts(model: BenchModel) -> corpora.Count:
    """How the model counts: tokens of a text uncut, special ones included."""
    from embedctl.tokens.tokenize import load_tokenizer

    tokenizer = load_tokenizer(Path(model.path), max_length=model.max_length)

    def count(texts: Sequence[str]) -> Sequence[int]:
        return [n + tokenizer.overhead_tokens for n in tokenizer.count(texts)]

    return count


def job_batches(lengths: Sequence[int], batch_tokens: int) -> list[np.ndarray]:
    """Lengths of the batches that the packer makes, longest first; at most SAMPLED_BATCHES, spread over the corpus."""
    falling = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    batches: list[np.ndarray] = []
    begin, ends = 0, np.cumsum(falling)
    while begin < len(falling):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + batch_tokens, side="right")))
        batches.append(falling[begin:end])
        begin = end
    chosen = np.unique(np.linspace(0, len(batches) - 1, min(len(batches), SAMPLED_BATCHES)).astype(int))
    return [batches[i] for i in chosen]


def ceilings(
    model: BenchModel, corpus: corpora.Corpus, contenders: Sequence[Mapping[str, Any]], *, quick: bool
) -> dict[str, Any]:
    """dtype -> roofline.measure's report, with `reached`: the encoder's rate (tokenizing left out) over each
    ceiling.
    """
    from embedctl.bench import roofline
    from embedctl.encoders.open import resolve_dtype

    effort = roofline.Effort(repeats=1, call_s=0.002) if quick else roofline.Effort()
    own = {DEFAULT: resolve_dtype("auto", "cpu"), "embedctl float32": "float32"}
    rates = {own[c["name"]]: c["encode_tokens_per_s"] for c in reversed(contenders) if c["name"] in own}
    found: dict[str, Any] = {}
    for dtype, rate in rates.items():
        if rate:
            told = roofline.measure(
                Path(model.path), job_batches(corpus.lengths, BATCH_TOKENS), dtype=dtype,
                threads=limits.available_cpus(), effort=effort,
            )  # fmt: skip
            told["reached"] = {k: rate / ceiling for k, ceiling in told["tokens_per_s"].items() if ceiling}
            found[dtype] = told
    return found


def many(real: Sequence[str], number: int) -> list[str]:
    """So many texts of real lengths, no two alike: from the second time around three words and a number are added."""
    chance, out = random.Random(_SEED), list(real[:number])
    for i in range(len(out), number):
        text = real[i % len(real)]
        words = text.split()
        out.append(f"{' '.join(chance.sample(words, min(3, len(words))))} {text} {i}")
    return out


def whole_job(
    model: BenchModel, own: Contestant | None, count: corpora.Count, *, rows: int, rounds: int, memory: Sequence[int],
    cache: Path, scratch: Path, env: Mapping[str, str], timeout_s: float,
) -> dict[str, Any]:  # fmt: skip
    """Keys: job, pipeline, memory, help_s, and `not_run` with the reason of each that failed."""
    texts = tuple(dict.fromkeys(corpora.docstrings()))
    found: dict[str, Any] = {"memory": [], "not_run": {}, "help_s": whole.help_s(5 if rounds > 1 else 1)}
    try:
        if own is None:
            raise PeerFailed("the encoder is not running")
        found["job"] = whole.job_over_encoding(
            many(texts, rows), model.path, own, BATCH_TOKENS, max_length=model.max_length, scratch=scratch,
            env=dict(env), timeout_s=timeout_s,
        )  # fmt: skip
    except PeerFailed as exc:
        found["not_run"]["job"] = str(exc)
    try:
        long = [t for t, n in zip(texts, count(texts), strict=True) if n >= whole.MIN_TOKENS][: max(rows // 2, 200)]
        found["pipeline"] = whole.pipeline_over_tokenizer(
            long, model.path, max_length=model.max_length, rounds=rounds, scratch=scratch, timeout_s=timeout_s
        )
    except PeerFailed as exc:
        found["not_run"]["pipeline"] = str(exc)
    if memory and own is not None:
        short = corpora.make("short", count, model.max_length, cache / "corpora" / model.name).texts
        for number in memory:
            try:
                peak = own.peak_bytes()
                found["memory"].append(
                    whole.memory(short, number, model.path, peak, max_length=model.max_length, timeout_s=timeout_s)
                )
            except PeerFailed as exc:
                found["not_run"][f"memory at {number}"] = str(exc)
    return found
