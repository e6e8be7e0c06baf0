"""Scores as columns: one number a row, or the label that won, its score, and all scores.

Enters: float32 (n, labels). Leaves: Arrow columns by name. One label: `score`. Several: `label`, `score` and `scores`
(FixedSizeList, in the order of the labels). Texts that may have several labels: `labels` and `scores`. A named output
puts its name before each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.outputs import OutputSpec

SCORE, SCORES = "score", "scores"


def score_columns(
    values: np.ndarray, spec: OutputSpec, *, multi_label: bool, threshold: float
) -> dict[str, pa.Array[Any]]:
    """See the module. threshold: least score of a label that a text has, where it may have several."""
    if spec.dim == 1:
        return {spec.name: pa.array(values[:, 0])}
    every = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), spec.dim)
    prefix = spec.name.removesuffix(SCORES)
    names = pa.array(spec.labels, pa.string())
    if multi_label:
        rows, labels = np.nonzero(values >= np.float32(threshold))
        offsets = np.searchsorted(rows, np.arange(len(values) + 1)).astype(np.int32)
        return {
            f"{prefix}labels": pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), names.take(pa.array(labels, pa.int64()))
            ),
            spec.name: every,
        }
    best = values.argmax(axis=1) if len(values) else np.zeros(0, dtype=np.int64)
    return {
        f"{prefix}label": names.take(pa.array(best)),
        f"{prefix}score": pa.array(values[np.arange(len(values)), best]),
        spec.name: every,
    }


def column_names(spec: OutputSpec, *, multi_label: bool) -> list[str]:
    """The columns that `score_columns` gives."""
    return list(score_columns(np.zeros((0, spec.dim), np.float32), spec, multi_label=multi_label, threshold=0.5))
