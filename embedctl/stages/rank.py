"""Candidates of a query in the order of their scores, as many as are wanted.

Enters: a window's output, a unit for each candidate. Leaves: the same with the units that stay, best first within each
row, and the columns that say which candidate each was. Equal scores keep the order of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl import pairs
from embedctl.outputs import take
from embedctl.records import WindowOutput

RANK, CANDIDATE, CANDIDATE_ID = "rank", "candidate", "candidate_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """score: the output to rank by. top_k: candidates a row keeps, None for all. ids: whether they have some."""

    score: str
    top_k: int | None
    ids: bool

    def __call__(self, output: WindowOutput, texts: Sequence[str], document: np.ndarray) -> WindowOutput:
        """texts: of the window's rows. document: int64 (u,), ascending, the row of each unit."""
        assert output.chunk is not None
        scores = np.asarray(output.outputs[self.score])[:, 0]
        order, rank = ranked(document, scores, self.top_k)
        number = output.chunk[order]
        kept = output.kept.take(pa.array(order))
        columns: dict[str, Any] = {name: kept.column(name) for name in kept.column_names}
        columns |= {RANK: pa.array(rank + 1, pa.int32()), CANDIDATE: pa.array(number, pa.int32())}
        if self.ids:
            columns[CANDIDATE_ID] = _ids(texts, document[order], number)
        assert output.char_start is not None
        assert output.char_end is not None
        lengths = (output.char_end - output.char_start)[order]
        return replace(
            output,
            record=replace(output.record, units=len(order)),
            ids=[output.ids[i] for i in order.tolist()],
            outputs={name: take(values, order) for name, values in output.outputs.items()},
            kept=pa.table(columns),
            token_count=output.token_count[order],
            truncated=output.truncated[order],
            chunk=rank,
            char_start=np.zeros_like(lengths),  # a candidate is scored whole
            char_end=lengths,
        )


def ranked(document: np.ndarray, scores: np.ndarray, top_k: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(int64 (k,): units in order, int32 (k,): the rank of each in its row, from 0).

    document: int64 (u,), ascending. scores: float32 (u,).
    """
    order = np.lexsort((-scores, document))
    rows = document[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = np.ones(len(rows), dtype=bool) if top_k is None else rank < top_k
    return order[kept], rank[kept].astype(np.int32)


def _ids(texts: Sequence[str], document: np.ndarray, number: np.ndarray) -> pa.Array[Any]:
    known = {row: pairs.ids(texts[row]) for row in np.unique(document).tolist()}
    return pa.array([known[row][n] for row, n in zip(document.tolist(), number.tolist(), strict=True)], pa.string())
