"""What an index must be for a plan, in Elasticsearch's words and in OpenSearch's.

Enters: a plan, or a mapping that is there. Leaves: properties and settings, or what differs. Refused, by name: outputs
and similarities that the store has no field for, column names that it would take apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec
from embedctl.plan import Plan
from embedctl.sinks.columns import width_of
from embedctl.sinks.keyed_records import HASH, JOB, POS, extras
from embedctl.spec import JobSpec

Properties = dict[str, dict[str, Any]]
LONGEST_KEYWORD = 8191
"""Characters; a term has at most 32,766 bytes. Longer text is kept, and not indexed."""
_SIMILARITY = {"cosine": "cosine", "dot": "max_inner_product", "euclidean": "l2_norm"}
_SPACE = {"cosine": "cosinesimil", "dot": "innerproduct", "euclidean": "l2"}
_ELEMENT = {"float32": "float", "float16": "float", "int8": "byte", "binary": "bit", "ubinary": "bit"}
_METADATA = frozenset({
    "_id", "_index", "_type", "_source", "_routing", "_field_names", "_ignored", "_meta", "_doc_count", "_tier",
    "_seq_no", "_primary_term", "_version", "_size", "_nested_path", "_data_stream_timestamp", "_tsid", "_feature",
    "_parent", "_all", "_inference_fields", "_ignored_source",
})  # fmt: skip
_KEYWORD = {"type": "keyword", "ignore_above": LONGEST_KEYWORD}
_TEXT = {"type": "text", "fields": {"keyword": _KEYWORD}}
_DATE = {"type": "date", "format": "strict_date_optional_time_nanos", "ignore_malformed": True}
_UNREAD = {"type": "object", "enabled": False}
"""Kept as it is, whatever its shape."""
_ASKED: dict[str, dict[str, Any]] = {
    "keyword": _KEYWORD, "uuid": _KEYWORD, "text": _TEXT, "integer": {"type": "long"}, "float": {"type": "double"},
    "bool": {"type": "boolean"}, "datetime": _DATE, "geo": {"type": "geo_point"},
}  # fmt: skip
_COMPARED = ("type", "dims", "element_type", "similarity", "dimension", "data_type", "space_type")
_DEFAULTS = {"element_type": "float", "similarity": "cosine", "data_type": "float", "space_type": "l2"}


def properties_of(plan: Plan, spec: JobSpec, *, opensearch: bool) -> Properties:
    """A property a field of the plan's records. :raises UsageError: see the module."""
    asked = _asked(plan, spec)
    integer = {"type": "integer"}
    found: Properties = {"id": {"type": "long"} if plan.resolved["id_type"] == "int64" else _KEYWORD}
    found |= {name: {"type": "boolean"} if name == "truncated" else integer for name in extras(plan)}
    for name in plan.keep:
        _check_name(name, plan)
        kind = asked.get(name) or (None if name == "id" else _kind(plan.schema.field(name).type))
        if kind is not None:
            found[name] = kind
    for output in plan.outputs:
        found[output.name] = _vector(output, spec, opensearch=opensearch)
    unread = {"type": "keyword", "index": False, "doc_values": False}
    return {**found, JOB: {"type": "keyword"}, POS: {"type": "long"}, HASH: unread}


def differences(found: Mapping[str, Any], wanted: Properties) -> list[str]:
    """How the mapping's fields would hold something else than is wanted; fields that are missing are no difference."""
    told = []
    for name, needs in wanted.items():
        has = found.get(name)
        if has is None:
            continue
        vector = needs["type"] in ("dense_vector", "knn_vector")
        for what in _COMPARED if vector else ("type",):
            a, b = (_of(one, what) for one in (has, needs))
            if a != b and not (what == "type" and not vector and name not in (JOB, POS)):
                told.append(f"{name}: {what} {a}, needed {b}")
    return told


def outputs_of(properties: Mapping[str, Any]) -> list[OutputSpec]:
    """The vectors that an index holds. rank_features and sparse_vector do not tell the size of their vocabulary: 0."""
    similarities = {v: k for k, v in [*_SIMILARITY.items(), *_SPACE.items()]} | {"dot_product": "dot"}
    stored = {"float": "float32", "byte": "int8", "bit": "ubinary", "binary": "ubinary", "half_float": "float16"}
    found = []
    for name, one in properties.items():
        kind = one.get("type")
        if kind in ("sparse_vector", "rank_features"):
            found.append(OutputSpec(name=name, kind="sparse", dim=0, similarity="dot"))
        elif kind in ("dense_vector", "knn_vector"):
            element = _of(one, "element_type" if kind == "dense_vector" else "data_type")
            similarity = _of(one, "similarity" if kind == "dense_vector" else "space_type")
            found.append(
                OutputSpec(
                    name=name,
                    kind="dense",
                    dim=int(one.get("dims") or one.get("dimension") or 0),
                    vector_type=stored.get(str(element), "float32"),
                    similarity=similarities.get(str(similarity), "euclidean"),
                )
            )
    return found


def _of(one: Mapping[str, Any], what: str) -> Any:
    """A property's word, or what the store takes it for where it is not said."""
    method = one.get("method") or {}
    relevant = {
        "dense_vector": ("type", "dims", "element_type", "similarity"),
        "knn_vector": ("type", "dimension", "data_type", "space_type"),
    }.get(str(one.get("type")), ("type",))
    if what not in relevant:
        return None
    said = one.get(what) or method.get(what)
    return said if said is not None else _DEFAULTS.get(what)


def _vector(output: OutputSpec, spec: JobSpec, *, opensearch: bool) -> dict[str, Any]:
    store = "OpenSearch" if opensearch else "Elasticsearch"
    if output.kind == "sparse" and output.modifier is None:
        return {"type": "rank_features" if opensearch else "sparse_vector"}
    element = _ELEMENT.get(output.vector_type) if output.kind == "dense" else None
    if element is None:
        what = f"{output.vector_type} vectors" if output.kind == "dense" else f"{output.kind} outputs"
        what += f" weighed by {output.modifier}" if output.modifier else ""
        hint = "--vector-type float32" if output.kind == "dense" else "choose Qdrant, or a folder of Parquet, with --to"
        raise UsageError(f"{output.name}: {store} has no place for {what}", hint=hint)
    similarity = spec.distance or output.similarity
    if element != "bit" and similarity not in _SIMILARITY:
        raise UsageError(f"{output.name}: {store} has no similarity {similarity!r}", hint="--distance cosine")
    size = width_of(output) * (8 if element == "bit" else 1)
    if opensearch:
        return _knn_vector(size, element, similarity, spec.quantization)
    options = {None: "hnsw", "scalar": "int8_hnsw", "binary": "bbq_hnsw"}
    if spec.quantization not in options or (spec.quantization and element != "float"):
        raise UsageError(
            f"--quantization: Elasticsearch has no {spec.quantization} one of {output.vector_type} vectors"
        )
    return {
        "type": "dense_vector", "dims": size, "element_type": element, "index": True,
        "similarity": "l2_norm" if element == "bit" else _SIMILARITY[similarity],
        "index_options": {"type": options[spec.quantization], "m": 16, "ef_construction": 100},
    }  # fmt: skip


def _knn_vector(size: int, element: str, similarity: str, quantization: str | None) -> dict[str, Any]:
    if quantization not in (None, "scalar") or (quantization and element != "float"):
        raise UsageError(f"--quantization: OpenSearch has no {quantization} one of such vectors here")
    parameters: dict[str, Any] = {"m": 16, "ef_construction": 100}
    if quantization:
        parameters["encoder"] = {"name": "sq"}
    bit = element == "bit"
    return {
        "type": "knn_vector", "dimension": size, "data_type": "binary" if bit else element,
        "method": {
            "name": "hnsw", "engine": "faiss" if bit else "lucene", "parameters": parameters,
            "space_type": "hamming" if bit else _SPACE[similarity],
        },
    }  # fmt: skip


def _kind(kind: pa.DataType) -> dict[str, Any] | None:
    """Where `payload`'s values of this type belong; None: nothing can be said of it."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _kind(kind.storage_type)
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_struct(kind) or types.is_map(kind):
        return _UNREAD
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _kind(kind.value_type)
    if types.is_nested(kind):
        return _UNREAD
    if types.is_null(kind):
        return None
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_uint64(kind):
        return {"type": "unsigned_long"}
    if types.is_integer(kind) or types.is_duration(kind):
        return {"type": "long"}
    if types.is_floating(kind):
        return {"type": "double" if types.is_float64(kind) else "float"}
    if types.is_timestamp(kind) or types.is_date(kind):
        return _DATE
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _TEXT
    if types.is_decimal(kind) or types.is_time(kind):
        return _KEYWORD
    return {"type": "binary"}


def _asked(plan: Plan, spec: JobSpec) -> Properties:
    """`--index-field`. :raises UsageError: not NAME:KIND, or no kept column."""
    found: Properties = {}
    for text in spec.index_field:
        name, _, kind = text.rpartition(":")
        if name not in plan.keep or kind not in _ASKED:
            raise UsageError(
                f"--index-field: {text!r} is not a kept column and a kind of {', '.join(_ASKED)}",
                hint="--keep lang --index-field lang:keyword",
            )
        found[name] = _ASKED[kind]
    return found


def _check_name(name: str, plan: Plan) -> None:
    """A dot in a name makes an object of it."""
    parts = name.split(".")
    above = {".".join(parts[:n]) for n in range(1, len(parts))} & {*plan.keep, *(o.name for o in plan.outputs), "id"}
    if name in _METADATA or above or not all(part.strip() for part in parts):
        why = f"it lies inside {above.pop()!r}" if above else "the store keeps that name for itself, or cannot read it"
        raise UsageError(f"--keep: {name!r} cannot be a field: {why}", hint=f"leave {name} out")
