"""The engine behind the gRPC services that ship in the client's wheel."""

# ruff: noqa: N802 - the services name their methods
from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import grpc as rpc
from qdrant_client import grpc, models
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc, grpc_to_payload
from qdrant_client.grpc.collections_service_pb2_grpc import CollectionsServicer, add_CollectionsServicer_to_server
from qdrant_client.grpc.points_service_pb2_grpc import PointsServicer, add_PointsServicer_to_server

from tests.rig.engine import Engine
from tests.rig.faults import Faults

_CODES = {"429": "RESOURCE_EXHAUSTED", "503": "UNAVAILABLE", "408": "DEADLINE_EXCEEDED", "500": "INTERNAL",
          "507": "RESOURCE_EXHAUSTED", "lost": "UNAVAILABLE", "reset": "UNAVAILABLE"}  # fmt: skip


class Collections(CollectionsServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def CollectionExists(self, request, context):
        found = request.collection_name in self._engine.collections
        return grpc.CollectionExistsResponse(result=grpc.CollectionExists(exists=found))

    def Get(self, request, context):
        if request.collection_name not in self._engine.collections:
            context.abort(rpc.StatusCode.NOT_FOUND, f"Collection `{request.collection_name}` doesn't exist!")
        info = RestToGrpc.convert_collection_info(self._engine.info(request.collection_name))
        return grpc.GetCollectionInfoResponse(result=info)

    def Create(self, request, context):
        made = models.CreateCollection(
            vectors=GrpcToRest.convert_vectors_config(request.vectors_config),
            metadata=grpc_to_payload(request.metadata),
        )
        try:
            done = self._engine.create(request.collection_name, made)
        except ValueError as exc:
            context.abort(rpc.StatusCode.ALREADY_EXISTS, str(exc))
        return grpc.CollectionOperationResponse(result=done)

    def Update(self, request, context):
        optimizers = None
        if request.HasField("optimizers_config"):
            optimizers = GrpcToRest.convert_optimizers_config_diff(request.optimizers_config)
        change = models.UpdateCollection(optimizers_config=optimizers, metadata=grpc_to_payload(request.metadata))
        return grpc.CollectionOperationResponse(result=self._engine.update(request.collection_name, change))


class Points(PointsServicer):
    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine, self._faults = engine, faults

    def Upsert(self, request, context):
        condition = GrpcToRest.convert_filter(request.update_filter) if request.HasField("update_filter") else None
        points = [GrpcToRest.convert_point_struct(p) for p in request.points]
        return self._write(context, lambda: self._engine.upsert(request.collection_name, points, condition))

    def Delete(self, request, context):
        chosen = GrpcToRest.convert_filter(request.points.filter)
        return self._write(context, lambda: self._engine.delete(request.collection_name, chosen))

    def CreateFieldIndex(self, request, context):
        kind = grpc.FieldType.Name(request.field_type).removeprefix("FieldType")
        return self._write(context, lambda: self._engine.index(request.collection_name, request.field_name, kind))

    def Count(self, request, context):
        chosen = GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None
        count = self._engine.count(request.collection_name, chosen)
        return grpc.CountResponse(result=grpc.CountResult(count=count))

    def _write(self, context, work):
        kind = self._faults.draw()
        if kind == "stall":
            time.sleep(self._faults.stall_s)
        if kind in ("429", "503", "408", "500", "507", "reset"):
            if kind == "429":
                context.set_trailing_metadata((("retry-after", "1"),))
            context.abort(getattr(rpc.StatusCode, _CODES[kind]), f"injected {kind}")
        try:
            work()
        except ValueError as exc:
            context.abort(rpc.StatusCode.INVALID_ARGUMENT, str(exc))
        if kind == "lost":
            context.abort(rpc.StatusCode.UNAVAILABLE, "injected: applied, and the reply lost")
        status = grpc.UpdateStatus.WaitTimeout if kind == "wait_timeout" else grpc.UpdateStatus.Completed
        return grpc.PointsOperationResponse(result=grpc.UpdateResult(operation_id=0, status=status), time=0.0)


class GrpcFront:
    """Listens on a port of its own from the start; `stop` and `start` are a restart of the server."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine, self._faults = engine, faults
        self.port = 0
        self.start()

    def start(self) -> None:
        self._server = rpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
        add_CollectionsServicer_to_server(Collections(self._engine), self._server)
        add_PointsServicer_to_server(Points(self._engine, self._faults), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        assert self.port
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    def uri(self, collection: str) -> str:
        return f"qdrant://127.0.0.1:{self.port}/{collection}"
