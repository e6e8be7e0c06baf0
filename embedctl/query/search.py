"""`search`: the rows of a destination nearest to queries, or to one of its own rows.

Enters: a destination and queries. Leaves: a JSON-ready report of hits. A folder of Parquet is searched exactly, in one
pass and bounded memory; a store by its own `search`, where its sink has one. What is not finished is searched as it is.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol, cast

import numpy as np

from embedctl.errors import UsageError
from embedctl.events import Listener
from embedctl.job.destination import Destination, open_existing
from embedctl.plan import Plan
from embedctl.query.nearest import Ranking, nearest
from embedctl.query.parts import VECTOR, Parts, keys_of, open_parts, rows_of, stretches
from embedctl.query.queries import Asking, Query, embed_queries
from embedctl.query.similarity import Scorer
from embedctl.sinks.parquet import ParquetSink
from embedctl.spec import JobSpec

REPORT_VERSION = 1
SPAN = ("chunk", "char_start", "char_end")

Hit = dict[str, Any]
"""rank, score, id, chunk, char_start, char_end (null without chunks), and `columns`: what was kept of the row."""


class Searchable(Protocol):
    """What a store's sink offers to be searched by its own index."""

    def search(self, vectors: np.ndarray, *, k: int, where: str | None) -> list[list[Hit]]:
        """vectors: float32 (Q, C). The hits of each, best first."""
        ...


def search(
    destination: str,
    queries: Sequence[Query] = (),
    *,
    like: str | None = None,
    k: int = 10,
    where: str | None = None,
    asking: Asking,
    listener: Listener,
) -> dict[str, Any]:
    """The k nearest rows of each query; with `like`, of the row of that id (`id#n`: its chunk n), itself left out.

    :raises UsageError: nothing of embedctl's there, a store that cannot be searched, no row of that id, a bad `where`.
    """
    plan, found = open_existing(JobSpec(to=destination))
    with closing(found.sink):
        if hasattr(found.sink, "search") and like is None:
            own = cast(Searchable, found.sink)
            hits = own.search(embed_queries(plan, queries, asking, listener), k=k, where=where)
            name = plan.model["similarity"]
            return _report(found, plan, finished=None, seen=None, name=name, queries=queries, hits=hits)
        check_parquet(found)
        return _exactly(found, open_parts(plan, found), queries, like, k, where, asking, listener)


def _exactly(
    found: Destination,
    parts: Parts,
    queries: Sequence[Query],
    like: str | None,
    k: int,
    where: str | None,
    asking: Asking,
    listener: Listener,
) -> dict[str, Any]:
    tell_unfinished(parts, listener)
    without: np.ndarray | None = None
    if like is not None:
        vectors, without = _stored(parts, like)
        queries = [Query(id=like, text="")]
    else:
        vectors = embed_queries(parts.plan, queries, asking, listener)
    scorer = scorer_of(parts, vectors)
    rankings, seen = nearest(stretches(parts, where, without), scorer, count=len(queries), k=k, by_document=False)
    hits = _hits(parts, rankings)
    return _report(found, parts.plan, finished=parts.finished, seen=seen, name=scorer.name, queries=queries, hits=hits)


def check_parquet(found: Destination) -> None:
    """:raises UsageError: a store, which cannot be read row by row."""
    if not isinstance(found.sink, ParquetSink):
        raise UsageError(
            f"{found.uri}: this kind of destination cannot be searched from here",
            hint="embed to a folder of Parquet, or ask the store itself",
        )


def tell_unfinished(parts: Parts, listener: Listener) -> None:
    if not parts.finished:
        listener.note(f"{parts.destination} is not finished: only what is committed so far is searched")


def scorer_of(parts: Parts, vectors: np.ndarray) -> Scorer:
    """`vectors`: float (Q, C), the queries'."""
    return Scorer(
        vectors,
        vector_type=parts.plan.spec["vector_type"],
        similarity=parts.plan.model["similarity"],
        dim=parts.plan.model["dim"],
        ranges=parts.ranges,
    )


def _stored(parts: Parts, like: str) -> tuple[np.ndarray, np.ndarray]:
    """(vector (1, C) of the row, keys of all rows of its id)."""
    keys, chunk = keys_of(parts, like), 0
    id, _, number = like.rpartition("#")
    if not len(keys) and number.isdecimal():
        keys, chunk = keys_of(parts, id), int(number)
    columns = ["chunk", VECTOR] if parts.plan.chunked else [VECTOR]
    rows = rows_of(parts, keys.tolist(), columns)
    chosen = [row[VECTOR] for _, row in sorted(rows.items()) if row.get("chunk", 0) == chunk]
    if not chosen:
        raise UsageError(
            f"--like: {parts.destination} has no row with the id {like!r}",
            hint=f"embedctl search {parts.destination} 'some words' shows ids",
        )
    return scorer_of(parts, np.zeros((1, parts.plan.model["dim"]))).values(chosen[0][None]), keys


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
        "vector_type": plan.spec["vector_type"],
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
