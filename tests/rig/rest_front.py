"""The engine behind REST, bodies read by the client's own models, which forbid what a server would not know."""

from __future__ import annotations

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pydantic import BaseModel, TypeAdapter
from qdrant_client import models

from tests.rig.engine import Engine
from tests.rig.faults import Faults
from tests.rig.words import id_of

_PATH = re.compile(r"/collections/([^/?]+)(/[^?]*)?(\?.*)?")
_CODES = {"429": 429, "503": 503, "408": 408, "500": 500, "507": 507}


class RestFront:
    def __init__(self, engine: Engine, faults: Faults) -> None:
        self.engine, self.faults = engine, faults
        front = self

        class Handler(_Handler):
            rig = front

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def uri(self, collection: str) -> str:
        return f"qdrant+http://127.0.0.1:{self._server.server_port}/{collection}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    rig: RestFront
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        engine = self.rig.engine
        if self.path == "/":
            self._plain({"title": "the rig", "version": engine.version})
            return
        if self.path == "/aliases":
            self._answer({"aliases": [{"alias_name": a, "collection_name": c} for a, c in engine.aliases.items()]})
            return
        if self.path == "/collections":
            self._answer({"collections": [{"name": name} for name in engine.collections]})
            return
        name, rest = self._target()
        if rest == "/exists":
            self._answer({"exists": engine.exists(name)})
        elif not engine.exists(name):
            self._answer(None, 404)
        else:
            self._answer(engine.info(name))

    def do_DELETE(self) -> None:
        name, _ = self._target()
        self._answer(self.rig.engine.drop(name))

    def do_PUT(self) -> None:
        name, rest = self._target()
        engine = self.rig.engine
        if rest == "":
            made = models.CreateCollection.model_validate(self._body())
            try:
                self._answer(engine.create(name, made))
            except ValueError as exc:
                self._answer(str(exc), 409)
        elif rest == "/index":
            asked = models.CreateFieldIndex.model_validate(self._body())
            self._write(lambda: engine.index(name, asked.field_name, asked.field_schema.value))
        else:
            given = models.PointsList.model_validate(self._body())
            self._write(lambda: engine.upsert(name, given.points, given.update_filter))

    def do_PATCH(self) -> None:
        name, _ = self._target()
        self._answer(self.rig.engine.update(name, models.UpdateCollection.model_validate(self._body())))

    def do_POST(self) -> None:
        engine = self.rig.engine
        if self.path.startswith("/collections/aliases"):
            try:
                self._answer(engine.change_aliases(models.ChangeAliasesOperation.model_validate(self._body()).actions))
            except ValueError as exc:
                self._answer(str(exc), 400)
            return
        name, rest = self._target()
        if rest == "/points/count":
            asked = models.CountRequest.model_validate(self._body())
            self._answer({"count": engine.count(name, asked.filter)})
        elif rest == "/points/scroll":
            body = models.ScrollRequest.model_validate(self._body())
            if self._readable():
                found, following = engine.scroll(name, body)
                points = [p.model_dump(mode="json", exclude_none=True) for p in found]
                self._answer({"points": points, "next_page_offset": following and id_of(following)})
        elif rest == "/points/query/batch":
            batch = models.QueryRequestBatch.model_validate(self._body())
            if self._readable():
                found = [engine.query(name, one) for one in batch.searches]
                self._answer([{"points": [p.model_dump(mode="json") for p in points]} for points in found])
        else:
            chosen = TypeAdapter(models.FilterSelector).validate_python(self._body())
            self._write(lambda: engine.delete(name, chosen.filter))

    def _readable(self) -> bool:
        if self.rig.faults.draw() in (None, "stall", "lost", "wait_timeout"):
            return True
        self._answer("injected", 503)
        return False

    def _write(self, work) -> None:
        kind = self.rig.faults.draw()
        if kind == "stall":
            time.sleep(self.rig.faults.stall_s)
        if kind in _CODES:
            headers = {"Retry-After": "1"} if kind == "429" else {}
            self._answer(f"injected {kind}", _CODES[kind], headers)
            return
        if kind == "reset":
            self.close_connection = True
            return
        try:
            work()
        except ValueError as exc:
            self._answer(str(exc), 400)
            return
        if kind == "lost":  # half a reply, then the end of the connection
            self.close_connection = True
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"resul')
            return
        self._answer({"operation_id": 0, "status": "wait_timeout" if kind == "wait_timeout" else "completed"})

    def _target(self) -> tuple[str, str]:
        match = _PATH.fullmatch(self.path)
        assert match, self.path
        return match[1], match[2] or ""

    def _body(self) -> object:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, result: object, code: int = 200, headers: dict[str, str] | None = None) -> None:
        if isinstance(result, BaseModel):
            result = result.model_dump(mode="json", exclude_none=True)
        body = {"time": 0.0, "status": "ok", "result": result} if code == 200 else {"status": {"error": str(result)}}
        self._plain(body, code, headers)

    def _plain(self, body: object, code: int = 200, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(content),
            **(headers or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass
