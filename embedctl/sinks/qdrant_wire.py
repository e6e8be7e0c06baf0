"""Layouts, points, queries and filters in the words of the Qdrant client, and back.

Enters: our records, and filters as the REST interface has them. Leaves: the client's objects; on gRPC, vectors go from
numpy to the message without Python numbers between. Refused: a filter that the client's own models do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from embedctl.errors import UsageError
from embedctl.outputs import Multivector, Sparse, Values
from embedctl.sinks.qdrant_engine import OVERSAMPLING, RRF_K, UNNAMED, Ask, Layout, Making, Plain, Points, Vector
from embedctl.sinks.qdrant_where import Filter

if TYPE_CHECKING:
    from qdrant_client import grpc, models


def grpc_points(batch: Points) -> list[grpc.PointStruct]:
    from qdrant_client import grpc
    from qdrant_client.conversions.conversion import payload_to_grpc

    columns = {name: _grpc_column(values) for name, values in batch.vectors.items()}
    alone = list(columns) == [UNNAMED]

    def vectors(i: int) -> grpc.Vectors:
        if alone:
            return grpc.Vectors(vector=columns[UNNAMED](i))
        return grpc.Vectors(vectors=grpc.NamedVectors(vectors={n: c(i) for n, c in columns.items()}))

    return [
        grpc.PointStruct(
            id=grpc.PointId(num=id) if isinstance(id, int) else grpc.PointId(uuid=id),
            vectors=vectors(i),
            payload=payload_to_grpc(payload),
        )
        for i, (id, payload) in enumerate(zip(batch.ids, batch.payloads, strict=True))
    ]


def upsert_of(collection: str, batch: Points, only: grpc.Filter | None) -> grpc.UpsertPoints:
    from qdrant_client import grpc

    return grpc.UpsertPoints(collection_name=collection, wait=True, points=grpc_points(batch), update_filter=only)


def status_of(response: grpc.PointsOperationResponse) -> str:
    """As REST has it: `completed`, `acknowledged`, `wait_timeout`."""
    from qdrant_client.conversions.conversion import GrpcToRest

    return str(GrpcToRest.convert_update_result(response.result).status.value)


def condition_of(found: Filter) -> grpc.Filter:
    from qdrant_client.conversions.conversion import RestToGrpc

    made = filter_of(found)
    assert made is not None
    return RestToGrpc.convert_filter(made)


def _grpc_column(values: Values) -> Callable[[int], grpc.Vector]:
    from qdrant_client import grpc

    if isinstance(values, np.ndarray):
        dense = _grpc_rows(values)
        return lambda i: grpc.Vector(dense=dense(i))
    ends = values.offsets.tolist()
    if isinstance(values, Sparse):
        indices, weights = values.indices, values.values
        return lambda i: grpc.Vector(
            sparse=grpc.SparseVector(
                indices=indices[ends[i] : ends[i + 1]].tolist(), values=weights[ends[i] : ends[i + 1]].tolist()
            )
        )
    token = _grpc_rows(values.vectors)
    return lambda i: grpc.Vector(
        multi_dense=grpc.MultiDenseVector(vectors=[token(t) for t in range(ends[i], ends[i + 1])])
    )


def _grpc_rows(values: np.ndarray) -> Callable[[int], grpc.DenseVector]:
    """Row i of (n, C) as a message, read from the bytes it has on the wire: field 1, packed, then its numbers. Given
    numbers, the message would be built from one Python object each, at ten times the cost."""
    from qdrant_client import grpc

    rows = np.ascontiguousarray(values, dtype="<f4")
    head = b"\x0a" + _varint(4 * rows.shape[1])
    return lambda i: grpc.DenseVector.FromString(head + rows[i].tobytes())


def _varint(number: int) -> bytes:
    more = []
    while number > 127:
        more.append(number & 127 | 128)
        number >>= 7
    return bytes([*more, number])


def rest_points(batch: Points) -> list[models.PointStruct]:
    from qdrant_client import models

    columns = {name: _rest_column(values) for name, values in batch.vectors.items()}
    rows = enumerate(zip(batch.ids, batch.payloads, strict=True))
    if list(columns) == [UNNAMED]:
        return [models.PointStruct(id=id, vector=columns[UNNAMED][i], payload=dict(p)) for i, (id, p) in rows]
    return [
        models.PointStruct(id=id, vector={n: c[i] for n, c in columns.items()}, payload=dict(p)) for i, (id, p) in rows
    ]


def _rest_column(values: Values) -> list[Any]:
    from qdrant_client import models

    if isinstance(values, np.ndarray):
        return values.astype(np.float32, copy=False).tolist()  # type: ignore[no-any-return]
    spans = [slice(b, e) for b, e in pairwise(values.offsets.tolist())]
    if isinstance(values, Multivector):
        return [values.vectors[s].astype(np.float32, copy=False).tolist() for s in spans]
    return [models.SparseVector(indices=values.indices[s].tolist(), values=values.values[s].tolist()) for s in spans]


def creation_of(making: Making) -> dict[str, Any]:
    """What `create_collection` takes."""
    from qdrant_client import models

    dense = {n: _vector_params(v, making) for n, v in making.layout.items() if v.kind != "sparse"}
    sparse = {
        n: models.SparseVectorParams(
            index=models.SparseIndexParams(on_disk=making.on_disk is True),
            modifier=models.Modifier(v.modifier) if v.modifier else None,
        )
        for n, v in making.layout.items()
        if v.kind == "sparse"
    }
    return {
        "vectors_config": dense.get(UNNAMED, dense or None),
        "sparse_vectors_config": sparse or None,
        "shard_number": making.shards,
        "metadata": dict(making.metadata),
    }


def _vector_params(vector: Vector, making: Making) -> models.VectorParams:
    from qdrant_client import models

    many = vector.kind == "multivector"
    max_sim = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    return models.VectorParams(
        size=vector.size,
        distance=models.Distance(vector.distance),
        on_disk=making.on_disk is not False,
        datatype=models.Datatype(vector.datatype),
        multivector_config=max_sim if many else None,
        hnsw_config=models.HnswConfigDiff(m=0) if many else None,
        quantization_config=quantization(vector.quantization),
    )


def quantization(kind: str | None) -> models.QuantizationConfig | None:
    from qdrant_client import models

    if kind == "scalar":
        scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
        return models.ScalarQuantization(scalar=scalar)
    if kind == "binary":
        return models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
    if kind == "product":
        product = models.ProductQuantizationConfig(compression=models.CompressionRatio.X16, always_ram=True)
        return models.ProductQuantization(product=product)
    return None


def layout_from(config: models.CollectionConfig) -> Layout:
    given = config.params.vectors
    dense = given if isinstance(given, dict) else {} if given is None else {UNNAMED: given}
    found = {
        name: Vector(
            kind="multivector" if one.multivector_config else "dense",
            size=one.size,
            distance=str(one.distance.value),
            datatype="float32" if one.datatype is None else str(one.datatype.value),
            quantization=_kind(one.quantization_config or config.quantization_config),
        )
        for name, one in dense.items()
    }
    return found | {
        name: Vector(kind="sparse", modifier="idf" if one.modifier and one.modifier.value == "idf" else None)
        for name, one in (config.params.sparse_vectors or {}).items()
    }


def _kind(found: object) -> str | None:
    """`ScalarQuantization` has one field, `scalar`, and so on."""
    fields = getattr(type(found), "model_fields", {})
    return next(iter(fields), None)


def plain_vectors(found: object) -> dict[str, Plain]:
    """What the client gives as a point's vectors."""
    if found is None:
        return {}
    named: Mapping[str, Any] = found if isinstance(found, dict) else {UNNAMED: found}
    return {n: (v.indices, v.values) if hasattr(v, "indices") else v for n, v in named.items()}


def query_of(ask: Ask) -> models.QueryRequest:
    from qdrant_client import models

    where = filter_of(ask.where)
    if len(ask.vectors) == 1:
        name, vector = next(iter(ask.vectors.items()))
        return models.QueryRequest(
            query=_nearest(vector), using=name or None, filter=where, params=_params(ask, name),
            limit=ask.limit, with_payload=True,
        )  # fmt: skip
    branches = [
        models.Prefetch(query=_nearest(v), using=n or None, filter=where, params=_params(ask, n), limit=ask.pool)
        for n, v in ask.vectors.items()
    ]
    fused = models.RrfQuery(rrf=models.Rrf(k=RRF_K))
    return models.QueryRequest(prefetch=branches, query=fused, filter=where, limit=ask.limit, with_payload=True)


def _nearest(vector: Plain) -> Any:
    from qdrant_client import models

    return models.SparseVector(indices=vector[0], values=vector[1]) if isinstance(vector, tuple) else vector


def _params(ask: Ask, name: str) -> models.SearchParams:
    from qdrant_client import models

    kind = ask.quantized.get(name)
    looked = models.QuantizationSearchParams(
        ignore=ask.exact, rescore=True, oversampling=OVERSAMPLING.get(kind) if kind and not ask.exact else None
    )
    return models.SearchParams(exact=ask.exact, quantization=looked if kind else None)


def filter_of(found: Filter | None) -> models.Filter | None:
    """:raises UsageError: not such a filter."""
    from pydantic import ValidationError
    from qdrant_client import models

    if found is None:
        return None
    try:
        return models.Filter.model_validate(found)
    except ValidationError as exc:
        raise UsageError(
            f"--where: {found} is not a filter that Qdrant knows ({exc.errors()[0]['msg']})",
            hint="see https://qdrant.tech/documentation/concepts/filtering/",
        ) from exc
