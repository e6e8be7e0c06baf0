"""`embedctl bench`: a user's own corpus, model and machine. What is installed here is measured, and settings advised.

Enters: a `JobSpec`. Leaves: a JSON-ready report. Refuses what `plan` refuses, a corpus without a text, and a fake
model.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench import corpora, machine, report, rounds
from embedctl.bench.client import Contestant, PeerFailed
from embedctl.bench.contenders import Contender
from embedctl.bench.own import job_batches
from embedctl.bench.rounds import Limits
from embedctl.errors import SourceError, UsageError
from embedctl.events import Listener
from embedctl.job import planning, wiring
from embedctl.models.folder import ModelFolder
from embedctl.plan import Plan
from embedctl.sources.files import STDIN, discover
from embedctl.spec import JobSpec

SIZES = (2048, 4096, 8192, 16384)
LOAD_TIMEOUT_S = 600.0
WORTH = 0.97
"""A setting is advised over the default only where the default is slower than this share of it."""


def bench(spec: JobSpec, *, num_rounds: int, listener: Listener) -> dict[str, Any]:
    """Keys: version, machine, model, corpus, contenders, roofline, advice (batch_tokens, threads, command).

    :raises UsageError, SourceError, ModelError: before anything is measured.
    """
    if STDIN in spec.inputs:
        raise UsageError("bench cannot read standard input", hint="give it a file: embedctl bench corpus.parquet")
    made = planning.draft(spec, discover(spec.inputs, spec.format))
    if made.folders[0].kind == "fake":
        raise UsageError("--model: the fake model has no speed to measure", hint="embedctl models")
    texts = list(dict.fromkeys(planning.probe(made.plan).texts))[: spec.limit]
    if not texts:
        raise SourceError(
            f"{', '.join(spec.inputs)}: no row has a text to embed", hint="embedctl plan shows what is read"
        )
    tokenizer = wiring.open_tokenizer(made.folders[0], made.plan.resolved, made.plan.spec)

    def count(texts: Sequence[str]) -> Sequence[int]:
        return [n + tokenizer.overhead_tokens for n in tokenizer.count_after_prompt(texts)]

    with tempfile.TemporaryDirectory() as folder:
        corpus = corpora.stored("corpus", texts, count, made.plan.resolved["max_length"], Path(folder))
        return _measured(made.plan, made.folders[0], corpus, num_rounds, Path(folder), listener)


def _measured(
    plan: Plan, folder: ModelFolder, corpus: corpora.Corpus, num_rounds: int, scratch: Path, listener: Listener
) -> dict[str, Any]:
    contenders = _contenders(plan, folder)
    running: dict[str, Contestant | PeerFailed] = {}
    limits = Limits(rounds=num_rounds, tune_texts=max(64, len(corpus.texts) // 4))
    try:
        for contender in contenders:
            listener.note(f"starting {contender.name}")
            running[contender.name] = _started(contender, str(folder.path), plan)
        rows = rounds.reference_rows(corpus, limits)
        reference = _reference(running, contenders, corpus, rows, scratch, limits)
        results = rounds.measure(
            running, contenders, corpus, reference, rows, limits=limits, scratch=scratch, say=listener.note
        )
    finally:
        for contestant in running.values():
            if isinstance(contestant, Contestant):
                contestant.close()
    told: dict[str, Any] = {"contenders": [r.to_json(corpus) for r in results]}
    found = report.ratio_lines(told)
    return {
        "version": report.VERSION,
        "machine": machine.told(),
        "model": {"name": folder.name, "max_length": plan.resolved["max_length"], "dtype": plan.resolved["dtype"]},
        "corpus": {"texts": len(corpus.texts), "tokens": corpus.tokens},
        "contenders": found,
        "roofline": _ceilings(plan, folder, corpus, found[0]),
        "advice": _advice(plan, contenders, found),
    }


def _contenders(plan: Plan, folder: ModelFolder) -> tuple[Contender, ...]:
    threads, device = plan.resolved["threads"], plan.resolved["device"]
    common = {"device": device, "threads": threads, "dtype": plan.resolved["dtype"]}

    def own(name: str, **settings: Any) -> Contender:
        return Contender(name=name, environment=None, peer="own", settings={**common, **settings}, sizes=SIZES)

    found = [own("embedctl")]
    found += [
        own(f"embedctl, {n} threads", threads=n)
        for n in sorted({1, max(1, threads // 2)} - {threads})
        if device == "cpu"
    ]
    if folder.kind != "static":
        found.append(own("embedctl, no compile", compile=False))
        if plan.resolved["dtype"] != "float32":
            found.append(own("embedctl float32", dtype="float32"))
    if importlib.util.find_spec("sentence_transformers"):
        dtypes = ("float32",) if folder.kind == "static" else dict.fromkeys(("float32", plan.resolved["dtype"]))
        for dtype in dtypes:
            settings = {"backend": "torch", "dtype": dtype, "device": device}
            found.append(
                Contender(name=f"sentence-transformers {dtype}", environment="here", peer="st", settings=settings)
            )
    return tuple(found)


def _started(contender: Contender, model: str, plan: Plan) -> Contestant | PeerFailed:
    root = str(Path(__file__).resolve().parents[2])
    contestant = Contestant(sys.executable, contender.file, cpus=None, env={"HF_HUB_OFFLINE": "1", "PYTHONPATH": root})
    settings = {"model": model, "max_length": plan.resolved["max_length"], **contender.settings}
    try:
        contestant.ask({"do": "load", "settings": settings}, timeout_s=LOAD_TIMEOUT_S)
    except PeerFailed as exc:
        contestant.close()
        return exc
    return contestant


def _reference(
    running: Mapping[str, Contestant | PeerFailed], contenders: Sequence[Contender], corpus: corpora.Corpus,
    rows: np.ndarray, scratch: Path, limits: Limits,
) -> np.ndarray | None:  # fmt: skip
    """float32 (n, dim), one text at a time: by sentence-transformers where it is installed, else by ourselves."""
    file, vectors = scratch / "reference.json", scratch / "reference.npy"
    file.write_text(json.dumps([corpus.texts[i] for i in rows]), encoding="utf-8")
    for contender in reversed(contenders):
        contestant = running[contender.name]
        if contender.settings["dtype"] == "float32" and isinstance(contestant, Contestant):
            try:
                request = {"do": "round", "corpus": str(file), "size": 1, "save": str(vectors)}
                contestant.ask(request, timeout_s=limits.timeout_s)
            except PeerFailed:
                continue
            found: np.ndarray = np.load(vectors)
            return found
    return None


def _ceilings(plan: Plan, folder: ModelFolder, corpus: corpora.Corpus, own: Mapping[str, Any]) -> dict[str, Any] | None:
    rate = own["encode_tokens_per_s"]
    if folder.kind == "static" or folder.path is None or not rate:
        return None
    from embedctl.bench import roofline

    told = roofline.measure(
        Path(folder.path), job_batches(corpus.lengths, own["size"]), dtype=plan.resolved["dtype"],
        threads=plan.resolved["threads"], device=plan.resolved["device"],
    )  # fmt: skip
    reached = {k: rate / ceiling for k, ceiling in told["tokens_per_s"].items() if ceiling}
    return {**told, "reached": reached}


def _advice(plan: Plan, contenders: Sequence[Contender], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens a batch and threads that were fastest here, and the flags that ask for them where they are not the
    default.
    """
    ran = [(c, f) for c, f in zip(contenders, found, strict=True) if c.own and f["tokens_per_s"] and not f["wrong"]]
    same = [(c, f) for c, f in ran if c.settings["dtype"] == plan.resolved["dtype"] and "compile" not in c.settings]
    if not same:
        return {"batch_tokens": None, "threads": None, "flags": ""}
    first = same[0]
    best = max(same, key=lambda pair: pair[1]["tokens_per_s"])
    if first[0].name == "embedctl" and first[1]["tokens_per_s"] >= WORTH * best[1]["tokens_per_s"]:
        best = first
    flags = [f"--batch-tokens {best[1]['size']}"] if best[1]["size"] != plan.resolved["batch_tokens"] else []
    threads = best[0].settings["threads"]
    flags += [f"--threads {threads}"] if threads != plan.resolved["threads"] else []
    return {"batch_tokens": best[1]["size"], "threads": threads, "flags": " ".join(flags)}


def brief(told: Mapping[str, Any]) -> dict[str, Any]:
    """The report as people want it: one line a contender."""
    lines = {}
    for row in told["contenders"]:
        if row["status"] != "ok":
            lines[row["name"]] = f"not run: {row['reason']}"
            continue
        ratio = f", {row['ratio']:.2f} times slower" if row["ratio"] and row["ratio"] > 1 else ""
        cosine = row["cosine"]["mean"]
        agrees = (
            "" if cosine is None else f", cosine {int(cosine * 1e5) / 1e5:.5f}" + (" WRONG" if row["wrong"] else "")
        )
        lines[row["name"]] = f"{row['tokens_per_s']:,.0f} tokens/s{ratio}{agrees}"
    roofline = told["roofline"]
    reached = {} if roofline is None else {"reached": {f"of {k}": round(v, 2) for k, v in roofline["reached"].items()}}
    advice = told["advice"]
    return {
        "machine": f"{told['machine']['processor']}, {told['machine']['threads']} threads",
        "model": told["model"],
        "corpus": told["corpus"],
        "speed": lines,
        **reached,
        "advice": advice["flags"] or "the defaults",
    }


def limited(spec: JobSpec, rows: int) -> JobSpec:
    """The job with a limit of texts to measure where the user gave none."""
    return spec if spec.limit else replace(spec, limit=rows)
