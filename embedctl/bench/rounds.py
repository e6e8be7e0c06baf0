"""Contenders side by side on one corpus: tuned, then measured in turns, so that a slow minute of the machine hits all
alike.

Enters: running contestants and a corpus. Leaves: `Result` records: medians over the rounds, cosine to the reference.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench.client import Contestant, PeerFailed
from embedctl.bench.contenders import Contender
from embedctl.bench.corpora import Corpus

WRONG_BELOW = 0.999
"""Mean cosine to the reference under which a contender's speed counts for nothing."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """rounds: per contender and corpus. tune_texts: how many the batch sizes are tried on. reference_texts:
    compared.
    """

    rounds: int = 3
    tune_texts: int = 160
    reference_texts: int = 200
    timeout_s: float = 900.0
    pause_s: float = 0.5


@dataclass(slots=True, kw_only=True)
class Result:
    """One contender on one corpus. reason: why there are no numbers, None where there are."""

    contender: Contender
    reason: str | None = None
    size: int = 0
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    encode_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    idle_cpu_s: float = 0.0
    cosine_min: float | None = None
    cosine_mean: float | None = None

    def to_json(self, corpus: Corpus) -> dict[str, Any]:
        """Keys are documented in the README; rates are None where it was not run."""
        wall_s = statistics.median(self.wall_s) if self.wall_s else None
        cpu_s = statistics.median(self.cpu_s) if self.cpu_s else None
        encode_s = statistics.median(self.encode_s) if self.encode_s else None
        return {
            "name": self.contender.name,
            "status": "not run" if self.reason else "ok",
            "reason": self.reason,
            "tokens_per_s": corpus.tokens / wall_s if wall_s else None,
            "documents_per_s": len(corpus.texts) / wall_s if wall_s else None,
            "tokens_per_cpu_s": corpus.tokens / cpu_s if cpu_s else None,
            "encode_tokens_per_s": corpus.tokens / encode_s if encode_s else None,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "peak_bytes": self.peak_bytes or None,
            "size": self.size or None,
            "idle_cpu_s": round(self.idle_cpu_s, 2),
            "cosine": {"min": self.cosine_min, "mean": self.cosine_mean},
            "wrong": self.cosine_mean is not None and not self.cosine_mean >= WRONG_BELOW,
        }


def measure(
    running: Mapping[str, Contestant | PeerFailed], contenders: Sequence[Contender], corpus: Corpus,
    reference: np.ndarray | None, rows: np.ndarray, *, limits: Limits, scratch: Path, say: Say,
) -> list[Result]:  # fmt: skip
    """One `Result` a contender, in order. reference: float32 (n, dim) of the texts `rows`, None for none."""
    results = [Result(contender=c) for c in contenders]
    for result in results:
        found = running[result.contender.name]
        if isinstance(found, PeerFailed):
            result.reason = str(found)
            continue
        _guarded(result, lambda r, c: _tune(r, c, corpus, limits), found)
    for number in range(limits.rounds):
        say(f"{corpus.name}: round {number + 1} of {limits.rounds}")
        for result in results:
            contestant = running[result.contender.name]
            if result.reason is None and isinstance(contestant, Contestant):
                others = [c for n, c in running.items() if isinstance(c, Contestant) and n != result.contender.name]
                save = scratch / "vectors.npy" if not number else None
                _guarded(result, lambda r, c, o=others, s=save: _round(r, c, o, corpus, limits, s), contestant)  # type: ignore[misc]
                if save is not None and reference is not None and not result.reason:
                    _compare(result, np.load(save)[rows], reference)
    return results


def reference_rows(corpus: Corpus, limits: Limits) -> np.ndarray:
    """int64: texts spread evenly over the corpus."""
    number = min(len(corpus.texts), limits.reference_texts)
    return np.linspace(0, len(corpus.texts) - 1, number).astype(np.int64)


def _guarded(result: Result, work: Callable[[Result, Contestant], None], contestant: Contestant) -> None:
    try:
        work(result, contestant)
    except PeerFailed as exc:
        result.reason = str(exc)
        result.wall_s.clear()
        result.cpu_s.clear()


def _tune(result: Result, contestant: Contestant, corpus: Corpus, limits: Limits) -> None:
    request = {"do": "tune", "corpus": corpus.file, "texts": limits.tune_texts, "sizes": list(result.contender.sizes)}
    result.size = contestant.ask(request, timeout_s=limits.timeout_s)["size"]


def _round(
    result: Result,
    contestant: Contestant,
    others: Sequence[Contestant],
    corpus: Corpus,
    limits: Limits,
    save: Path | None,
) -> None:
    time.sleep(limits.pause_s)  # threads of whoever ran last may spin on for a while
    idle = sum(c.cpu_s() for c in others)
    begun = contestant.cpu_s()
    request = {"do": "round", "corpus": corpus.file, "size": result.size, "save": str(save) if save else None}
    told = contestant.ask(request, timeout_s=limits.timeout_s)
    result.cpu_s.append(contestant.cpu_s() - begun)
    result.wall_s.append(told["wall_s"])
    if "encode_s" in told:
        result.encode_s.append(told["encode_s"])
    result.peak_bytes = contestant.peak_bytes()
    result.idle_cpu_s += sum(c.cpu_s() for c in others) - idle


def _compare(result: Result, found: np.ndarray, reference: np.ndarray) -> None:
    if found.shape != reference.shape:
        result.cosine_min = result.cosine_mean = 0.0
        return
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(reference, axis=1)
    cosine = np.nan_to_num((found * reference).sum(axis=1) / np.maximum(norms, 1e-12))
    result.cosine_min, result.cosine_mean = float(cosine.min()), float(cosine.mean())
