"""What a Milvus collection holds, read back: by search, and whole.

Enters: the collection's fields and a way to call it. Leaves: hits; record batches. JSON fields come as their text,
packed bits as uint8, whichever binary type they were. Refused: queries for outputs that are not there, and to int8
vectors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import Values
from embedctl.sinks.base import Hit
from embedctl.sinks.keyed_records import sparse_rows
from embedctl.sinks.keyed_search import Found, depth_of, fused
from embedctl.sinks.milvus_fields import KEY, Field

Call = Callable[..., Any]
_ARROW = {
    "BOOL": pa.bool_(), "INT8": pa.int8(), "INT16": pa.int16(), "INT32": pa.int32(), "INT64": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(),
}  # fmt: skip
_NUMBERS = {"FLOAT_VECTOR": "<f4", "FLOAT16_VECTOR": "<f2", "INT8_VECTOR": "i1", "BINARY_VECTOR": "u1"}
META = "$meta"


def search(
    call: Call, fields: Sequence[Field], query: Mapping[str, Values], *, limit: int, where: str | None
) -> list[list[Hit]]:
    """One ranking an output, then fused. `where`: a Milvus filter expression."""
    by_column = {f.column: f for f in fields if f.spec is not None}
    rankings = []
    for name, values in query.items():
        if name not in by_column:
            raise UsageError(f"no output named {name!r} there; it has: {', '.join(by_column)}")
        rankings.append(_ranked(call, fields, by_column[name], values, depth_of(limit, len(query)), where))
    return [fused(each, limit) for each in zip(*rankings, strict=True)]


def _ranked(
    call: Call, fields: Sequence[Field], field: Field, values: Values, limit: int, where: str | None
) -> list[list[Found]]:
    plain = [f.name for f in fields if f.spec is None]
    try:
        found = call(
            "search", data=_asked(field, values), anns_field=field.name, limit=limit, filter=where or "",
            output_fields=plain, search_params={"params": {"ef": max(64, 2 * limit)}}, consistency_level="Strong",
        )  # fmt: skip
    except SinkError as exc:
        if where is None:
            raise
        raise UsageError(f"--where: {exc}", hint='a Milvus expression, such as: lang == "en" and year > 2000') from exc
    names = {f.name: f.column for f in fields if f.name != KEY}
    return [
        [
            Found(
                key=str(hit[fields[0].name]),
                score=_score(field, float(hit["distance"])),
                fields={names[n]: v for n, v in dict(hit["entity"]).items() if n in names},
            )
            for hit in hits
        ]
        for hits in found
    ]


def _asked(field: Field, values: Values) -> list[Any]:
    if field.kind == "SPARSE_FLOAT_VECTOR":
        return [dict(zip(i.tolist(), v.tolist(), strict=True)) for i, v in sparse_rows(values)]
    assert isinstance(values, np.ndarray)
    if field.kind == "BINARY_VECTOR":
        return [row.tobytes() for row in np.packbits(values > 0, axis=1)]
    if field.kind == "INT8_VECTOR":
        raise UsageError(f"{field.column}: int8 vectors cannot be searched from here", hint="ask Milvus itself")
    return list(values.astype(np.float16 if field.kind == "FLOAT16_VECTOR" else np.float32))


def _score(field: Field, distance: float) -> float:
    """Higher is nearer: cosine and dot product as they are, distances negative, of bits the share that is equal."""
    if field.metric == "L2":
        return -math.sqrt(max(0.0, distance))
    return 1 - distance / (field.dim or 1) if field.metric == "HAMMING" else distance


def scan(call: Call, fields: Sequence[Field], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """By primary key, ascending."""
    iterator = call("query_iterator", batch_size=batch_rows, output_fields=["*"])
    try:
        while rows := iterator.next():
            yield batch(list(rows), fields)
    except Exception as exc:  # the client raises nothing narrower here
        raise SinkError(f"the scan stopped: {exc}", hint="run the same command again") from exc
    finally:
        iterator.close()


def batch(rows: Sequence[Mapping[str, Any]], fields: Sequence[Field]) -> pa.RecordBatch:
    """Records as the client gives them."""
    known = {f.name for f in fields}
    has_id = any(f.column == "id" for f in fields)
    columns: dict[str, pa.Array[Any]] = {}
    for field in sorted(fields, key=lambda f: (f.column not in ("id", fields[0].column), f.spec is not None)):
        if field.name == KEY:
            continue
        name = "id" if field is fields[0] and not has_id else field.column
        values = [row.get(field.name) for row in rows]
        columns[name] = _plain(field, values) if field.spec is None else _vectors(field, values)
    more = [{k: v for k, v in row.items() if k not in known} for row in rows]
    if any(more):
        columns[META] = pa.array([json.dumps(m, ensure_ascii=False) for m in more], pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _plain(field: Field, values: Sequence[Any]) -> pa.Array[Any]:
    if field.kind in _ARROW:
        return pa.array(values, _ARROW[field.kind])
    texts = [
        v if v is None or (isinstance(v, str) and field.kind != "JSON") else json.dumps(v, ensure_ascii=False)
        for v in values
    ]
    return pa.array(texts, pa.string())


def _vectors(field: Field, values: Sequence[Any]) -> pa.Array[Any]:
    if field.kind == "SPARSE_FLOAT_VECTOR":
        kind = pa.struct([("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32()))])
        pairs = [sorted((v or {}).items()) for v in values]
        return pa.array([{"indices": [i for i, _ in p], "values": [x for _, x in p]} for p in pairs], kind)
    if field.kind == "BFLOAT16_VECTOR":
        wide = np.stack([np.frombuffer(_bytes(v), "<u2") for v in values]).astype(np.uint32) << 16
        numbers = wide.view(np.float32)
    elif field.kind == "FLOAT_VECTOR":
        numbers = np.array(values, dtype=np.float32)
    else:
        numbers = np.stack([np.frombuffer(_bytes(v), _NUMBERS[field.kind]) for v in values])
    flat = pa.array(np.ascontiguousarray(numbers).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, numbers.shape[1])


def _bytes(value: Any) -> bytes:
    """The client wraps a byte vector in a list, or gives an array."""
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    return one if isinstance(one, bytes) else np.asarray(one).tobytes()
