"""The whole bench, as `scripts/bench` runs it: every peer, corpus and model in one run, then table, JSON and plot.

Enters: arguments. Leaves: `bench.json`, `bench.md` and `bench.png` in the output folder. Refuses unknown peers,
corpora and models by name. A peer that cannot be installed or run is told as such, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench import corpora, machine, plot, report, rounds
from embedctl.bench.client import Contestant, PeerFailed
from embedctl.bench.contenders import DEFAULT, ENVIRONMENTS, PEERS, REFERENCE, Contender, chosen
from embedctl.bench.environments import python_of
from embedctl.bench.models import BENCH_MODELS, BenchModel, bench_model
from embedctl.bench.rounds import Limits, Result
from embedctl.errors import EmbedctlError

LOAD_TIMEOUT_S = 900.0
ENV = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
QUICK = Limits(rounds=1, tune_texts=24, reference_texts=16, timeout_s=300)
JOB_ROWS = 20_000
MEMORY_ROWS = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What was asked for. environments: folder of the peers' interpreters; cache: of models, graphs and texts."""

    peers: tuple[Contender, ...]
    corpora: tuple[str, ...]
    models: tuple[str, ...]
    limits: Limits
    quick: bool
    memory: tuple[int, ...]
    environments: Path
    constraints: Path
    out: Path

    @property
    def cache(self) -> Path:
        return self.environments / "cache"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when done, 2 for what cannot be asked."""
    args = _parser().parse_args(argv)
    try:
        if args.readme:
            bench = json.loads((args.out / "bench.json").read_text(encoding="utf-8"))
            say("the README's table is " + ("new" if report.fill(args.readme, bench) else "as it was"))
            return 0
        run(_bench(args))
    except (EmbedctlError, ValueError, OSError) as exc:
        say(f"error: {exc}")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure embedctl beside its peers on this machine."
    )
    names = sorted({c.environment or "embedctl" for c in chosen(())})
    parser.add_argument("--quick", action="store_true", help="few texts, one round: see that everything runs")
    parser.add_argument(
        "--peers", default="", metavar="A,B", help=f"of {', '.join(names)}, or a contender's whole name"
    )
    parser.add_argument("--corpora", default=",".join(corpora.NAMES), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--models", default=",".join(BENCH_MODELS), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument(
        "--memory", default="", metavar="ROWS,…", help=f"also memory at so many rows; all: {MEMORY_ROWS}"
    )
    parser.add_argument("--out", type=Path, default=Path("bench-out"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--environments", type=Path, default=Path(".venv-bench"), help="default: %(default)s")
    parser.add_argument("--constraints", type=Path, default=Path("constraints.txt"), help=argparse.SUPPRESS)
    parser.add_argument("--readme", type=Path, nargs="?", const=Path("README.md"), metavar="FILE",
                        help="measure nothing; put the table of --out between the marks of the README")  # fmt: skip
    return parser


def _bench(args: argparse.Namespace) -> Bench:
    if args.rounds < 1:
        raise ValueError(f"--rounds: {args.rounds} must be at least 1")
    sizes = MEMORY_ROWS if args.memory == "all" else tuple(int(n) for n in args.memory.split(",") if n)
    unknown = set(_split(args.corpora)) - set(corpora.NAMES)
    if unknown:
        raise ValueError(f"--corpora: {min(unknown)!r} is not one of {', '.join(corpora.NAMES)}")
    return Bench(
        peers=chosen(_split(args.peers)), corpora=_split(args.corpora), models=_split(args.models),
        limits=QUICK if args.quick else Limits(rounds=args.rounds), quick=args.quick, memory=sizes,
        environments=args.environments.resolve(), constraints=args.constraints.resolve(), out=args.out,
    )  # fmt: skip


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def run(bench: Bench) -> dict[str, Any]:
    """Measure, write after every corpus, and return what bench.json holds."""
    bench.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "version": report.VERSION, "quick": bench.quick, "rounds": bench.limits.rounds, "machine": machine.told(),
        "models": {},
    }  # fmt: skip
    for name in bench.models:
        model = bench_model(name, bench.cache)
        measured: dict[str, Any] = {}
        found["models"][name] = {"max_length": model.max_length, "dim": model.dim, "corpora": measured}
        with tempfile.TemporaryDirectory() as scratch:
            for corpus, one in _model(bench, model, Path(scratch)):
                if corpus is None:
                    found["whole"] = one
                else:
                    measured[corpus] = one
                _write(bench, found)
    return found


def _write(bench: Bench, found: dict[str, Any]) -> None:
    (bench.out / "bench.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (bench.out / "bench.md").write_text(report.markdown(found), encoding="utf-8")
    try:
        plot.draw(found, bench.corpora[0], bench.out / "bench.png")
    except EmbedctlError as exc:
        say(f"no plot: {exc}")
    say(f"written: {bench.out}/bench.json, bench.md, bench.png")


def _model(bench: Bench, model: BenchModel, scratch: Path) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """What each corpus gave, by its name; then, of the first model, what is measured of the whole job, by None."""
    from embedctl.bench.own import ceilings, token_counts

    count = token_counts(model)
    running = _start(bench, model)
    try:
        for name in bench.corpora:
            scale = 0.03 if bench.quick else 1.0
            corpus = corpora.make(name, count, model.max_length, bench.cache / "corpora" / model.name, scale=scale)
            say(f"{model.name}, {name}: {len(corpus.texts):,} texts, {corpus.tokens:,} tokens")
            rows = rounds.reference_rows(corpus, bench.limits)
            reference = _reference(running.get(REFERENCE), corpus, rows, bench, scratch)
            results = rounds.measure(
                running, bench.peers, corpus, reference, rows, limits=bench.limits, scratch=scratch, say=say
            )
            told = _corpus(corpus, model, results)
            yield name, {**told, "roofline": ceilings(model, corpus, told["contenders"], quick=bench.quick)}
        if model.name == bench.models[0]:
            yield None, _whole(bench, model, running.get(DEFAULT), count, scratch)
    finally:
        for contestant in running.values():
            if isinstance(contestant, Contestant):
                contestant.close()


def _corpus(corpus: corpora.Corpus, model: BenchModel, results: Sequence[Result]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "texts": len(corpus.texts), "tokens": corpus.tokens, "sha256": corpus.sha256, "max_length": model.max_length,
        "contenders": [r.to_json(corpus) for r in results],
    }  # fmt: skip
    return {**told, "contenders": report.ratio_lines(told)}


def _start(bench: Bench, model: BenchModel) -> dict[str, Contestant | PeerFailed]:
    """Everybody loaded; the reference too, whether or not it was asked for."""
    running: dict[str, Contestant | PeerFailed] = {}
    wanted = {c.name: c for c in (*bench.peers, *(c for c in chosen(()) if c.name == REFERENCE))}
    if any(c.graph for c in wanted.values()):
        graph = next(c for c in chosen(("onnx",)))
        wanted = {graph.name: graph, **wanted}  # its loading exports the file that others read
    for contender in wanted.values():
        say(f"starting {contender.name}")
        try:
            running[contender.name] = _started(bench, model, contender)
        except PeerFailed as exc:
            say(f"not run: {contender.name}: {exc}")
            running[contender.name] = exc
    kept = {c.name for c in bench.peers} | {REFERENCE, DEFAULT}
    for name in [n for n in running if n not in kept]:
        extra = running.pop(name)
        if isinstance(extra, Contestant):
            extra.close()
    return running


def _started(bench: Bench, model: BenchModel, contender: Contender) -> Contestant:
    env = dict(ENV)
    if contender.environment is None:
        python = sys.executable
        env["PYTHONPATH"] = os.pathsep.join([str(PEERS.parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
    else:
        environment = ENVIRONMENTS[contender.environment]
        python = python_of(contender.environment, environment, root=bench.environments, constraints=bench.constraints)
    contestant = Contestant(python, contender.file, cpus=None, env=env)
    settings = {"model": model.path, "max_length": model.max_length, "dim": model.dim, "cache": str(bench.cache)}
    try:
        contestant.ask({"do": "load", "settings": {**settings, **contender.settings}}, timeout_s=LOAD_TIMEOUT_S)
    except PeerFailed:
        contestant.close()
        raise
    return contestant


def _reference(
    contestant: Contestant | PeerFailed | None, corpus: corpora.Corpus, rows: np.ndarray, bench: Bench, scratch: Path
) -> np.ndarray | None:
    """float32 (n, dim): the texts `rows`, one at a time, in float32."""
    if not isinstance(contestant, Contestant):
        return None
    file, vectors = scratch / f"reference-{corpus.name}.json", scratch / "reference.npy"
    file.write_text(json.dumps([corpus.texts[i] for i in rows]), encoding="utf-8")
    try:
        request = {"do": "round", "corpus": str(file), "size": 1, "save": str(vectors)}
        contestant.ask(request, timeout_s=bench.limits.timeout_s)
    except PeerFailed as exc:
        say(f"no reference: {exc}")
        return None
    found: np.ndarray = np.load(vectors)
    return found


def _whole(
    bench: Bench, model: BenchModel, own: Contestant | PeerFailed | None, count: corpora.Count, scratch: Path
) -> dict[str, Any]:
    from embedctl.bench.own import whole_job

    say("the whole job")
    rows = 300 if bench.quick else JOB_ROWS
    return whole_job(
        model, own if isinstance(own, Contestant) else None, count, rows=rows, rounds=1 if bench.quick else 3,
        memory=bench.memory, cache=bench.cache, scratch=scratch, env=ENV, timeout_s=bench.limits.timeout_s * 4,
    )  # fmt: skip


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
