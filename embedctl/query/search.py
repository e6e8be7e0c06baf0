"""`search`: the rows of a destination nearest to queries, or to one of its own rows.

Enters: a destination and queries. Leaves: a JSON-ready report of hits. A folder of Parquet is searched exactly, in one
pass an output and bounded memory; a store by its own index. Several outputs are fused by reciprocal rank. What is not
finished is searched as it is.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedctl.errors import UsageError
from embedctl.events import Listener
from embedctl.job.destination import Destination, open_existing
from embedctl.outputs import Multivector, OutputSpec, Sparse, Values
from embedctl.plan import Plan
from embedctl.query.nearest import Ranking, nearest
from embedctl.query.parts import Parts, keys_of, open_parts, rows_of, stretches
from embedctl.query.queries import Asking, Query, embed_queries
from embedctl.query.similarity import AnyScorer, Scorer
from embedctl.query.similarity_lists import MaxSimScorer, SparseScorer, idf_of
from embedctl.sinks import base
from embedctl.sinks.parquet import ParquetSink
from embedctl.spec import JobSpec

REPORT_VERSION = 1
SPAN = ("chunk", "char_start", "char_end")
RRF_K = 60
"""Reciprocal rank fusion: 1 / (k + rank), summed (Cormack, Clarke and Buettcher, 2009)."""
MIN_POOL = 100
"""Candidates of each output that a fusion looks at, at least."""

Hit = dict[str, Any]
"""rank, score, id, chunk, char_start, char_end (null without chunks), and `columns`: what was kept of the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a destination is searched. using: an output, None: the first. hybrid: all dense and sparse ones, fused.

    exact: a store looks at every vector, past its index.
    """

    k: int = 10
    where: str | None = None
    using: str | None = None
    hybrid: bool = False
    exact: bool = False
    state: str | None = None

    def outputs(self, plan: Plan, uri: str) -> tuple[OutputSpec, ...]:
        """:raises UsageError: no such output, or nothing to fuse."""
        if all(o.kind == "score" for o in plan.outputs):
            raise UsageError(f"{uri}: it holds scores of texts, no vectors to search", hint="embedctl embed makes some")
        known = {o.name: o for o in plan.outputs}
        told = ", ".join(f"{o.name} ({o.kind})" for o in plan.outputs)
        if self.hybrid:
            fused = tuple(o for o in plan.outputs if o.kind in ("dense", "sparse"))
            if {o.kind for o in fused} != {"dense", "sparse"}:
                raise UsageError(
                    f"--hybrid: {uri} must have a dense and a sparse output; it has {told}",
                    hint="embed with --output dense --output sparse, or with two models",
                )
            return fused
        if self.using is not None and self.using not in known:
            raise UsageError(f"--using: {uri} has no output {self.using!r}; it has {told}")
        return (known[self.using],) if self.using is not None else plan.outputs[:1]


def search(
    destination: str,
    queries: Sequence[Query] = (),
    *,
    like: str | None = None,
    wanted: Wanted,
    asking: Asking,
    listener: Listener,
) -> dict[str, Any]:
    """The k nearest rows of each query; with `like`, of the row of that id (`id#n`: its chunk n), itself left out.

    :raises UsageError: nothing of embedctl's there, a store that cannot be searched, no row of that id, a bad `where`.
    """
    plan, found = open_existing(JobSpec(to=destination, state=wanted.state))
    with closing(found.sink):
        outputs = wanted.outputs(plan, found.uri)
        if isinstance(found.sink, ParquetSink):
            return _exactly(found, open_parts(plan, found), outputs, queries, like, wanted, asking, listener)
        if like is not None:
            raise UsageError("--like: only a folder of Parquet can be asked so", hint="search with words")
        store = searchable(found)
        vectors = embed_queries(plan, queries, asking, listener, [o.name for o in outputs])
        hits = store.search(vectors, limit=wanted.k, where=wanted.where, exact=wanted.exact)
        name = "rrf" if len(outputs) > 1 else outputs[0].similarity
        return _report(
            found, plan, finished=None, seen=None, name=name, queries=queries, hits=[_of_store(h) for h in hits]
        )


def searchable(found: Destination) -> base.Searchable:
    """:raises UsageError: a store that has no search of its own here."""
    if not isinstance(found.sink, base.Searchable):
        raise UsageError(
            f"{found.uri}: this kind of destination cannot be searched from here",
            hint="embed to a folder of Parquet, or ask the store itself",
        )
    return found.sink


def _exactly(
    found: Destination,
    parts: Parts,
    outputs: Sequence[OutputSpec],
    queries: Sequence[Query],
    like: str | None,
    wanted: Wanted,
    asking: Asking,
    listener: Listener,
) -> dict[str, Any]:
    tell_unfinished(parts, listener)
    without: np.ndarray | None = None
    if like is not None:
        vectors, without = _stored(parts, like, outputs)
        queries = [Query(id=like, text="")]
    else:
        vectors = embed_queries(parts.plan, queries, asking, listener, [o.name for o in outputs])
    rankings, seen, name = ranked(
        parts, outputs, vectors, count=len(queries), k=wanted.k, where=wanted.where, without=without
    )
    return _report(
        found, parts.plan, finished=parts.finished, seen=seen, name=name, queries=queries, hits=_hits(parts, rankings)
    )


def ranked(
    parts: Parts,
    outputs: Sequence[OutputSpec],
    vectors: Mapping[str, Values],
    *,
    count: int,
    k: int,
    where: str | None = None,
    without: np.ndarray | None = None,
    by_document: bool = False,
) -> tuple[list[Ranking], int, str]:
    """Rankings of `count` queries, how many rows were looked at, and the similarity's name."""
    pool = k if len(outputs) == 1 else max(4 * k, MIN_POOL)
    found: list[list[Ranking]] = []
    seen, name = 0, "rrf"
    for output in outputs:
        scorer = scorer_of(parts, output, vectors[output.name])
        name = name if len(outputs) > 1 else scorer.name
        rankings, seen = nearest(
            stretches(parts, output, where, without), scorer, count=count, k=pool, by_document=by_document
        )
        found.append(rankings)
    return (found[0] if len(found) == 1 else [_fused(one, k) for one in zip(*found, strict=True)]), seen, name


def _fused(rankings: Sequence[Ranking], k: int) -> Ranking:
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.keys.tolist(), start=1):
            scores[key] = scores.get(key, 0.0) + 1 / (RRF_K + rank)
    best = sorted(scores, key=lambda key: (-scores[key], key))[:k]
    return Ranking(
        scores=np.array([scores[key] for key in best], dtype=np.float32), keys=np.array(best, dtype=np.int64)
    )


def tell_unfinished(parts: Parts, listener: Listener) -> None:
    if not parts.finished:
        listener.note(f"{parts.destination} is not finished: only what is committed so far is searched")


def scorer_of(parts: Parts, output: OutputSpec, queries: Values) -> AnyScorer:
    """The output's own similarity to these queries."""
    if isinstance(queries, Sparse):
        return SparseScorer(queries, _idf(parts, output, queries) if output.modifier == "idf" else None)
    if isinstance(queries, Multivector):
        return MaxSimScorer(queries, output.similarity)
    return Scorer(
        queries,
        vector_type=output.vector_type,
        similarity=output.similarity,
        dim=output.dim,
        ranges=parts.ranges.get(output.name),
    )


def _idf(parts: Parts, output: OutputSpec, queries: Sparse) -> np.ndarray:
    """In a pass of its own: how many rows have each of the queries' indices."""
    plain = SparseScorer(queries)
    found, count = np.zeros(len(plain.indices)), 0
    for stretch in stretches(parts, output):
        matched = plain.values(stretch.vectors)
        found += np.bincount(matched.column, minlength=len(plain.indices))
        count += matched.count
    return idf_of(found, count)


def _stored(parts: Parts, like: str, outputs: Sequence[OutputSpec]) -> tuple[dict[str, Values], np.ndarray]:
    """(one value of each output, the row's; keys of all rows of its id)."""
    keys, chunk = keys_of(parts, like), 0
    id, _, number = like.rpartition("#")
    if not len(keys) and number.isdecimal():
        keys, chunk = keys_of(parts, id), int(number)
    columns = [*(["chunk"] if parts.plan.chunked else []), *(o.name for o in outputs)]
    rows = rows_of(parts, keys.tolist(), columns)
    chosen = [row for _, row in sorted(rows.items()) if row.get("chunk", 0) == chunk]
    if not chosen:
        raise UsageError(
            f"--like: {parts.destination} has no row with the id {like!r}",
            hint=f"embedctl search {parts.destination} 'some words' shows ids",
        )
    return {o.name: _as_query(parts, o, chosen[0][o.name]) for o in outputs}, keys


def _as_query(parts: Parts, output: OutputSpec, stored: Values) -> Values:
    """A stored value as a query: whole numbers and bits as what they stand for."""
    if not isinstance(stored, np.ndarray):
        return stored
    values: np.ndarray = scorer_of(parts, output, np.zeros((1, output.dim))).values(stored)
    return values


def _hits(parts: Parts, rankings: Sequence[Ranking]) -> list[list[Hit]]:
    rows = rows_of(parts, [key for ranking in rankings for key in ranking.keys.tolist()])
    return [
        [
            _hit(rank, score, rows[key])
            for rank, (score, key) in enumerate(zip(r.scores.tolist(), r.keys.tolist(), strict=True), start=1)
        ]
        for r in rankings
    ]


def _hit(rank: int, score: float, row: Mapping[str, Any]) -> Hit:
    kept = {name: jsonable(value) for name, value in row.items() if name != "id" and name not in SPAN}
    return {"rank": rank, "score": score, "id": row["id"], **{n: row.get(n) for n in SPAN}, "columns": kept}


def _of_store(hits: Sequence[base.Hit]) -> list[Hit]:
    out: list[Hit] = []
    for rank, hit in enumerate(hits, start=1):
        kept = {name: jsonable(value) for name, value in hit.kept.items() if name not in SPAN}
        span = {"chunk": hit.chunk, **{n: hit.kept.get(n) for n in SPAN[1:]}}
        out.append({"rank": rank, "score": float(hit.score), "id": hit.id, **span, "columns": kept})
    return out


def _report(
    found: Destination,
    plan: Plan,
    *,
    finished: bool | None,
    seen: int | None,
    name: str,
    queries: Sequence[Query],
    hits: Sequence[Sequence[Hit]],
) -> dict[str, Any]:
    return {
        "version": REPORT_VERSION,
        "destination": found.uri,
        "model": plan.model["name"],
        "vector_type": plan.outputs[0].vector_type,
        "similarity": name,
        "finished": finished,
        "vectors": seen,
        "queries": [
            {"id": query.id, "text": query.text or None, "hits": list(rows)}
            for query, rows in zip(queries, hits, strict=True)
        ],
    }


def jsonable(value: Any) -> Any:
    """A cell as JSON can hold it: bytes as base64, dates and the like as text, NaN and infinities as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
