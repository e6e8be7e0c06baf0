"""Rankings of a store's records, one an output, fused into hits by reciprocal rank.

Enters: for each query and output the records that a store found, best first. Leaves: the hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embedctl.sinks.base import Hit
from embedctl.sinks.keyed_records import HASH, JOB, POS

RRF_K = 60
"""Cormack, Clarke and Buettcher, 2009: Reciprocal Rank Fusion outperforms Condorcet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One record of a ranking. fields: all of them but the outputs, by our column names."""

    key: str
    score: float
    fields: Mapping[str, Any]


def fused(rankings: Sequence[Sequence[Found]], limit: int) -> list[Hit]:
    """One query's hits. rankings: of each output. With one output its own scores stay, with several the sums of
    1 / (60 + rank) take their place."""
    if len(rankings) == 1:
        return [_hit(one) for one in rankings[0][:limit]]
    scores: dict[str, float] = {}
    records: dict[str, Found] = {}
    for ranking in rankings:
        for rank, one in enumerate(ranking, start=1):
            scores[one.key] = scores.get(one.key, 0.0) + 1 / (RRF_K + rank)
            records.setdefault(one.key, one)
    best = sorted(scores, key=lambda key: -scores[key])[:limit]
    return [_hit(replace(records[key], score=scores[key])) for key in best]


def depth_of(limit: int, outputs: int) -> int:
    """How many records of each output a fusion looks at."""
    return limit if outputs == 1 else max(2 * limit, 100)


def _hit(one: Found) -> Hit:
    kept = {n: v for n, v in one.fields.items() if n not in ("id", "chunk", JOB, POS, HASH)}
    chunk = one.fields.get("chunk")
    id = one.fields.get("id", one.key)
    return Hit(id=str(id), chunk=None if chunk is None else int(chunk), score=one.score, kept=kept)
