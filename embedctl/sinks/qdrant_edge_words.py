"""Layouts, points, queries and filters in the words of the embedded engine, and back.

Enters: our records, and filters as Qdrant's REST interface has them. Leaves: the engine's objects. Refused: a filter
with a condition that the engine does not know, named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import qdrant_edge as edge

from embedctl.errors import UsageError
from embedctl.outputs import Multivector, Values
from embedctl.sinks.qdrant_engine import OVERSAMPLING, RRF_K, UNNAMED, Ask, Layout, Making, Plain, Points, Vector
from embedctl.sinks.qdrant_where import Filter

QUANTIZED: dict[str, Callable[[], edge.QuantizationConfigType]] = {
    "scalar": lambda: edge.ScalarQuantizationConfig(edge.ScalarType.Int8, quantile=0.99, always_ram=True),
    "binary": lambda: edge.BinaryQuantizationConfig(always_ram=True),
    "product": lambda: edge.ProductQuantizationConfig(edge.CompressionRatio.X16, always_ram=True),
}


def config_of(making: Making) -> edge.EdgeConfig:
    dense = {n: _dense(v, making) for n, v in making.layout.items() if v.kind != "sparse"}
    idf = edge.Modifier.Idf
    sparse = {
        n: edge.EdgeSparseVectorParams(modifier=idf if v.modifier else None, on_disk=making.on_disk is True)
        for n, v in making.layout.items()
        if v.kind == "sparse"
    }
    return edge.EdgeConfig(
        vectors=dense.get(UNNAMED, dense),
        sparse_vectors=sparse or None,
        hnsw_config=_hnsw(16, making.threads),
    )


def _dense(vector: Vector, making: Making) -> edge.EdgeVectorParams:
    many = vector.kind == "multivector"
    return edge.EdgeVectorParams(
        size=vector.size,
        distance=getattr(edge.Distance, vector.distance),
        on_disk=making.on_disk is not False,
        datatype=getattr(edge.VectorStorageDatatype, vector.datatype.capitalize()),
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if many else None,
        hnsw_config=_hnsw(0, making.threads) if many else None,
        quantization_config=QUANTIZED[vector.quantization]() if vector.quantization else None,
    )


def _hnsw(m: int, threads: int) -> edge.HnswIndexConfig:
    return edge.HnswIndexConfig(m=m, ef_construct=100, full_scan_threshold=10_000, max_indexing_threads=threads)


def layout_from(config: Mapping[str, Any]) -> Layout:
    """The layout in a shard's `edge_config.json`."""
    whole = config.get("quantization_config")
    found = {
        name: Vector(
            kind="multivector" if one.get("multivector_config") else "dense",
            size=one["size"],
            distance=one["distance"],
            datatype=one.get("datatype") or "float32",
            quantization=next(iter(one.get("quantization_config") or whole or {}), None),
        )
        for name, one in (config.get("vectors") or {}).items()
    }
    sparse = config.get("sparse_vectors") or {}
    return found | {
        name: Vector(kind="sparse", modifier="idf" if one.get("modifier") == "idf" else None)
        for name, one in sparse.items()
    }


def points_of(batch: Points) -> list[edge.Point]:
    columns = {name: _column(values) for name, values in batch.vectors.items()}
    rows = range(len(batch.ids))
    if list(columns) == [UNNAMED]:
        return [edge.Point(batch.ids[i], columns[UNNAMED][i], batch.payloads[i]) for i in rows]
    return [edge.Point(batch.ids[i], {n: c[i] for n, c in columns.items()}, batch.payloads[i]) for i in rows]


def _column(values: Values) -> Sequence[Any]:
    if isinstance(values, np.ndarray):  # views of its memory: the engine takes them without a Python number each
        flat, width = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).data, values.shape[1]
        return [flat[begin : begin + width] for begin in range(0, len(flat), width)]
    spans = [slice(b, e) for b, e in pairwise(values.offsets.tolist())]
    if isinstance(values, Multivector):
        return [values.vectors[s].astype(np.float32, copy=False).tolist() for s in spans]
    return [edge.SparseVector(values.indices[s].tolist(), values.values[s].tolist()) for s in spans]


def plain_vectors(found: object) -> dict[str, Plain]:
    """What the engine gives as a point's vectors."""
    if found is None:
        return {}
    named: dict[str, Any] = found if isinstance(found, dict) else {UNNAMED: found}
    return {
        name: (list(v.indices), list(v.values)) if isinstance(v, edge.SparseVector) else v for name, v in named.items()
    }


def query_of(ask: Ask) -> edge.QueryRequest:
    where = filter_of(ask.where)
    if len(ask.vectors) == 1:
        name, vector = next(iter(ask.vectors.items()))
        return edge.QueryRequest(
            limit=ask.limit, query=_nearest(name, vector), with_payload=True, filter=where, params=_params(ask, name)
        )
    branches = [
        edge.Prefetch(limit=ask.pool, query=_nearest(name, vector), filter=where, params=_params(ask, name))
        for name, vector in ask.vectors.items()
    ]
    fused = cast(edge.Fusion, edge.Fusion.Rrf(k=RRF_K))
    return edge.QueryRequest(limit=ask.limit, prefetches=branches, query=fused, with_payload=True, filter=where)


def _nearest(name: str, vector: Plain) -> edge.Query:
    query = edge.SparseVector(vector[0], vector[1]) if isinstance(vector, tuple) else vector
    return edge.Query.Nearest(query, using=name or None)


def _params(ask: Ask, name: str) -> edge.SearchParams:
    kind = ask.quantized.get(name)
    looked = edge.QuantizationSearchParams(
        ignore=ask.exact, rescore=True, oversampling=OVERSAMPLING.get(kind) if kind and not ask.exact else None
    )
    return edge.SearchParams(exact=ask.exact, quantization=looked if kind else None)


def filter_of(found: Filter | None) -> edge.Filter | None:
    """:raises UsageError: not such a filter."""
    return None if found is None else _filter(found)


def _filter(found: Mapping[str, Any]) -> edge.Filter:
    parts: dict[str, Any] = {
        part: [_condition(c) for c in _listed(found[part])]
        for part in ("must", "should", "must_not")
        if found.get(part)
    }
    least = found.get("min_should")
    if least:
        parts["min_should"] = edge.MinShould([_condition(c) for c in least["conditions"]], least["min_count"])
    return edge.Filter(**parts)


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _condition(found: Mapping[str, Any]) -> Any:
    try:
        for word, make in _CONDITIONS.items():
            if word in found:
                return make(found)
    except (KeyError, TypeError, ValueError) as exc:
        raise UsageError(f"--where: {dict(found)} is not a condition that Qdrant knows ({exc})") from exc
    raise UsageError(f"--where: {dict(found)} is not a condition that Qdrant knows")


def _field(found: Mapping[str, Any]) -> edge.FieldCondition:
    made: dict[str, Any] = {"key": found["key"]}
    for name, value in found.items():
        if name == "match":
            made[name] = _match(value)
        elif name == "range":
            times = any(isinstance(v, str) for v in value.values())
            made[name] = (edge.RangeDateTime if times else edge.RangeFloat)(**value)
        elif name == "values_count":
            made[name] = edge.ValuesCount(**value)
        elif name == "geo_radius":
            made[name] = edge.GeoRadius(edge.GeoPoint(**value["center"]), value["radius"])
        elif name == "geo_bounding_box":
            made[name] = edge.GeoBoundingBox(edge.GeoPoint(**value["top_left"]), edge.GeoPoint(**value["bottom_right"]))
        elif name in ("is_empty", "is_null"):
            made[name] = value
        elif name != "key":
            raise KeyError(name)
    return edge.FieldCondition(**made)


def _match(found: Mapping[str, Any]) -> Any:
    (word, value), *more = found.items()
    if more:
        raise KeyError(more[0][0])
    if isinstance(value, bool):  # qdrant-edge-py 0.9.0 takes them for 1 and 0, which then match nothing
        raise UsageError(
            f"--where: the embedded engine cannot compare with {str(value).lower()}",
            hint="keep the column as a number or text, or use a Qdrant server",
        )
    return {
        "value": edge.MatchValue,
        "any": edge.MatchAny,
        "except": edge.MatchExcept,
        "text": edge.MatchText,
        "text_any": edge.MatchTextAny,
        "phrase": edge.MatchPhrase,
    }[word](value)


_CONDITIONS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "key": _field,
    "has_id": lambda f: edge.HasIdCondition(set(f["has_id"])),
    "is_empty": lambda f: edge.IsEmptyCondition(f["is_empty"]["key"]),
    "is_null": lambda f: edge.IsNullCondition(f["is_null"]["key"]),
    "has_vector": lambda f: edge.HasVectorCondition(f["has_vector"]),
    "nested": lambda f: edge.NestedCondition(f["nested"]["key"], _filter(f["nested"]["filter"])),
    "must": _filter,
    "should": _filter,
    "must_not": _filter,
    "min_should": _filter,
}
