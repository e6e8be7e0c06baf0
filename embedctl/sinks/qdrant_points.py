"""A window as points, in batches that a request can hold.

Enters: a `WindowOutput`. Leaves: `Points`: a point a unit, its id made of the row's, its payload the row's `id`, what
was kept, the chunk's place, `_job`, `_pos` and, where rows have one, `_hash`. Refused: multivectors past what Qdrant
holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from embedctl.errors import SinkError
from embedctl.outputs import Multivector, Values
from embedctl.plan import Plan
from embedctl.records import WindowOutput
from embedctl.sinks import stores
from embedctl.sinks.keyed_records import fields_of, spans
from embedctl.sinks.qdrant_engine import UNNAMED, Layout, Points

MAX_MULTIVECTOR = 1 << 20
"""Numbers that Qdrant takes in one multivector."""


def batches(
    output: WindowOutput, row: np.ndarray, plan: Plan, layout: Layout, *, max_points: int, max_bytes: int
) -> Iterator[Points]:
    """row: int64 (u,), the live row of each unit. In order; each of at most `max_points` units and about `max_bytes`.

    :raises SinkError: a multivector that no batch could hold.
    """
    check_multivectors(output)
    for begin, end in spans(output, max_points, max_bytes):
        yield _points(output, row, plan, layout, begin, end)


def check_multivectors(output: WindowOutput) -> None:
    for name, values in output.outputs.items():
        if isinstance(values, Multivector):
            numbers = np.diff(values.offsets) * values.vectors.shape[1]
            over = np.flatnonzero(numbers > MAX_MULTIVECTOR)
            if len(over):
                raise SinkError(
                    f"row {output.ids[int(over[0])]!r}: {name} has {int(numbers[over[0]])} numbers, "
                    f"Qdrant takes {MAX_MULTIVECTOR}",
                    hint="--chunk tokens:512, or a smaller --max-length",
                )


def _points(output: WindowOutput, row: np.ndarray, plan: Plan, layout: Layout, begin: int, end: int) -> Points:
    chunks = [None] * (end - begin) if output.chunk is None else np.asarray(output.chunk[begin:end]).tolist()
    return Points(
        ids=list(map(stores.point_id, output.ids[begin:end], chunks)),
        vectors={_vector_name(name, layout): _cut(values, begin, end) for name, values in output.outputs.items()},
        payloads=fields_of(output, plan, row, np.arange(begin, end, dtype=np.int64)),
    )


def _vector_name(output: str, layout: Layout) -> str:
    return UNNAMED if UNNAMED in layout else output


def _cut(values: Values, begin: int, end: int) -> Values:
    if isinstance(values, np.ndarray):
        return values[begin:end]
    span = slice(int(values.offsets[begin]), int(values.offsets[end]))
    offsets = values.offsets[begin : end + 1] - values.offsets[begin]
    if isinstance(values, Multivector):
        return Multivector(offsets=offsets, vectors=values.vectors[span])
    return type(values)(offsets=offsets, indices=values.indices[span], values=values.values[span])
