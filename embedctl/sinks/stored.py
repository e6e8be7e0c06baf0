"""Rows of a store read back by their keys, so that they can be written again with other columns beside their outputs.

Enters: a window's rows, and a table of their units in order. Leaves: `Stored`. By key, not by `_pos`: what a killed run
has written over them already has the same outputs. Refused: units that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import BooksError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.sinks.base import UNIT_COLUMNS, Stored
from embedctl.sinks.columns import values_of
from embedctl.sinks.parts import output_array, whole_column
from embedctl.sinks.stores import WindowRows

KEYS_AT_ONCE = 256


def units_of(known: WindowRows, rows: np.ndarray, plan: Plan) -> list[tuple[str, int | None]]:
    """Id and chunk of each unit of these rows, in order; chunk None without chunking."""
    return [(known.ids[r], n if plan.chunked else None) for r in rows.tolist() for n in range(known.units[r])]


def stored_of(known: WindowRows, rows: np.ndarray, columns: Mapping[str, pa.Array[Any]], plan: Plan) -> Stored:
    """columns: of the units, in the order of `units_of`; all outputs, and those of `UNIT_COLUMNS` that are there."""
    outputs: dict[str, Values] = {o.name: values_of(_signed(columns[o.name], o), o)[0] for o in plan.outputs}
    own = {n: columns[n].to_numpy(zero_copy_only=False) for n in UNIT_COLUMNS if n in columns and n not in plan.keep}
    units = np.asarray(known.units, dtype=np.int64)[rows]
    return Stored(row=np.repeat(rows, units), outputs=outputs, **{name: own.get(name) for name in UNIT_COLUMNS})


def _signed(column: pa.Array[Any], spec: OutputSpec) -> pa.Array[Any]:
    """Bits as `binary` has them, also from a store that keeps both binary types as `ubinary`."""
    if spec.vector_type != "binary" or not pa.types.is_uint8(column.type.value_type):
        return column
    packed = values_of(column, replace(spec, vector_type="ubinary"))[0]
    assert isinstance(packed, np.ndarray)
    return output_array((packed ^ 0x80).view(np.int8))


def in_order(
    table: pa.Table, found: Sequence[object], wanted: Sequence[object], name: str, record: WindowRecord
) -> dict[str, pa.Array[Any]]:
    """The table's columns with its rows, of which `found` are the keys, in the order of the wanted keys.

    :raises BooksError: a wanted key is not among them.
    """
    place = {key: row for row, key in enumerate(found)}
    missing = [key for key in wanted if key not in place]
    if missing:
        raise BooksError(
            f"{name}: {len(missing)} vectors of window {record.key.stem} are gone (the first is {missing[0]!r})",
            hint="embedctl verify",
        )
    taken = table.take(pa.array([place[key] for key in wanted], pa.int64()))
    return {n: whole_column(taken, n) for n in taken.column_names}
