"""Points and settings in the words of the Qdrant client. float32 or float16 in, float32 on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedctl.sinks.qdrant_engine import Points

if TYPE_CHECKING:
    from qdrant_client import models


def grpc_points(batch: Points) -> list[models.PointStruct]:
    """Vectors go from numpy to the message without Python numbers between."""
    from qdrant_client import grpc
    from qdrant_client.conversions.conversion import payload_to_grpc

    vectors = batch.vectors.astype("<f4", copy=False)
    return [
        grpc.PointStruct(
            id=grpc.PointId(num=id) if isinstance(id, int) else grpc.PointId(uuid=id),
            vectors=grpc.Vectors(vector=grpc.Vector(dense=grpc.DenseVector(data=vector))),
            payload=payload_to_grpc(payload),
        )
        for id, vector, payload in zip(batch.ids, vectors, batch.payloads, strict=True)
    ]


def rest_points(batch: Points) -> list[models.PointStruct]:
    from qdrant_client import models

    rows = zip(batch.ids, batch.vectors.tolist(), batch.payloads, strict=True)
    return [models.PointStruct(id=id, vector=vector, payload=payload) for id, vector, payload in rows]


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
