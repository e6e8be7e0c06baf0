"""A window as an Arrow table, as LanceDB keeps it: the table's columns, and a window's rows in them.

Enters: a plan, windows. Leaves: a schema, with what is to be known of the run in its metadata, and tables of it. A dot
in the name of a kept column, which LanceDB has no place for, becomes `_`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.plan import Plan
from embedctl.records import WindowOutput
from embedctl.sinks import lancedb_read as reading
from embedctl.sinks import stores
from embedctl.sinks.keyed_records import HASH, JOB, POS
from embedctl.sinks.lancedb_read import MANIFEST
from embedctl.sinks.parts import output_array


def schema_of(plan: Plan, distance: str | None) -> pa.Schema:
    """The table's columns, the run in their metadata. :raises UsageError: a name that LanceDB cannot have."""
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64() if plan.resolved["id_type"] == "int64" else pa.string())]
    if plan.chunked:
        fields += [pa.field(name, pa.int32()) for name in ("chunk", "char_start", "char_end")]
    fields += [pa.field(called(name), _held(plan.schema.field(name).type)) for name in plan.keep]
    specs = [replace(o, similarity=distance or o.similarity) for o in plan.outputs]
    fields += [pa.field(o.name, reading.column_type(o)) for o in specs]
    fields += [pa.field("token_count", pa.int32())] if plan.spec["token_count"] else []
    fields += [pa.field("truncated", pa.bool_())] if plan.spec["truncated"] else []
    fields += [pa.field(POS, pa.int64()), pa.field(JOB, pa.string()), pa.field(HASH, pa.string())]
    twice = sorted({f.name for f in fields if [g.name for g in fields].count(f.name) > 1})
    if twice:
        raise UsageError(
            f"--keep: two columns would be called {twice[0]!r}: LanceDB takes no dot in a name, _ stands for it"
        )
    manifest = {"job": plan.job, "recipe": plan.recipe, "outputs": [o.to_json() for o in specs]}
    return pa.schema(fields, metadata={MANIFEST: json.dumps({**manifest, "model": dict(plan.model)})})


def called(name: str) -> str:
    """A column's name there, which may hold no dot."""
    return name.replace(".", "_")


def _held(kind: pa.DataType) -> pa.DataType:
    """The type that comes back: LanceDB keeps no views."""
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def table_of(output: WindowOutput, plan: Plan, row: np.ndarray, schema: pa.Schema | None) -> pa.Table:
    assert schema is not None
    whole = plan.resolved["id_type"] == "int64"
    columns: dict[str, Any] = {"id": np.array(output.ids, dtype=np.int64) if whole else output.ids}
    columns |= {"chunk": output.chunk, "char_start": output.char_start, "char_end": output.char_end}
    columns |= {"token_count": output.token_count, "truncated": output.truncated}
    columns |= {called(name): output.kept.column(name) for name in plan.keep}
    columns |= {name: output_array(values) for name, values in output.outputs.items()}
    columns[POS] = stores.position_number(output.record.key, 0) + row
    columns[JOB] = pa.repeat(plan.job, len(output.ids))
    columns[HASH] = pa.nulls(len(row), pa.string()) if output.hashes is None else _hexed(output.hashes[row])
    arrays = [_as(columns[f.name], f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def _hexed(hashes: np.ndarray) -> Any:
    """uint64 (n, 2): each pair as 32 digits."""
    digits = pa.py_buffer(hashes.astype(">u8").tobytes().hex().encode())
    offsets = pa.py_buffer(np.arange(0, 32 * len(hashes) + 1, 32, dtype=np.int32).tobytes())
    return pa.Array.from_buffers(pa.string(), len(hashes), [None, offsets, digits])


def _as(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, kind)
