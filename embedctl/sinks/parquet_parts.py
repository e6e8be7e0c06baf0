"""Parts of a Parquet destination, read back as the windows they were made of.

Enters: a part, its record and its plan. Leaves: a `WindowOutput` as it was written, and which of its units hold no
vector that could be written again. Refused: a part that is gone, unreadable, or lacks a column of its plan
(`BooksError`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl.errors import BooksError
from embedctl.outputs import Values, empty
from embedctl.plan import Plan
from embedctl.records import DeadRow, WindowOutput, WindowRecord
from embedctl.sinks.columns import Reasons, values_of
from embedctl.sinks.parquet import footer_of

Chunks = tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]


def read_part(root: Path, record: WindowRecord, plan: Plan, dead: Sequence[DeadRow]) -> tuple[WindowOutput, Reasons]:
    """The window of `record` with its dead rows, and unit -> why its vector is bad; normally none is."""
    if record.part is None:
        return _nothing(record, plan, dead), {}
    path = root / record.part
    try:
        table = pq.read_table(path, partitioning=None)
    except FileNotFoundError as exc:
        raise BooksError(f"{path}: the part is gone", hint=f"embedctl verify {root}") from exc
    except (pa.ArrowInvalid, OSError) as exc:
        raise BooksError(f"{path}: not a readable part ({exc})", hint=f"embedctl verify {root}") from exc
    lacking = sorted({"id", *plan.keep, *(o.name for o in plan.outputs)} - set(table.column_names))
    if lacking:
        raise BooksError(f"{path}: no column {lacking[0]!r}, which its plan has", hint=f"embedctl verify {root}")
    outputs: dict[str, Values] = {}
    reasons: Reasons = {}
    for spec in plan.outputs:
        outputs[spec.name], bad = values_of(_one(table, spec.name), spec)
        reasons = {**bad, **reasons}
    positions, hashes = footer_of(table.schema.metadata or {})
    return (
        WindowOutput(
            record=record,
            ids=[str(i) for i in table.column("id").cast(pa.string()).to_pylist()],
            positions=positions if plan.id_column else None,
            outputs=outputs,
            kept=table.select(list(plan.keep)).replace_schema_metadata(None),
            token_count=_numbers(table, "token_count", np.int64),
            truncated=_numbers(table, "truncated", np.bool_),
            chunk=_chunk(table, plan, "chunk"),
            char_start=_chunk(table, plan, "char_start"),
            char_end=_chunk(table, plan, "char_end"),
            dead=tuple(dead),
            hashes=hashes,
        ),
        reasons,
    )


def _nothing(record: WindowRecord, plan: Plan, dead: Sequence[DeadRow]) -> WindowOutput:
    none = np.zeros(0, dtype=np.int32) if plan.chunked else None
    return WindowOutput(
        record=record,
        ids=[],
        positions=np.zeros(0, dtype=np.int64) if plan.id_column else None,
        outputs={o.name: empty(o.kind, o.dim) for o in plan.outputs},
        kept=pa.schema([plan.schema.field(name) for name in plan.keep]).empty_table(),
        token_count=np.zeros(0, dtype=np.int64),
        truncated=np.zeros(0, dtype=bool),
        chunk=none,
        char_start=none,
        char_end=none,
        dead=tuple(dead),
    )


def _one(table: pa.Table, name: str) -> pa.Array[Any]:
    return pa.concat_arrays(table.column(name).chunks) if table.num_rows else table.column(name).combine_chunks()


def _numbers(table: pa.Table, name: str, kind: type[np.generic]) -> np.ndarray:
    if name not in table.column_names:
        return np.zeros(table.num_rows, dtype=kind)
    return table.column(name).to_numpy().astype(kind)


def _chunk(table: pa.Table, plan: Plan, name: str) -> np.ndarray | None:
    return table.column(name).to_numpy().astype(np.int32) if plan.chunked else None
