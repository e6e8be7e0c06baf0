"""What an index holds, read back: by search, and whole.

Enters: the index's properties. Leaves: hits; record batches. Refused: outputs that are not there, queries to byte
vectors, filters that the store does not understand.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.sinks.base import Hit
from embedctl.sinks.elastic_http import BadRequest, Link
from embedctl.sinks.elastic_mapping import outputs_of
from embedctl.sinks.keyed_records import POS, sparse_rows
from embedctl.sinks.keyed_search import Found, depth_of, fused

SCROLL = "10m"
MAX_CLAUSES, MAX_HITS = 1024, 10_000
_ARROW = {
    "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "byte": pa.int8(), "double": pa.float64(),
    "float": pa.float32(), "half_float": pa.float32(), "boolean": pa.bool_(), "unsigned_long": pa.uint64(),
}  # fmt: skip

Body = dict[str, Any]


def search(
    link: Link,
    properties: Mapping[str, Any],
    query: Mapping[str, Values],
    *,
    limit: int,
    where: str | None,
    exact: bool,
) -> list[list[Hit]]:
    """One ranking an output, then fused. `where`: Lucene's query syntax, or the query DSL as a JSON object."""
    outputs = {spec.name: spec for spec in outputs_of(properties)}
    chosen, depth, rankings = filter_of(where), min(depth_of(limit, len(query)), MAX_HITS), []
    for name, values in query.items():
        if name not in outputs:
            raise UsageError(f"{link.place.name}: no output {name!r} there; it has: {', '.join(outputs)}")
        bodies = _asked(link.place.opensearch, outputs[name], values, depth, chosen, exact)
        hide = {"_source": {"excludes": list(outputs)}, "size": depth}
        score = _score(outputs[name], opensearch=link.place.opensearch, exact=exact)
        rankings.append([_ranked(link, {**body, **hide}, score, where) for body in bodies])
    return [fused(each, limit) for each in zip(*rankings, strict=True)]


def filter_of(where: str | None) -> Body | None:
    """:raises UsageError: it begins as JSON and is none."""
    if where is None:
        return None
    if not where.lstrip().startswith("{"):
        return {"query_string": {"query": where}}
    try:
        found: Body = json.loads(where)
    except ValueError as exc:
        raise UsageError(f"--where: not JSON: {exc}", hint="""--where '{"term": {"lang": "en"}}'""") from exc
    return found


def _ranked(link: Link, body: Body, score: Callable[[float], float], where: str | None) -> list[Found]:
    try:
        answer = link.index("POST", "/_search", body)
    except BadRequest as exc:
        if where is None:
            raise
        raise UsageError(f"--where: {exc}", hint="--where 'lang:en AND year:>2000'") from exc
    return [Found(key=h["_id"], score=score(float(h["_score"])), fields=h["_source"]) for h in answer["hits"]["hits"]]


def _asked(
    opensearch: bool, output: OutputSpec, values: Values, limit: int, chosen: Body | None, exact: bool
) -> Iterator[Body]:
    """A search body a query."""
    if output.kind == "sparse":
        for indices, weights in sparse_rows(values):
            tokens = dict(zip(map(str, indices.tolist()), weights.tolist(), strict=True))
            yield {"query": _filtered(_sparse(opensearch, output.name, tokens), chosen)}
        return
    if output.vector_type == "int8":
        raise UsageError(f"{output.name}: int8 vectors cannot be searched from here", hint="ask the store itself")
    assert isinstance(values, np.ndarray)
    packed = output.vector_type == "ubinary"
    rows = np.packbits(values > 0, axis=1).view(np.int8) if packed else values.astype(np.float32)
    for row in np.ascontiguousarray(rows):
        if exact:
            yield {"query": _exact(opensearch, output, row, chosen)}
        elif opensearch:
            more = {} if chosen is None else {"filter": chosen}
            yield {"query": {"knn": {output.name: {"vector": row, "k": limit, **more}}}}
        else:
            more = {} if chosen is None else {"filter": chosen}
            many = min(MAX_HITS, max(4 * limit, 100))
            yield {"knn": {"field": output.name, "query_vector": row, "k": limit, "num_candidates": many, **more}}


def _exact(opensearch: bool, output: OutputSpec, row: np.ndarray, chosen: Body | None) -> Body:
    """Every document scored."""
    among = chosen or {"match_all": {}}
    if opensearch:
        space = {"cosine": "cosinesimil", "dot": "innerproduct", "euclidean": "l2"}[output.similarity]
        space = "hamming" if output.vector_type == "ubinary" else space
        params: Body = {"field": output.name, "query_value": row, "space_type": space}
        return {"script_score": {"query": among, "script": {"source": "knn_score", "lang": "knn", "params": params}}}
    name = json.dumps(output.name)
    source = {
        "cosine": f"(1 + cosineSimilarity(params.q, {name})) / 2",
        "dot": f"double s = dotProduct(params.q, {name}); return s < 0 ? 1 / (1 - s) : 1 + s;",
        "euclidean": f"double d = l2norm(params.q, {name}); return 1 / (1 + d * d);",
    }[output.similarity]
    if output.vector_type == "ubinary":
        source = f"({output.dim}.0 - hamming(params.q, {name})) / {output.dim}"
    return {"script_score": {"query": among, "script": {"source": source, "params": {"q": row}}}}


def _sparse(opensearch: bool, name: str, tokens: Mapping[str, float]) -> Body:
    if not opensearch:
        return {"sparse_vector": {"field": name, "query_vector": dict(tokens)}}
    heaviest = sorted(tokens.items(), key=lambda item: -item[1])[:MAX_CLAUSES]
    clauses = [
        {"rank_feature": {"field": f"{name}.{token}", "boost": weight, "linear": {}}} for token, weight in heaviest
    ]
    return {"bool": {"should": clauses, "minimum_should_match": 1}}


def _filtered(query: Body, chosen: Body | None) -> Body:
    return query if chosen is None else {"bool": {"must": [query], "filter": [chosen]}}


def _score(output: OutputSpec, *, opensearch: bool, exact: bool) -> Callable[[float], float]:
    """From the store's score to what it stands for: distances negative, of bits the share that is equal."""
    if output.kind == "sparse":
        return lambda s: s
    if output.vector_type == "ubinary":
        return (lambda s: 1 - (1 / s - 1) / output.dim) if opensearch else (lambda s: s)
    if output.similarity == "cosine":
        return (lambda s: s - 1) if opensearch and exact else (lambda s: 2 * s - 1)
    if output.similarity == "dot":
        return lambda s: s - 1 if s >= 1 else 1 - 1 / s
    return lambda s: -math.sqrt(max(0.0, 1 / s - 1))


def scan(
    link: Link, properties: Mapping[str, Any], batch_rows: int, *, vectors_hidden: bool
) -> Iterator[pa.RecordBatch]:
    """In the order of `_pos` where embedctl wrote it, else of the shards."""
    own = [{POS: "asc"}, *([{"chunk": "asc"}] if "chunk" in properties else [])]
    body: Body = {"size": batch_rows, "sort": own if POS in properties else ["_doc"]}
    if vectors_hidden:
        body["_source"] = {"exclude_vectors": False}
    answer = link.index("POST", "/_search", body, params={"scroll": SCROLL})
    try:
        while answer["hits"]["hits"]:
            yield batch(answer["hits"]["hits"], properties)
            answer = link.call("POST", "/_search/scroll", {"scroll": SCROLL, "scroll_id": answer["_scroll_id"]})
            if answer.get("_shards", {}).get("failed"):
                raise SinkError(f"{link.place.name}: shards stopped answering", hint="run the same command again")
    finally:
        with contextlib.suppress(SinkError):  # it ends by itself
            link.call("DELETE", "/_search/scroll", {"scroll_id": [answer["_scroll_id"]]}, patience_s=0.0)


def fetch(
    link: Link, properties: Mapping[str, Any], keys: Sequence[str], *, vectors_hidden: bool
) -> tuple[list[str], pa.RecordBatch]:
    """Documents of these ids that are there, refreshed before."""
    body: Body = {"size": len(keys), "query": {"ids": {"values": list(keys)}}}
    if vectors_hidden:
        body["_source"] = {"exclude_vectors": False}
    hits = link.index("POST", "/_search", body)["hits"]["hits"]
    return [hit["_id"] for hit in hits], batch(hits, properties)


def batch(hits: Sequence[Mapping[str, Any]], properties: Mapping[str, Any]) -> pa.RecordBatch:
    """What a search found, a column a field."""
    outputs = {spec.name: spec for spec in outputs_of(properties)}
    sources = [hit.get("_source", {}) for hit in hits]
    if "id" not in properties:
        sources = [{**source, "id": hit["_id"]} for hit, source in zip(hits, sources, strict=True)]
    names = sorted(
        {*properties, *(n for s in sources for n in s)}, key=lambda n: (n != "id", n in outputs, n.startswith("_"))
    )
    columns: dict[str, pa.Array[Any]] = {}
    for name in names:
        values = [source.get(name) for source in sources]
        kind = properties.get(name, {}).get("type")
        columns[name] = _vectors(outputs[name], values) if name in outputs else _plain(kind, values)
    return pa.RecordBatch.from_pydict(columns)


def _plain(kind: str | None, values: Sequence[Any]) -> pa.Array[Any]:
    """By the field's type where every value is one of it; lists and objects, which no mapping tells, as JSON text."""
    try:
        if kind in _ARROW:
            return pa.array(values, _ARROW[kind])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string())


def _vectors(output: OutputSpec, values: Sequence[Any]) -> pa.Array[Any]:
    if output.kind == "sparse":
        pair = pa.struct([("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32()))])
        return pa.array([None if v is None else _pair(output.name, v) for v in values], pair)
    if output.vector_type == "ubinary":
        values = [None if v is None else np.asarray(v, dtype=np.int8).view(np.uint8) for v in values]
        return pa.array(values, pa.list_(pa.uint8(), output.dim // 8))
    kinds: dict[str, pa.DataType] = {"float16": pa.float16(), "int8": pa.int8()}
    return pa.array(values, pa.list_(kinds.get(output.vector_type, pa.float32()), output.dim))


def _pair(name: str, tokens: Mapping[str, float]) -> dict[str, list[Any]]:
    words = [t for t in tokens if not t.isdecimal()]
    if words:
        raise SinkError(
            f"{name}: its tokens are words ({words[0]!r}), not numbers", hint="read it with the store's own tools"
        )
    order = sorted(tokens, key=int)
    return {"indices": [int(t) for t in order], "values": [tokens[t] for t in order]}
