"""What is built when all rows are in: small files put together, an index on ids, on fields and on vectors.

Enters: a loaded table. Leaves: it indexed; every step may be done again. `--index` and `--quantization` choose: ivf
(flat; default from 10,000 rows on), hnsw, none; scalar, product and binary make either smaller. Below 10,000 rows, and
for sparse outputs, no vector index is built: comparing them all is as quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec
from embedctl.sinks.lancedb_read import METRICS, specs_of
from embedctl.sinks.lancedb_table import BUILD_S, Lance, Table
from embedctl.spec import JobSpec

LEAST_ROWS = 10_000


def check_fields(fields: Sequence[tuple[str, str]], schema: pa.Schema) -> None:
    """:raises UsageError: no such column."""
    for name, _ in fields:
        if name not in schema.names:
            raise UsageError(
                f"--index-field: the table has no column {name!r}; it has {', '.join(schema.names)}",
                hint=f"--keep {name}",
            )


def build(table: Table, spec: JobSpec, fields: Sequence[tuple[str, str]]) -> None:
    """:raises SinkError: LanceDB refuses."""
    table.change(lambda t: t.optimize(), within_s=BUILD_S)
    rows = table.ask(lambda t: t.count_rows())
    if not rows:
        return
    for name, kind in [("id", "keyword"), *fields]:
        _once(table, name, lambda t, n=name, k=kind: _scalar(t.schema.field(n).type, k))
    for output in table.ask(lambda t: specs_of(t.schema)):
        if output.kind in ("dense", "multivector") and spec.index != "none" and (spec.index or rows >= LEAST_ROWS):
            config = _vectors(output, spec, rows)
            if config is not None:
                _once(table, output.name, lambda _, c=config: c)


def _once(table: Table, column: str, config: Any) -> None:
    def work(t: Lance) -> None:
        if not any(index.columns == [column] for index in t.list_indices()):
            t.create_index(column, config=config(t)) if config(t) is not None else None

    table.change(work, within_s=BUILD_S)


def _scalar(kind: pa.DataType, wanted: str) -> Any:
    from lancedb import index

    if wanted == "text":
        return index.FTS()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return index.LabelList()
    return index.Bitmap() if pa.types.is_boolean(kind) else index.BTree()


def _vectors(output: OutputSpec, spec: JobSpec, rows: int) -> Any:
    """None: too few rows to learn such an index from."""
    from lancedb import index

    if output.vector_type == "ubinary":
        return index.IvfFlat(distance_type="hamming")
    metric: Any = METRICS[output.similarity]
    hnsw = spec.index == "hnsw"
    if spec.quantization is not None and rows < 256:
        return None
    if spec.quantization == "product" or (output.kind == "multivector" and spec.quantization is None and not hnsw):
        return None if rows < 256 else (index.HnswPq if hnsw else index.IvfPq)(distance_type=metric)
    if spec.quantization == "binary":
        return index.IvfRq(distance_type=metric)
    if spec.quantization == "scalar":
        return index.HnswSq(distance_type=metric) if hnsw else index.IvfSq(distance_type=metric)
    return index.HnswFlat(distance_type=metric) if hnsw else index.IvfFlat(distance_type=metric)
