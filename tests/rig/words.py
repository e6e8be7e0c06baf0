"""The client's REST models in the words of the embedded engine, and back: the rig's own, none of embedctl's."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge
from qdrant_client import models


def config(made: models.CreateCollection) -> edge.EdgeConfig:
    vectors = made.vectors
    if isinstance(vectors, dict):
        dense: Any = {name: _dense(one) for name, one in vectors.items()}
    else:
        dense = None if vectors is None else _dense(vectors)
    sparse = {
        name: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if one.modifier == models.Modifier.IDF else None)
        for name, one in (made.sparse_vectors or {}).items()
    }
    return edge.EdgeConfig(vectors=dense, sparse_vectors=sparse or None)


def _dense(one: models.VectorParams) -> edge.EdgeVectorParams:
    hnsw = None
    if one.hnsw_config is not None:
        hnsw = edge.HnswIndexConfig(m=one.hnsw_config.m, ef_construct=100, full_scan_threshold=10_000)
    quantized = None
    if one.quantization_config is not None:
        quantized = {
            models.ScalarQuantization: lambda: edge.ScalarQuantizationConfig(edge.ScalarType.Int8, quantile=0.99),
            models.BinaryQuantization: edge.BinaryQuantizationConfig,
            models.ProductQuantization: lambda: edge.ProductQuantizationConfig(edge.CompressionRatio.X16),
        }[type(one.quantization_config)]()
    many = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if one.multivector_config else None
    datatype = one.datatype.value if one.datatype else "float32"
    return edge.EdgeVectorParams(
        size=one.size,
        distance=getattr(edge.Distance, one.distance.value),
        datatype=getattr(edge.VectorStorageDatatype, datatype.capitalize()),
        multivector_config=many,
        hnsw_config=hnsw,
        quantization_config=quantized,
    )


def vectors(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _vector(one) for name, one in given.items()}
    return _vector(given)


def _vector(one: Any) -> Any:
    return edge.SparseVector(one.indices, one.values) if isinstance(one, models.SparseVector) else one


def _given_back(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _given_back(one) for name, one in found.items()}
    if isinstance(found, edge.SparseVector):
        return models.SparseVector(indices=list(found.indices), values=list(found.values))
    return found


def id_of(found: Any) -> int | str:
    return found if isinstance(found, int) else str(found)


def record(found: edge.Record) -> models.Record:
    return models.Record(id=id_of(found.id), payload=found.payload, vector=_given_back(found.vector))


def scored(found: edge.ScoredPoint) -> models.ScoredPoint:
    return models.ScoredPoint(id=id_of(found.id), version=0, score=found.score, payload=found.payload)


def query(asked: models.QueryRequest) -> edge.QueryRequest:
    prefetch = asked.prefetch or []
    branches = [
        edge.Prefetch(limit=p.limit, query=_nearest(p), filter=filter_of(p.filter), params=_params(p.params))
        for p in (prefetch if isinstance(prefetch, list) else [prefetch])
    ]
    fused = isinstance(asked.query, models.RrfQuery)
    return edge.QueryRequest(
        limit=asked.limit,
        query=edge.Fusion.Rrf(k=asked.query.rrf.k) if fused else _nearest(asked),
        prefetches=branches or None,
        filter=filter_of(asked.filter),
        params=None if fused else _params(asked.params),
        with_payload=bool(asked.with_payload),
    )


def _nearest(asked: models.QueryRequest | models.Prefetch) -> edge.Query:
    given = asked.query.nearest if isinstance(asked.query, models.NearestQuery) else asked.query
    return edge.Query.Nearest(_vector(given), using=asked.using)


def _params(asked: models.SearchParams | None) -> edge.SearchParams:
    return edge.SearchParams(exact=bool(asked and asked.exact))


def filter_of(found: models.Filter | None) -> edge.Filter | None:
    if found is None:
        return None
    parts = {
        name: [_condition(c) for c in (one if isinstance(one, list) else [one])]
        for name in ("must", "should", "must_not")
        if (one := getattr(found, name))
    }
    return edge.Filter(**parts)


def _condition(found: Any) -> Any:
    if isinstance(found, models.Filter):
        return filter_of(found)
    if isinstance(found, models.HasIdCondition):
        return edge.HasIdCondition(set(found.has_id))
    if isinstance(found, models.IsEmptyCondition):
        return edge.IsEmptyCondition(found.is_empty.key)
    if isinstance(found.match, models.MatchAny):
        return edge.FieldCondition(found.key, match=edge.MatchAny(found.match.any))
    if isinstance(found.match, models.MatchValue):
        return edge.FieldCondition(found.key, match=edge.MatchValue(found.match.value))
    assert found.range is not None, found
    span = {k: v for k, v in found.range.model_dump().items() if v is not None}
    if isinstance(found.range, models.DatetimeRange):
        return edge.FieldCondition(found.key, range=edge.RangeDateTime(**{k: v.isoformat() for k, v in span.items()}))
    return edge.FieldCondition(found.key, range=edge.RangeFloat(**span))
