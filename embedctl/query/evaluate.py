"""`eval`: how well a destination finds what its judges found, by trec_eval's own measures.

Enters: a destination, queries, and judgements (qrels). Leaves: nDCG@10, MRR@10 and recall@100 over all judged queries.
Refused: a file with no judgement, a line that is none. Ids that match nothing are counted and told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedctl.errors import SourceError, UsageError
from embedctl.events import Listener
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination, open_existing
from embedctl.ledger.segments import Ledger
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.query.parts import known_ids, open_parts, rows_of
from embedctl.query.queries import Asking, Query, embed_queries, read_queries
from embedctl.query.search import Wanted, ranked, searchable, tell_unfinished
from embedctl.sinks.parquet import ParquetSink
from embedctl.spec import JobSpec

DEPTH = 100
CHUNKS = 4
"""A store is asked for so many times more chunks than documents are wanted."""
CUTOFF = 10
MEASURES = {"ndcg@10": "ndcg_cut_10", "mrr@10": "recip_rank", "recall@100": "recall_100"}

Qrels = dict[str, dict[str, int]]
"""Query id -> document id -> relevance; 0 and below: judged as not relevant."""


def evaluate(
    destination: str, *, queries: Path, qrels: Path, wanted: Wanted | None = None, asking: Asking, listener: Listener
) -> dict[str, Any]:
    """JSON-ready; a document of several chunks counts once, with its best.

    :raises UsageError: a bad line, no judged query, or pytrec_eval is not installed.
    """
    _library()
    wanted = wanted or Wanted()
    judged, asked = read_qrels(qrels), read_queries(queries)
    plan, found = open_existing(JobSpec(to=destination, state=wanted.state))
    with closing(found.sink):
        outputs = wanted.outputs(plan, found.uri)
        known = _judged(asked, judged)
        documents = {document for query in known for document in judged[query.id]}
        trial = _Trial(
            plan=plan, found=found, queries=known, documents=documents, outputs=outputs, wanted=wanted, asking=asking,
            listener=listener,
        )  # fmt: skip
        runs, here, done = trial.of_folder() if isinstance(found.sink, ParquetSink) else trial.of_store()
    scores = measure(runs, {query.id: judged[query.id] for query in known})
    lost = len(documents - here)
    if lost:
        listener.note(f"{lost} of {len(documents)} judged documents are not in {found.uri}: they count as not found")
    return {
        "version": 1,
        "destination": found.uri,
        "model": plan.model["name"],
        "vector_type": outputs[0].vector_type,
        "outputs": [o.name for o in outputs],
        "finished": done,
        "queries": len(known),
        "measures": {name: sum(s[name] for s in scores.values()) / len(known) for name in MEASURES},
        "unknown": {**_unknown(asked, judged), "documents": lost},
    }


def _judged(asked: Sequence[Query], judged: Qrels) -> list[Query]:
    """Queries that have a relevant document. :raises UsageError: none has."""
    relevant = _relevant(judged)
    known = [query for query in asked if query.id in relevant]
    if not known:
        raise UsageError(
            f"--qrels: of its {len(relevant)} queries with a relevant document none is among the {len(asked)} asked",
            hint="the first column must hold the ids of --queries",
        )
    return known


def _relevant(judged: Qrels) -> set[str]:
    return {query for query, documents in judged.items() if max(documents.values()) > 0}


def _unknown(asked: Sequence[Query], judged: Qrels) -> dict[str, int]:
    relevant = _relevant(judged)
    return {
        "queries_without_text": len(judged.keys() - {query.id for query in asked}),
        "queries_without_judgement": sum(query.id not in judged for query in asked),
        "queries_without_relevant": sum(query.id in judged and query.id not in relevant for query in asked),
    }


Runs = dict[str, list[str]]
"""Query id -> ids of its DEPTH best documents, best first, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Judged queries put to a destination. documents: all that are judged for them."""

    plan: Plan
    found: Destination
    queries: Sequence[Query]
    documents: Collection[str]
    outputs: Sequence[OutputSpec]
    wanted: Wanted
    asking: Asking
    listener: Listener

    def of_folder(self) -> tuple[Runs, set[str], bool]:
        """Runs, those of the documents that are there, and whether the job is finished."""
        parts = open_parts(self.plan, self.found)
        tell_unfinished(parts, self.listener)
        rankings, _, _ = ranked(
            parts,
            self.outputs,
            self._vectors(parts.plan),
            count=len(self.queries),
            k=DEPTH,
            where=self.wanted.where,
            by_document=True,
        )
        rows = rows_of(parts, {key for ranking in rankings for key in ranking.keys.tolist()}, ["id"])
        runs = {
            query.id: list(dict.fromkeys(str(rows[key]["id"]) for key in ranking.keys.tolist()))
            for query, ranking in zip(self.queries, rankings, strict=True)
        }
        return runs, known_ids(parts, self.documents), parts.finished

    def of_store(self) -> tuple[Runs, set[str], bool]:
        """As of a folder, by the store's own index."""
        store, documents = searchable(self.found), set(self.documents)
        contents = Ledger(self.found.storage).contents
        depth = DEPTH * CHUNKS if self.plan.chunked else DEPTH
        hits = store.search(self._vectors(self.plan), limit=depth, where=self.wanted.where, exact=self.wanted.exact)
        runs = {
            query.id: list(dict.fromkeys(hit.id for hit in found))[:DEPTH]
            for query, found in zip(self.queries, hits, strict=True)
        }
        here: set[str] = set()
        for record in ending.live_records(contents):
            here |= documents.intersection(self.found.sink.rows(record)[0] if record.units else ())
        return runs, here, ending.is_finalised(self.plan, contents)

    def _vectors(self, plan: Plan) -> dict[str, Values]:
        return embed_queries(plan, self.queries, self.asking, self.listener, [o.name for o in self.outputs])


def measure(runs: Mapping[str, Sequence[str]], qrels: Qrels) -> dict[str, dict[str, float]]:
    """The measures of each query of `qrels`, by pytrec_eval; a query without a run has 0 in all.

    Ranks go in as falling scores, so that ties were already settled by the search.
    """
    library = _library()
    deep = library.RelevanceEvaluator(qrels, {f"ndcg_cut.{CUTOFF}", f"recall.{DEPTH}"})
    short = library.RelevanceEvaluator(qrels, {"recip_rank"})
    found = {query: dict(values) for query, values in deep.evaluate(_scored(runs, DEPTH)).items()}
    for query, values in short.evaluate(_scored(runs, CUTOFF)).items():
        found.setdefault(query, {}).update(values)
    return {q: {name: found.get(q, {}).get(key, 0.0) for name, key in MEASURES.items()} for q in qrels}


def _scored(runs: Mapping[str, Sequence[str]], depth: int) -> dict[str, dict[str, float]]:
    return {q: {id: float(depth - rank) for rank, id in enumerate(ids[:depth])} for q, ids in runs.items() if ids}


def _library() -> Any:
    try:
        import pytrec_eval
    except ImportError as exc:
        raise UsageError("eval needs pytrec_eval", hint="pip install 'embedctl[eval]'") from exc
    return pytrec_eval


def read_qrels(path: Path) -> Qrels:
    """TREC's four columns (query, iteration, document, relevance) or three (query, document, relevance).

    Columns stand apart by tabs, else by blanks; a first line of names is passed over.

    :raises SourceError: the file cannot be read. :raises UsageError: a line is no judgement, or two contradict.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not UTF-8: {exc}"
        raise SourceError(f"--qrels: cannot read {path}: {reason}") from exc
    qrels: Qrels = {}
    header = True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = [c.strip() for c in line.rstrip("\r").split("\t")] if "\t" in line else line.split()
        relevance = _relevance(cells[-1]) if len(cells) in (3, 4) else None
        if relevance is None and not (header and len(cells) in (3, 4)):
            raise UsageError(
                f"--qrels: {path}, line {number}: {line.strip()[:80]!r} is no judgement",
                hint="query-id <tab> corpus-id <tab> score, or TREC's query-id 0 corpus-id score",
            )
        header = False
        if relevance is not None and qrels.setdefault(cells[0], {}).setdefault(cells[-2], relevance) != relevance:
            raise UsageError(f"--qrels: {path}, line {number}: {cells[0]!r} judged {cells[-2]!r} otherwise before")
    if not qrels:
        raise UsageError(f"--qrels: {path} holds no judgement", hint="query-id <tab> corpus-id <tab> score")
    return qrels


def _relevance(cell: str) -> int | None:
    try:
        value = float(cell)
        return int(value) if value == int(value) else None
    except (ValueError, OverflowError):
        return None
