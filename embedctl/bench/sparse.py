"""SPLADE: speed and memory of embedctl beside sentence-transformers' SparseEncoder and fastembed, on one corpus.

Enters: a model and texts. Leaves: documents/s, tokens/s and peak memory (VmHWM) of each in a process of its own,
medians of rounds taken in turns; every batch size of a peer in a process of its own first, the fastest is kept. Who
cannot run is told with the reason.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench import corpora, machine, whole
from embedctl.bench.client import Contestant, PeerFailed
from embedctl.bench.contenders import Contender
from embedctl.bench.models import BenchModel
from embedctl.bench.own import BATCH_TOKENS
from embedctl.bench.sparse_models import graph_of

VERSION = 1
SIZES = (4, 16, 32)
"""Texts a batch of the peers. sentence-transformers' default is 32; fastembed's is 256, whose logits of 256 tokens each
take 8 GB a copy."""
REFERENCE = "sentence-transformers float32"
REFERENCE_TEXTS = 32
LOAD_TIMEOUT_S = 600.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    rounds: int = 3
    sizes: tuple[int, ...] = SIZES
    timeout_s: float = 1800.0


@dataclass(slots=True, kw_only=True)
class Line:
    """One contender. sweep: size -> (seconds, peak bytes). loaded_bytes: peak before the first text."""

    contender: Contender
    reason: str | None = None
    size: int = 0
    sweep: dict[int, tuple[float, int]] = field(default_factory=dict)
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    loaded_bytes: int = 0
    peak_bytes: int = 0
    cosine: tuple[float, float] | None = None

    def to_json(self, corpus: corpora.Corpus) -> dict[str, Any]:
        """cosine: least and mean, to the reference; None and null where it did not run."""
        told = {"name": self.contender.name, "status": "not run" if self.reason else "ok", "reason": self.reason}
        if self.reason:
            return told
        wall_s, cpu_s = statistics.median(self.wall_s), statistics.median(self.cpu_s)
        least, mean = self.cosine or (None, None)
        return {
            **told,
            "size": self.size,
            "documents_per_s": len(corpus.texts) / wall_s,
            "tokens_per_s": corpus.tokens / wall_s,
            "tokens_per_cpu_s": corpus.tokens / cpu_s if cpu_s else None,
            "wall_s": self.wall_s,
            "loaded_bytes": self.loaded_bytes,
            "peak_bytes": self.peak_bytes,
            "cosine": {"min": least, "mean": mean},
            "sweep": [
                {"size": n, "documents_per_s": len(corpus.texts) / s, "peak_bytes": b}
                for n, (s, b) in self.sweep.items()
            ],
        }


def contenders(sizes: Sequence[int] = SIZES) -> tuple[Contender, ...]:
    """In the order of the table."""
    made: list[tuple[str, str, tuple[int, ...]]] = [("embedctl", t, (BATCH_TOKENS,)) for t in ("float32", "bfloat16")]
    made += [("sentence-transformers", t, tuple(sizes)) for t in ("float32", "bfloat16")]
    made += [("fastembed", "float32", tuple(sizes))]
    return tuple(
        Contender(
            name=f"{library} {dtype}", environment="here", peer="sparse", sizes=tried,
            settings={"library": library, "dtype": dtype},
        )
        for library, dtype, tried in made
    )  # fmt: skip


def measure(model: BenchModel, corpus: corpora.Corpus, effort: Effort, scratch: Path, say: Say) -> dict[str, Any]:
    """Keys: version, machine, model, corpus, contenders, job (the whole command), JSON-ready."""
    lines = [Line(contender=_told(c, model, scratch)) for c in contenders(effort.sizes)]
    for line in lines:
        if "missing" in line.contender.settings:
            line.reason = line.contender.settings["missing"]
        for size in line.contender.sizes if line.reason is None else ():
            say(f"{model.name}: {line.contender.name}, batches of {size}")
            _sweep(line, size, corpus, effort)
        if line.sweep:
            line.size, line.reason = min(line.sweep, key=lambda n: line.sweep[n][0]), None
    _rounds(lines, corpus, effort, scratch, lambda text: say(f"{model.name}: {text}"))
    say(f"{model.name}: the whole command")
    return {
        "version": VERSION,
        "machine": machine.told(),
        "model": {"name": model.name, "max_length": model.max_length},
        "corpus": {"texts": len(corpus.texts), "tokens": corpus.tokens, "sha256": corpus.sha256},
        "contenders": [line.to_json(corpus) for line in lines],
        "job": _job(model, corpus, effort),
    }


def _told(contender: Contender, model: BenchModel, scratch: Path) -> Contender:
    """With the model's folder, and its graph for who wants one."""
    told: dict[str, Any] = {**contender.settings, "model": model.path, "max_length": model.max_length}
    if told["library"] == "fastembed":
        told["vocabulary"] = json.loads(Path(model.path, "config.json").read_text(encoding="utf-8"))["vocab_size"]
        try:
            told["graph"] = str(graph_of(model, scratch))
        except Exception as exc:  # whatever the exporter stumbles over, the others still run
            told["missing"] = f"no ONNX graph of the model: {type(exc).__name__}: {exc}".splitlines()[0]
    return replace(contender, settings=told)


def _sweep(line: Line, size: int, corpus: corpora.Corpus, effort: Effort) -> None:
    """A first time on few texts, then all. What fails is kept as the reason, unless another size runs."""
    contestant: Contestant | None = None
    try:
        contestant = _started(line)
        few = _stored(corpus.texts[: max(1, len(corpus.texts) // 4)], Path(corpus.file).with_suffix(".few.json"))
        contestant.ask({"do": "round", "corpus": few, "size": size}, timeout_s=effort.timeout_s)
        told = contestant.ask({"do": "round", "corpus": corpus.file, "size": size}, timeout_s=effort.timeout_s)
        line.sweep[size] = (told["wall_s"], contestant.peak_bytes())
    except PeerFailed as exc:
        line.reason = f"batches of {size}: {exc}"
    finally:
        if contestant is not None:
            contestant.close()


def _started(line: Line) -> Contestant:
    root = str(Path(__file__).resolve().parents[2])
    contestant = Contestant(
        sys.executable, line.contender.file, cpus=None, env={"HF_HUB_OFFLINE": "1", "PYTHONPATH": root}
    )
    try:
        contestant.ask({"do": "load", "settings": dict(line.contender.settings)}, timeout_s=LOAD_TIMEOUT_S)
    except PeerFailed:
        contestant.close()
        raise
    line.loaded_bytes = contestant.peak_bytes()
    return contestant


def _rounds(lines: Sequence[Line], corpus: corpora.Corpus, effort: Effort, scratch: Path, say: Say) -> None:
    """In turns, each in a fresh process that has seen its own size only; then, past the peak, what they find."""
    running: dict[str, Contestant] = {}
    try:
        for line in lines:
            if line.reason is None:
                _guarded(line, lambda one: running.update({one.contender.name: _started(one)}))
        for number in range(effort.rounds):
            say(f"round {number + 1} of {effort.rounds}")
            for line in lines:
                if line.reason is None:
                    _guarded(line, lambda one: _round(one, running[one.contender.name], corpus, effort))
        _compare(lines, running, corpus, effort, scratch)
    finally:
        for contestant in running.values():
            contestant.close()


def _guarded(line: Line, work: Callable[[Line], None]) -> None:
    try:
        work(line)
    except PeerFailed as exc:
        line.reason = str(exc)


def _round(line: Line, contestant: Contestant, corpus: corpora.Corpus, effort: Effort) -> None:
    begun = contestant.cpu_s()
    request = {"do": "round", "corpus": corpus.file, "size": line.size}
    line.wall_s.append(contestant.ask(request, timeout_s=effort.timeout_s)["wall_s"])
    line.cpu_s.append(contestant.cpu_s() - begun)
    line.peak_bytes = contestant.peak_bytes()


def _compare(
    lines: Sequence[Line], running: Mapping[str, Contestant], corpus: corpora.Corpus, effort: Effort, scratch: Path
) -> None:
    """Cosines to the reference, which reads the texts one at a time."""
    step = -(-len(corpus.texts) // REFERENCE_TEXTS)
    file, saved = _stored(corpus.texts[::step], scratch / "reference.json"), scratch / "vectors.npy"

    def found(line: Line, size: int) -> np.ndarray:
        request = {"do": "round", "corpus": file, "size": size, "save": str(saved)}
        running[line.contender.name].ask(request, timeout_s=effort.timeout_s)
        vectors: np.ndarray = np.load(saved).astype(np.float64)
        unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    first = next((line for line in lines if line.contender.name == REFERENCE and line.reason is None), None)
    if first is None:
        return
    reference = found(first, 1)
    for line in lines:
        if line.reason is None:
            cosine = (found(line, line.size) * reference).sum(axis=1)
            line.cosine = float(cosine.min()), float(cosine.mean())


def _stored(texts: Sequence[str], file: Path) -> str:
    file.write_text(json.dumps(list(texts)), encoding="utf-8")
    return str(file)


def _job(model: BenchModel, corpus: corpora.Corpus, effort: Effort) -> dict[str, Any]:
    """`embedctl embed` from a file to a committed folder, its start included, by its defaults."""
    try:
        told = whole.job(
            corpus.texts,
            model.path,
            max_length=model.max_length,
            env={"HF_HUB_OFFLINE": "1"},
            timeout_s=effort.timeout_s,
        )
    except PeerFailed as exc:
        return {"status": "not run", "reason": str(exc)}
    return {"status": "ok", "reason": None, **told}


def markdown(report: Mapping[str, Any]) -> str:
    """One line a contender, and the sweep of each peer below."""
    lines = [
        f"{report['model']['name']}, {report['corpus']['texts']} texts, {report['corpus']['tokens']:,} tokens", "",
        "| who | batch | documents/s | tokens/s | tokens/CPU s | peak MiB | of it loaded | cosine, least |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    sweeps = []
    for one in report["contenders"]:
        if one["status"] != "ok":
            lines.append(f"| {one['name']} | not run: {one['reason']} | | | | | | |")
            continue
        least = one["cosine"]["min"]
        cells = [one["size"], f"{one['documents_per_s']:,.1f}", f"{one['tokens_per_s']:,.0f}",
                 f"{one['tokens_per_cpu_s'] or 0:,.0f}", _mib(one["peak_bytes"]), _mib(one["loaded_bytes"]),
                 "" if least is None else f"{least:.6f}"]  # fmt: skip
        lines.append(f"| {one['name']} | {' | '.join(map(str, cells))} |")
        sizes = [f"{s['size']}: {s['documents_per_s']:,.1f}/s, {_mib(s['peak_bytes'])} MiB" for s in one["sweep"]]
        sweeps += [f"- {one['name']}, by batch size: {'; '.join(sizes)}"] if len(sizes) > 1 else []
    job = report["job"]
    if job["status"] == "ok":
        sweeps.append(f"- `embedctl embed`, start included: {job['wall_s']:.1f} s, {_mib(job['peak_bytes'])} MiB")
    return "\n".join([*lines, "", *sweeps]) + "\n"


def _mib(number: int) -> str:
    return f"{number / 2**20:,.0f}"
