"""What a Milvus collection holds, as fields: of a plan, and of a collection that is there.

Enters: a plan, or a description. Leaves: fields, and values in Milvus' words. Refused, by name: outputs that Milvus,
or Milvus Lite, cannot hold, a similarity it lacks, more columns than a collection has fields, text and JSON past its
limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Sparse, Values, all_zero
from embedctl.plan import Plan
from embedctl.sinks.columns import width_of
from embedctl.sinks.keyed_records import HASH, JOB, POS, Records, bits, extras, sparse_rows
from embedctl.spec import JobSpec

if TYPE_CHECKING:
    from pymilvus import DataType  # type: ignore[import-untyped]

KEY = "_key"
MAX_FIELDS, MAX_TEXT_BYTES = 64, 65535
METRICS = {"cosine": "COSINE", "dot": "IP", "euclidean": "L2"}
VECTORS = {"float32": "FLOAT_VECTOR", "float16": "FLOAT16_VECTOR", "int8": "INT8_VECTOR", "binary": "BINARY_VECTOR",
           "ubinary": "BINARY_VECTOR"}  # fmt: skip
_LITE = ("FLOAT_VECTOR", "SPARSE_FLOAT_VECTOR")
_RESERVED = frozenset({KEY, "_seq", "_partition", "iso", "interval"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """name: Milvus'. column: ours. kind: a name of `pymilvus.DataType`. metric: of a vector. spec: its output."""

    name: str
    column: str
    kind: str
    dim: int | None = None
    metric: str | None = None
    spec: OutputSpec | None = None

    @property
    def type(self) -> DataType:
        from pymilvus import DataType

        found: DataType = DataType[self.kind]
        return found

    @property
    def params(self) -> dict[str, Any]:
        """As `add_field` takes them."""
        if self.name == KEY:
            return {"is_primary": True, **({"max_length": 64} if self.kind == "VARCHAR" else {})}
        if self.spec is not None:
            return {} if self.dim is None else {"dim": self.dim}
        length = {"max_length": MAX_TEXT_BYTES} if self.kind == "VARCHAR" else {}
        return length if self.name in (JOB, POS, "id") else {"nullable": True, **length}


def fields_of_plan(plan: Plan, spec: JobSpec, *, lite: bool) -> list[Field]:
    """Every field of the plan's records. :raises UsageError: see the module."""
    numbers = plan.resolved["id_type"] == "int64"
    taken = {*_RESERVED, "id", JOB, POS, HASH, *extras(plan), *(o.name for o in plan.outputs)}
    fields = [
        Field(name=KEY, column=KEY, kind="INT64" if numbers and not plan.chunked else "VARCHAR"),
        Field(name="id", column="id", kind="INT64" if numbers else "VARCHAR"),
        *(Field(name=n, column=n, kind="BOOL" if n == "truncated" else "INT64") for n in extras(plan)),
        *(Field(name=n, column=n, kind=k) for n, k in ((JOB, "VARCHAR"), (POS, "INT64"), (HASH, "VARCHAR"))),
    ]
    for column in plan.keep:
        if column != "id":
            name = _free(column, taken)
            taken.add(name)
            fields.append(Field(name=name, column=column, kind=_scalar(plan.schema.field(column).type)))
    if spec.quantization is not None:
        raise UsageError("--quantization: embedctl makes no quantized index in Milvus", hint="leave it out")
    fields += [_vector(output, spec, lite=lite) for output in plan.outputs]
    if len(fields) > MAX_FIELDS:
        raise UsageError(
            f"Milvus holds at most {MAX_FIELDS} fields a collection, this job has {len(fields)}", hint="--keep fewer"
        )
    return fields


def _vector(output: OutputSpec, spec: JobSpec, *, lite: bool) -> Field:
    kind = VECTORS.get(output.vector_type) if output.kind == "dense" else None
    if output.kind == "sparse" and output.modifier is None:
        return Field(name=output.name, column=output.name, kind="SPARSE_FLOAT_VECTOR", metric="IP", spec=output)
    if kind is None:
        what = f"{output.vector_type} vectors" if output.kind == "dense" else f"{output.kind} outputs"
        what += f" weighed by {output.modifier}" if output.modifier else ""
        raise UsageError(
            f"{output.name}: Milvus has no place for {what}",
            hint="--vector-type float32"
            if output.kind == "dense"
            else "choose Qdrant, or a folder of Parquet, with --to",
        )
    if lite and kind not in _LITE:
        raise UsageError(
            f"{output.name}: Milvus Lite holds float32 only, not {output.vector_type}", hint="--vector-type float32"
        )
    similarity = spec.distance or output.similarity
    metric = "HAMMING" if kind == "BINARY_VECTOR" else METRICS.get(similarity)
    if metric is None:
        raise UsageError(
            f"{output.name}: Milvus has no similarity {similarity!r}", hint=f"--distance {next(iter(METRICS))}"
        )
    dim = width_of(output) * (8 if kind == "BINARY_VECTOR" else 1)
    return Field(name=output.name, column=output.name, kind=kind, dim=dim, metric=metric, spec=output)


def _free(column: str, taken: set[str]) -> str:
    """A name that Milvus takes: the column's own where it can be."""
    name = column if _NAME.fullmatch(column) else re.sub(r"[^A-Za-z0-9_]", "_", f"_{column}")[:200]
    tries = (f"{name}_{n}" if n else name for n in range(len(taken) + 1))
    lower = {t.casefold() for t in taken}
    return next(t for t in tries if t.casefold() not in lower)


def _scalar(kind: pa.DataType) -> str:
    """Where `payload`'s values of this type are kept exactly; lists, structs and maps as JSON."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _scalar(kind.storage_type)
    if types.is_dictionary(kind):
        return _scalar(kind.value_type)
    if types.is_nested(kind):
        return "JSON"
    if types.is_boolean(kind):
        return "BOOL"
    if types.is_float16(kind) or types.is_float32(kind):
        return "FLOAT"
    if types.is_float64(kind):
        return "DOUBLE"
    whole = types.is_integer(kind) and not types.is_uint64(kind)
    return "INT64" if whole or types.is_duration(kind) else "VARCHAR"


def milvus_rows(records: Records, fields: Sequence[Field], name: str) -> list[dict[str, Any]]:
    """One dict a record. :raises SinkError: longer text than Milvus takes, an empty sparse vector; the row is named."""
    _refuse_empty(records, name)
    rows: list[dict[str, Any]] = [{KEY: key} for key in records.keys]
    for field in fields:
        if field.name == KEY:
            continue
        values = (
            _wire(field, records.outputs[field.column])
            if field.spec is not None
            else [_plain(field, r, name) for r in records.fields]
        )
        for row, value in zip(rows, values, strict=True):
            row[field.name] = value
    return rows


def _refuse_empty(records: Records, name: str) -> None:
    for output, values in records.outputs.items():
        empty = np.flatnonzero(all_zero(values)).tolist() if isinstance(values, Sparse) else []
        if empty:
            row = records.fields[empty[0]]["id"]
            raise SinkError(f"{name}: row {row!r}: {output} has no entries, and Milvus takes no empty sparse vector")


def _plain(field: Field, record: Mapping[str, Any], name: str) -> Any:
    value = record.get(field.column)
    if value is None or field.kind not in ("VARCHAR", "JSON"):
        return value
    text = json.dumps(value, ensure_ascii=False) if field.kind == "JSON" else str(value)
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise SinkError(
            f"{name}: row {record['id']!r}: {field.column!r} has {len(text.encode())} bytes, {MAX_TEXT_BYTES} fit",
            hint=f"leave {field.column!r} out of --keep",
        )
    return text


def _wire(field: Field, values: Values) -> Iterator[Any]:
    if field.kind == "SPARSE_FLOAT_VECTOR":
        return (dict(zip(i.tolist(), v.tolist(), strict=True)) for i, v in sparse_rows(values))
    assert isinstance(values, np.ndarray)
    if field.kind == "BINARY_VECTOR":
        return (row.tobytes() for row in bits(values))
    return iter(values)


def named_columns(fields: Sequence[Field]) -> str:
    """The columns whose names Milvus would not take, as JSON: field -> column."""
    return json.dumps({f.name: f.column for f in fields if f.name != f.column}, ensure_ascii=False)


def fields_of_collection(described: Mapping[str, Any], metrics: Mapping[str, str], columns: str) -> list[Field]:
    """The fields of a collection that is there. metrics: by vector field. columns: what `named_columns` gave."""
    names = json.loads(columns)
    similarities = {metric: name for name, metric in METRICS.items()}
    types = {"FLOAT16_VECTOR": "float16", "INT8_VECTOR": "int8", "BINARY_VECTOR": "ubinary"}
    found = []
    for one in described["fields"]:
        name, kind, spec = one["name"], one["type"].name, None
        dim = int(one["params"]["dim"]) if "dim" in one["params"] else None
        if kind.endswith("_VECTOR"):
            spec = OutputSpec(
                name=names.get(name, name),
                kind="sparse" if kind.startswith("SPARSE") else "dense",
                dim=dim or 0,
                vector_type=types.get(kind, "float32"),
                similarity=similarities.get(metrics.get(name, ""), "cosine"),
            )
        found.append(
            Field(name=name, column=names.get(name, name), kind=kind, dim=dim, metric=metrics.get(name), spec=spec)
        )
    return found
