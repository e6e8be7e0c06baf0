"""`--updated-column`: rows that are not newer than the newest of the last sync are taken as they are.

Enters: blocks. Leaves: which rows may have changed, and the newest value seen. Refused: columns without an order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedctl.errors import UsageError
from embedctl.records import RowBlock

Value = int | float | str


@dataclass(slots=True, kw_only=True)
class Watermark:
    """floor: the newest value of the last sync, None where there was none. top: the newest by now."""

    column: str
    floor: Value | None
    top: Value | None = field(default=None)

    def newer(self, block: RowBlock) -> np.ndarray:
        """bool (n,): at least as new as the floor, or null. Equal ones count: the clock may not have ticked between."""
        values = comparable(block.columns.column(self.column), self.column)
        newest: Any = pc.max(values).as_py()
        if newest is not None and (self.top is None or newest > self.top):
            self.top = newest
        if self.floor is None:
            return np.ones(len(values), dtype=bool)
        late: Any = pc.greater_equal(values, pa.scalar(self.floor, values.type))
        mask: np.ndarray = late.fill_null(True).to_numpy(zero_copy_only=False)
        return mask

    def to_json(self) -> list[Any] | None:
        """What the next sync starts from."""
        tops: list[Any] = [v for v in (self.floor, self.top) if v is not None]
        return [self.column, max(tops)] if tops else None

    @classmethod
    def since(cls, column: str, remembered: list[Any] | None, kind: pa.DataType) -> Watermark:
        """From what an earlier sync remembered, when it was of this column and kind of value."""
        probe = comparable(pa.array([], kind), column)
        known = remembered[1] if remembered and remembered[0] == column else None
        wanted = str if pa.types.is_string(probe.type) else float if pa.types.is_floating(probe.type) else int
        return cls(column=column, floor=known if type(known) is wanted else None)


def comparable(values: Any, column: str) -> Any:
    """As int64, float64 or text. :raises UsageError: a column that has no order."""
    types, kind = pa.types, values.type
    if types.is_date32(kind) or types.is_time32(kind):
        return values.cast(pa.int32()).cast(pa.int64())
    if types.is_timestamp(kind) or types.is_date64(kind) or types.is_time64(kind) or types.is_signed_integer(kind):
        return values.cast(pa.int64())
    if types.is_floating(kind):
        return values.cast(pa.float64())
    if types.is_string(kind) or types.is_large_string(kind):
        return values.cast(pa.string())
    raise UsageError(
        f"--updated-column: column {column!r} is {kind}; it must be a time, a number or text that sorts by time",
        hint="leave it out: changes are then found by content",
    )
