"""An index as Elasticsearch and OpenSearch keep one: documents by id, versions, a mapping, what a refresh shows.

Not a real server: what its documentation says of these requests, and no more. It refuses what the real ones refuse:
unknown keys, values that do not fit their field, vectors of another size, stale sequence numbers.
"""

from __future__ import annotations

import base64
import datetime
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LONG = (-(2**63), 2**63 - 1)
_DATE = re.compile(r"(\d{4})(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d:\d\d)?)?)?)?")


class Refused(Exception):
    """An error object and its HTTP status."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.error = status, {"type": kind, "reason": reason}


@dataclass
class Document:
    source: dict[str, Any]
    seq: int
    version: int


@dataclass
class Index:
    mappings: dict[str, Any]
    settings: dict[str, str]
    opensearch: bool
    documents: dict[str, Document] = field(default_factory=dict)
    seen: dict[str, Document] = field(default_factory=dict)
    settings_seen: list[dict[str, Any]] = field(default_factory=list)
    seq: int = 0

    def __post_init__(self) -> None:
        for name, one in self.properties.items():
            self._check_property(name, one)

    @property
    def properties(self) -> dict[str, Any]:
        return self.mappings.setdefault("properties", {})

    def act(self, action: str, head: dict[str, Any], source: dict[str, Any] | None) -> dict[str, Any]:
        """One item of a bulk."""
        unknown = head.keys() - {"_id", "if_seq_no", "if_primary_term"}
        id = head["_id"]
        if unknown or not isinstance(id, str) or not 0 < len(id.encode()) <= 512:
            raise Refused(400, "illegal_argument_exception", f"bad action {head}")
        there = self.documents.get(id)
        asked = head.get("if_seq_no")
        if (action == "create" and there) or (asked is not None and (there is None or there.seq != asked)):
            raise Refused(409, "version_conflict_engine_exception", f"[{id}]: version conflict")
        self.seq += 1
        if action == "delete":
            if there is None:
                return {"_id": id, "result": "not_found", "status": 404}
            del self.documents[id]
            return {"_id": id, "result": "deleted", "status": 200}
        self._parse(source or {})
        self.documents[id] = Document(source or {}, self.seq, there.version + 1 if there else 1)
        return {"_id": id, "result": "updated" if there else "created", "status": 200 if there else 201}

    def refresh(self) -> None:
        self.seen = dict(self.documents)

    def change(self, settings: dict[str, Any]) -> None:
        self.settings_seen.append(dict(settings))
        for name, value in settings.items():
            if name not in ("refresh_interval", "number_of_replicas"):
                raise Refused(400, "illegal_argument_exception", f"unknown setting [index.{name}]")
            if value is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = str(value)

    def put_mapping(self, body: dict[str, Any]) -> None:
        if body.keys() - {"properties", "_meta", "dynamic"}:
            raise Refused(400, "mapper_parsing_exception", f"unknown {sorted(body)}")
        for name, one in body.get("properties", {}).items():
            self._check_property(name, one)
            self.properties[name] = one
        if "_meta" in body:
            self.mappings["_meta"] = body["_meta"]

    def matching(self, query: dict[str, Any]) -> dict[str, float]:
        """Scores of the documents that can be seen and match."""
        if "ids" in query:
            return dict.fromkeys(self.seen.keys() & set(query["ids"]["values"]), 1.0)
        scores = {}
        for id, document in self.seen.items():
            score = self._score(query, document.source)
            if score is not None:
                scores[id] = score
        return scores

    def _score(self, query: dict[str, Any], source: dict[str, Any]) -> float | None:
        [(kind, body)] = query.items()
        if kind == "match_all":
            return 1.0
        if kind == "term":
            [(name, value)] = body.items()
            held = source.get(name)
            return 1.0 if value in (held if isinstance(held, list) else [held]) else None
        if kind == "range":
            [(name, ends)] = body.items()
            held = source.get(name)
            tests = {"gte": lambda v, e: v >= e, "lt": lambda v, e: v < e, "gt": lambda v, e: v > e}
            return 1.0 if held is not None and all(tests[k](held, e) for k, e in ends.items()) else None
        if kind == "query_string":
            name, colon, value = body["query"].partition(":")
            if not colon or not value:
                raise Refused(400, "parsing_exception", f"Failed to parse query [{body['query']}]")
            return 1.0 if str(source.get(name)).lower() == value.lower() else None
        if kind == "bool":
            return self._bool(body, source)
        if kind == "sparse_vector" and not self.opensearch:
            weights = source.get(body["field"], {})
            score = sum(weights.get(t, 0.0) * w for t, w in body["query_vector"].items())
            return score or None
        if kind == "rank_feature" and self.opensearch:
            name, _, token = body["field"].partition(".")
            held = source.get(name, {}).get(token)
            return None if held is None else held * body["boost"]
        if kind == "knn" and self.opensearch:
            [(name, asked)] = body.items()
            chosen = asked.get("filter", {"match_all": {}})
            return self.near(name, asked["vector"], source) if self._score(chosen, source) else None
        if kind == "script_score":
            return self._script(body, source)
        raise Refused(400, "parsing_exception", f"unknown query [{kind}]")

    def _script(self, body: dict[str, Any], source: dict[str, Any]) -> float | None:
        if self._score(body["query"], source) is None:
            return None
        script, params = body["script"], body["script"]["params"]
        if self.opensearch:
            assert (script["lang"], script["source"]) == ("knn", "knn_score")
            score = self.near(params["field"], params["query_value"], source)
            cosine = params["space_type"] == "cosinesimil"
            return 2 * score if cosine and score is not None else score
        name = re.fullmatch(r'.*(cosineSimilarity|dotProduct|l2norm|hamming)\(params\.q, "(.+?)"\).*', script["source"])
        assert name, script
        return self.near(name[2], params["q"], source)

    def _bool(self, body: dict[str, Any], source: dict[str, Any]) -> float | None:
        if body.keys() - {"must", "must_not", "filter", "should", "minimum_should_match"}:
            raise Refused(400, "parsing_exception", f"unknown in bool: {sorted(body)}")
        if any(self._score(q, source) is not None for q in body.get("must_not", [])):
            return None
        needed = [self._score(q, source) for q in [*body.get("must", []), *body.get("filter", [])]]
        some = [s for q in body.get("should", []) if (s := self._score(q, source)) is not None]
        if None in needed or (body.get("minimum_should_match") and not some):
            return None
        return sum(s for s in needed[: len(body.get("must", []))] if s) + sum(some)

    def near(self, name: str, vector: list[float], source: dict[str, Any]) -> float | None:
        one = self.properties[name]
        if len(vector) * (8 if _packed(one) else 1) != (one.get("dims") or one.get("dimension")):
            raise Refused(400, "illegal_argument_exception", "the query vector has a different dimension")
        if name not in source:
            return None
        a, b = np.array(vector, dtype=np.float64), np.array(source[name], dtype=np.float64)
        if _packed(one):
            bits = [np.unpackbits(np.array(v, np.int8).view(np.uint8)) for v in (vector, source[name])]
            apart = float((bits[0] != bits[1]).sum())
            return 1 / (1 + apart) if self.opensearch else 1 - apart / len(bits[0])
        space = one.get("similarity") or one["method"]["space_type"]
        if space in ("cosine", "cosinesimil"):
            return float((1 + a @ b / np.linalg.norm(a) / np.linalg.norm(b)) / 2)
        if space in ("max_inner_product", "innerproduct"):
            return float(a @ b + 1 if a @ b >= 0 else 1 / (1 - a @ b))
        return float(1 / (1 + (a - b) @ (a - b)))

    def _check_property(self, name: str, one: dict[str, Any]) -> None:
        vectors = {"knn_vector", "rank_features"} if self.opensearch else {"dense_vector", "sparse_vector"}
        known = {"keyword", "text", "long", "integer", "unsigned_long", "float", "double", "boolean", "date", "binary",
                 "object", "geo_point"} | vectors  # fmt: skip
        if one.get("type") not in known:
            raise Refused(400, "mapper_parsing_exception", f"No handler for type [{one.get('type')}] on field [{name}]")
        if one["type"] == "dense_vector" and not 0 < one["dims"] <= 4096:
            raise Refused(400, "mapper_parsing_exception", "The number of dimensions should be in the range [1, 4096]")
        if one["type"] == "knn_vector" and not self.settings.get("knn"):
            raise Refused(400, "mapper_parsing_exception", "Cannot set method without index.knn")

    def _parse(self, source: dict[str, Any]) -> None:
        for name, value in source.items():
            if name in ("_id", "_source", "_index"):
                raise Refused(400, "document_parsing_exception", f"Field [{name}] is a metadata field")
            one = self.properties.get(name)
            if one is None:
                continue  # dynamic: false
            if one["type"] in ("dense_vector", "knn_vector", "sparse_vector", "rank_features"):
                self._parse_vector(name, one, value)
            elif one["type"] != "object":
                for each in _flat(value):
                    if not _fits(one, each):
                        raise Refused(
                            400, "document_parsing_exception", f"failed to parse field [{name}] of type [{one['type']}]"
                        )

    def _parse_vector(self, name: str, one: dict[str, Any], value: Any) -> None:
        if one["type"] in ("sparse_vector", "rank_features"):
            if not isinstance(value, dict) or not all(isinstance(w, float) and w > 0 for w in value.values()):
                raise Refused(400, "document_parsing_exception", f"[{name}] takes positive weights only")
            return
        size = one.get("dims") or one.get("dimension")
        whole = _packed(one) or "byte" in (one.get("element_type"), one.get("data_type"))
        if len(value) * (8 if _packed(one) else 1) != size:
            raise Refused(
                400, "document_parsing_exception", f"[{name}] has a different number of dimensions than {size}"
            )
        if whole and not all(isinstance(v, int) and -128 <= v < 128 for v in value):
            raise Refused(400, "document_parsing_exception", f"[{name}] takes bytes only")
        if one.get("similarity") == "cosine" and not any(value):
            raise Refused(400, "document_parsing_exception", "cosine does not support vectors with zero magnitude")


def _packed(one: dict[str, Any]) -> bool:
    return one.get("element_type") == "bit" or one.get("data_type") == "binary"


def _flat(value: Any) -> list[Any]:
    return [x for v in value for x in _flat(v)] if isinstance(value, list) else [] if value is None else [value]


def _fits(one: dict[str, Any], value: Any) -> bool:
    kind = one["type"]
    if kind in ("long", "integer"):
        low, high = LONG if kind == "long" else (-(2**31), 2**31 - 1)
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if kind == "unsigned_long":
        return 0 <= int(value) < 2**64
    if kind in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "date":
        return bool(one.get("ignore_malformed")) or bool(_DATE.fullmatch(str(value)) and _day(str(value)))
    if kind == "binary":
        return isinstance(base64.b64decode(value, validate=True), bytes)
    if kind == "keyword" and "ignore_above" not in one:
        return len(str(value).encode()) <= 32766
    return isinstance(value, (str, int, float)) or kind == "geo_point"


def _day(text: str) -> datetime.date:
    return datetime.date.fromisoformat(text[:10])
