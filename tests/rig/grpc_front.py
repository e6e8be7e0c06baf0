"""The engine behind the gRPC services that ship in the client's wheel."""

# ruff: noqa: N802 - the services name their methods
from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc as rpc
from qdrant_client import grpc, models
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc, grpc_to_payload
from qdrant_client.grpc.collections_service_pb2_grpc import CollectionsServicer, add_CollectionsServicer_to_server
from qdrant_client.grpc.points_service_pb2_grpc import PointsServicer, add_PointsServicer_to_server
from qdrant_client.grpc.qdrant_pb2_grpc import QdrantServicer, add_QdrantServicer_to_server

from tests.rig.engine import Engine
from tests.rig.faults import Faults
from tests.rig.words import id_of as words_id

_CODES = {"429": "RESOURCE_EXHAUSTED", "503": "UNAVAILABLE", "408": "DEADLINE_EXCEEDED", "500": "INTERNAL",
          "507": "RESOURCE_EXHAUSTED", "lost": "UNAVAILABLE", "reset": "UNAVAILABLE"}  # fmt: skip


class Health(QdrantServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def HealthCheck(self, request, context):
        return grpc.HealthCheckReply(title="the rig", version=self._engine.version)


class Collections(CollectionsServicer):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def CollectionExists(self, request, context):
        found = self._engine.exists(request.collection_name)
        return grpc.CollectionExistsResponse(result=grpc.CollectionExists(exists=found))

    def Get(self, request, context):
        if not self._engine.exists(request.collection_name):
            context.abort(rpc.StatusCode.NOT_FOUND, f"Collection `{request.collection_name}` doesn't exist!")
        info = RestToGrpc.convert_collection_info(self._engine.info(request.collection_name))
        return grpc.GetCollectionInfoResponse(result=info)

    def Create(self, request, context):
        made = models.CreateCollection(
            vectors=GrpcToRest.convert_vectors_config(request.vectors_config)
            if request.HasField("vectors_config")
            else None,
            sparse_vectors=GrpcToRest.convert_sparse_vector_config(request.sparse_vectors_config)
            if request.HasField("sparse_vectors_config")
            else None,
            shard_number=request.shard_number if request.HasField("shard_number") else None,
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

    def List(self, request, context):
        names = [grpc.CollectionDescription(name=name) for name in self._engine.collections]
        return grpc.ListCollectionsResponse(collections=names)

    def Delete(self, request, context):
        return grpc.CollectionOperationResponse(result=self._engine.drop(request.collection_name))

    def UpdateAliases(self, request, context):
        try:
            done = self._engine.change_aliases([GrpcToRest.convert_alias_operations(a) for a in request.actions])
        except ValueError as exc:
            context.abort(rpc.StatusCode.INVALID_ARGUMENT, str(exc))
        return grpc.CollectionOperationResponse(result=done)

    def ListAliases(self, request, context):
        found = [grpc.AliasDescription(alias_name=a, collection_name=c) for a, c in self._engine.aliases.items()]
        return grpc.ListAliasesResponse(aliases=found)


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

    def Scroll(self, request, context):
        asked = models.ScrollRequest(
            offset=GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None,
            limit=request.limit,
            filter=GrpcToRest.convert_filter(request.filter) if request.HasField("filter") else None,
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload),
            with_vector=GrpcToRest.convert_with_vectors_selector(request.with_vectors),
        )
        self._read(context)
        found, following = self._engine.scroll(request.collection_name, asked)
        return grpc.ScrollResponse(
            result=[RestToGrpc.convert_record(p) for p in found],
            next_page_offset=None if following is None else RestToGrpc.convert_extended_point_id(words_id(following)),
        )

    def QueryBatch(self, request, context):
        self._read(context)
        answers = []
        for one in request.query_points:
            found = self._engine.query(request.collection_name, GrpcToRest.convert_query_points(one))
            answers.append(grpc.BatchResult(result=[RestToGrpc.convert_scored_point(p) for p in found]))
        return grpc.QueryBatchResponse(result=answers)

    def _read(self, context):
        if self._faults.draw() not in (None, "stall", "lost", "wait_timeout"):
            context.abort(rpc.StatusCode.UNAVAILABLE, "injected")

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
        add_QdrantServicer_to_server(Health(self._engine), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        assert self.port
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    def uri(self, collection: str) -> str:
        return f"qdrant://127.0.0.1:{self.port}/{collection}"


def main() -> None:
    """`python -m tests.rig.grpc_front FOLDER`: serves, its URI on stdout, until standard input ends."""
    front = GrpcFront(Engine(Path(sys.argv[1])), Faults())
    print(front.uri(""), flush=True)
    sys.stdin.read()
    front.stop()


if __name__ == "__main__":
    main()
