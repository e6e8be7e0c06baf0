"""Indexes behind the HTTP that Elasticsearch and OpenSearch speak, bodies read strictly, with a fault injector.

Faults, drawn for bulks: whole answers of 429 and 503, items turned away or failed, connections cut before and after the
work, stalls. `stop` and `start` are a restart: what was acknowledged stays, connections and scrolls do not.
"""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.parse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.rig.elastic_index import Index, Refused

KINDS = ("429", "503", "items", "reset", "lost", "stall")
_SETTINGS = {"knn", "mapping.exclude_source_vectors", "number_of_shards", "refresh_interval", "number_of_replicas"}


class ElasticFront:
    def __init__(self, *, opensearch: bool = False, version: str | None = None, key: str | None = None) -> None:
        self.opensearch, self.version = opensearch, version or ("2.19.0" if opensearch else "9.2.0")
        self.authorization = key
        self.indexes: dict[str, Index] = {}
        self.scrolls: dict[str, list[list[dict[str, Any]]]] = {}
        self.share, self.kinds, self.seen = 0.0, KINDS, Counter[str]()
        self.bulks: list[tuple[int, int]] = []
        self.max_body = 100 << 20
        self.lock, self.chance = threading.RLock(), random.Random(1)
        self.port = 0
        self.start()

    def start(self) -> None:
        front = self

        class Handler(_Handler):
            rig = front

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.scrolls.clear()

    def uri(self, index: str) -> str:
        return f"{'opensearch' if self.opensearch else 'elasticsearch'}://127.0.0.1:{self.port}/{index}"

    def sources(self, index: str) -> dict[str, dict[str, Any]]:
        with self.lock:
            return {id: d.source for id, d in self.indexes[index].documents.items()}

    def draw(self) -> str | None:
        with self.lock:
            kind = self.chance.choice(self.kinds) if self.chance.random() < self.share else None
            self.seen[kind or "fine"] += 1
            return kind


class _Handler(BaseHTTPRequestHandler):
    rig: ElasticFront
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_DELETE = do_GET

    def _handle(self) -> None:
        path, _, query = self.path.partition("?")
        parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/") if p]
        self.params = dict(urllib.parse.parse_qsl(query, strict_parsing=bool(query)))
        self.content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            if self.rig.authorization and self.headers.get("Authorization") != self.rig.authorization:
                raise Refused(401, "security_exception", "missing authentication credentials")
            if len(self.content) > self.rig.max_body:
                raise Refused(413, "content_too_long", "too large")
            with self.rig.lock:
                work = self._routed(parts)
            if work is not None:
                self._answer(200, work)
        except Refused as exc:
            self._answer(exc.status, {"error": exc.error, "status": exc.status})

    def _routed(self, parts: list[str]) -> Any:
        verb = self.command
        if not parts:
            version = {"number": self.rig.version} | ({"distribution": "opensearch"} if self.rig.opensearch else {})
            return {"name": "rig", "version": version}
        if parts == ["_search", "scroll"]:
            return self._scroll()
        name, rest = parts[0], parts[1:]
        if (verb, rest) == ("PUT", []):
            return self._create(name)
        if rest == ["_bulk"]:
            return self._bulk(name)
        if name not in self.rig.indexes:
            raise Refused(404, "index_not_found_exception", f"no such index [{name}]")
        index = self.rig.indexes[name]
        return getattr(self, f"_{verb.lower()}_{'_'.join(r.strip('_') for r in rest) or 'index'}")(name, index)

    def _create(self, name: str) -> Any:
        body = self._json({"settings", "mappings"})
        if name in self.rig.indexes:
            raise Refused(400, "resource_already_exists_exception", f"index [{name}] already exists")
        settings = {k.removeprefix("index."): v for k, v in body.get("settings", {}).items()}
        if settings.keys() - _SETTINGS or name != name.lower():
            raise Refused(400, "illegal_argument_exception", f"unknown setting {sorted(settings)}")
        settings = {"number_of_replicas": "1", **{k: str(v).lower() for k, v in settings.items()}}
        self.rig.indexes[name] = Index(body.get("mappings", {}), settings, self.rig.opensearch)
        return {"acknowledged": True, "index": name}

    def _get_index(self, name: str, index: Index) -> Any:
        return {name: {"aliases": {}, "mappings": index.mappings, "settings": {"index": index.settings}}}

    def _delete_index(self, name: str, index: Index) -> Any:
        del self.rig.indexes[name]
        return {"acknowledged": True}

    def _put_mapping(self, name: str, index: Index) -> Any:
        index.put_mapping(self._json())
        return {"acknowledged": True}

    def _get_settings(self, name: str, index: Index) -> Any:
        assert self.params == {"flat_settings": "true"}
        return {name: {"settings": {f"index.{k}": v for k, v in index.settings.items()}}}

    def _put_settings(self, name: str, index: Index) -> Any:
        index.change(self._json({"index"})["index"])
        return {"acknowledged": True}

    def _post_refresh(self, name: str, index: Index) -> Any:
        index.refresh()
        return {"_shards": {"total": 1, "successful": 1, "failed": 0}}

    def _post_flush(self, _name: str, _index: Index) -> Any:
        return {"_shards": {"total": 1, "successful": 1, "failed": 0}}

    def _post_count(self, name: str, index: Index) -> Any:
        return {"count": len(index.matching(self._json({"query"})["query"])), "_shards": {"failed": 0}}

    def _post_mget(self, name: str, index: Index) -> Any:
        assert self.params == {"_source_includes": "_pos"}
        docs = []
        for id in self._json({"ids"})["ids"]:
            found = index.documents.get(id)
            more: dict[str, Any] = {}
            if found:
                position = {k: v for k, v in found.source.items() if k == "_pos"}
                more = {"_seq_no": found.seq, "_primary_term": 1, "_source": position}
            docs.append({"_index": name, "_id": id, "found": found is not None, **more})
        return {"docs": docs}

    def _post_search(self, name: str, index: Index) -> Any:
        body = self._json({"query", "knn", "size", "sort", "_source"})
        if "knn" in body:
            knn = body["knn"]
            if (
                knn.keys() - {"field", "query_vector", "k", "num_candidates", "filter"}
                or knn["num_candidates"] < knn["k"]
            ):
                raise Refused(400, "parsing_exception", f"bad knn {sorted(knn)}")
            among = index.matching(knn.get("filter", {"match_all": {}}))
            near = {i: index.near(knn["field"], knn["query_vector"], index.seen[i].source) for i in among}
            scores = dict(sorted(((i, s) for i, s in near.items() if s is not None), key=lambda p: -p[1])[: knn["k"]])
        else:
            scores = index.matching(body.get("query", {"match_all": {}}))
        asked = body.get("_source", {})
        hidden = set(asked.get("excludes", []))
        if self.rig.version >= "9.2" and index.settings.get("mapping.exclude_source_vectors") != "false":
            vectors = {n for n, p in index.properties.items() if "vector" in p["type"]}
            hidden |= set() if asked.get("exclude_vectors") is False else vectors
        ids = sorted(scores, key=lambda i: -scores[i])
        for one in reversed(body.get("sort", [])):
            if one != "_doc":
                [(by, _)] = one.items()
                ids.sort(key=lambda i: index.seen[i].source.get(by, 0))
        hits = [
            {
                "_id": i,
                "_score": scores[i],
                "_source": {k: v for k, v in index.seen[i].source.items() if k not in hidden},
            }
            for i in ids
        ]
        size = body.get("size", 10)
        if "scroll" not in self.params:
            return {"hits": {"hits": hits[:size]}, "_shards": {"failed": 0}}
        self.rig.scrolls["s"] = [hits[i : i + size] for i in range(0, len(hits), size)]
        return self._page()

    def _scroll(self) -> Any:
        if self.command == "DELETE":
            return {"succeeded": self.rig.scrolls.pop(self._json({"scroll_id"})["scroll_id"][0], None) is not None}
        if self._json({"scroll", "scroll_id"})["scroll_id"] not in self.rig.scrolls:
            raise Refused(404, "search_context_missing_exception", "No search context found")
        return self._page()

    def _page(self) -> Any:
        pages = self.rig.scrolls["s"]
        return {"_scroll_id": "s", "hits": {"hits": pages.pop(0) if pages else []}, "_shards": {"failed": 0}}

    def _bulk(self, name: str) -> Any:
        assert self.headers["Content-Type"] == "application/x-ndjson"
        assert self.content.endswith(b"\n")
        kind = self.rig.draw()
        if kind in ("429", "503"):
            raise Refused(int(kind), "es_rejected_execution_exception", f"injected {kind}")
        if kind == "reset":
            self.close_connection = True
            return None
        if kind == "stall":
            self.rig.lock.release()
            time.sleep(1.5)
            self.rig.lock.acquire()
        index = self.rig.indexes.setdefault(name, Index({}, {}, self.rig.opensearch))  # as servers do
        items = self._items(index, turn_away=kind == "items")
        self.rig.bulks.append((len(items), len(self.content)))
        if kind == "lost":  # half a reply, then the end of the connection
            self.close_connection = True
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"took')
            return None
        errors = any("error" in next(iter(item.values())) for item in items)
        return {"took": 1, "errors": errors, "items": items}

    def _items(self, index: Index, *, turn_away: bool) -> list[dict[str, Any]]:
        lines, items = self.content.split(b"\n")[:-1], []
        while lines:
            [(action, head)] = json.loads(lines.pop(0)).items()
            assert action in ("create", "index", "delete")
            source = None if action == "delete" else json.loads(lines.pop(0))
            try:
                if turn_away and self.rig.chance.random() < 0.5:
                    status = self.rig.chance.choice([429, 503])
                    raise Refused(
                        status,
                        "es_rejected_execution_exception",
                        "injected: rejected execution of coordinating operation",
                    )
                result = index.act(action, head, source)
            except Refused as exc:
                result = {"_id": head["_id"], "status": exc.status, "error": exc.error}
            items.append({action: result})
        return items

    def _json(self, allowed: set[str] | None = None) -> Any:
        assert self.headers["Content-Type"] == "application/json"
        body = json.loads(self.content)
        if allowed is not None and body.keys() - allowed:
            raise Refused(400, "parsing_exception", f"unknown key in {sorted(body)}")
        return body

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass
