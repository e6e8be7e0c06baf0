"""A window as points, in batches that a request can hold.

Enters: a `WindowOutput`. Leaves: `Points`: a point a unit, its id made of the row's, its payload the row's `id`, what
was kept, the chunk's place, `_job`, `_pos` and, where rows have one, `_hash`. Refused: multivectors past what Qdrant
holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from embedctl.errors import SinkError
from embedctl.outputs import Multivector, Values
from embedctl.plan import Plan
from embedctl.records import WindowOutput
from embedctl.sinks import stores
from embedctl.sinks.payload import Json, payloads
from embedctl.sinks.qdrant_engine import HASH, JOB, POS, UNNAMED, Layout, Points

MAX_MULTIVECTOR = 1 << 20
"""Numbers that Qdrant takes in one multivector."""


def batches(
    output: WindowOutput, row: np.ndarray, plan: Plan, layout: Layout, *, max_points: int, max_bytes: int
) -> Iterator[Points]:
    """row: int64 (u,), the live row of each unit. In order; each of at most `max_points` units and about `max_bytes`.

    :raises SinkError: a multivector that no batch could hold.
    """
    check_multivectors(output)
    hashes = stores.hash_words(output)
    for begin, end in _spans(output, max_points, max_bytes):
        yield _points(output, row, plan, layout, hashes, begin, end)


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


def _points(
    output: WindowOutput, row: np.ndarray, plan: Plan, layout: Layout, hashes: list[str] | None, begin: int, end: int
) -> Points:
    ids = output.ids[begin:end]
    chunks = None if output.chunk is None else np.asarray(output.chunk[begin:end]).tolist()
    numbers = plan.resolved["id_type"] == "int64"
    first = stores.position_number(output.record.key, 0)
    rest = _columns(output, plan, begin, end)
    out: list[dict[str, Json]] = []
    for i, kept in enumerate(payloads(output.kept.slice(begin, end - begin))):
        payload: dict[str, Json] = {"id": int(ids[i]) if numbers else ids[i], **kept}
        payload |= {name: values[i] for name, values in rest}
        number = int(row[begin + i])
        payload |= {JOB: plan.job, POS: first + number}
        out.append(payload if hashes is None else {**payload, HASH: hashes[number]})
    names = [stores.point_id(d, None if chunks is None else chunks[i]) for i, d in enumerate(ids)]
    vectors = {_vector_name(name, layout): _cut(values, begin, end) for name, values in output.outputs.items()}
    return Points(ids=names, vectors=vectors, payloads=out)


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


def _columns(output: WindowOutput, plan: Plan, begin: int, end: int) -> list[tuple[str, list[Json]]]:
    """What stands beside the kept columns, as in a part of Parquet."""
    found: list[tuple[str, np.ndarray | None]] = [
        ("chunk", output.chunk), ("char_start", output.char_start), ("char_end", output.char_end),
        ("token_count", output.token_count if plan.spec["token_count"] else None),
        ("truncated", output.truncated if plan.spec["truncated"] else None),
    ]  # fmt: skip
    return [(name, np.asarray(values[begin:end]).tolist()) for name, values in found if values is not None]


def _spans(output: WindowOutput, max_points: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Stretches of at most `max_points` units and, where one unit allows it, about `max_bytes`, in order."""
    todo = [(0, len(output.ids))]
    while todo:
        begin, end = todo.pop()
        size = sum(_cut(v, begin, end).nbytes for v in output.outputs.values()) + _bytes(output.kept, begin, end)
        if end - begin > max_points or (size > max_bytes and end - begin > 1):
            step = max_points if end - begin > max_points else (end - begin + 1) // 2
            todo += [(begin + step, end), (begin, begin + step)]
        elif end > begin:
            yield begin, end


def _bytes(kept: pa.Table, begin: int, end: int) -> int:
    return int(kept.slice(begin, end - begin).nbytes)
