"""Late interaction: which tokens give a vector, the vectors' last steps, and merging those that say the same.

Enters: hidden states (T, E) of a packed batch. Leaves: `Multivector`. Everything runs in float32, a stretch of tokens
at a time. Khattab and Zaharia, ColBERT (2020); merging: Clavie, Chaffin and Adams (2024), as sentence-transformers has
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from embedctl.heads.projection import normalize
from embedctl.outputs import Multivector

CHUNK_TOKENS = 8192
Step = Callable[[Tensor], Tensor]


def token_vectors(hidden_TE: Tensor, kept_T: Tensor, steps: Sequence[Step], *, dim: int) -> np.ndarray:
    """float32 (t, dim): of the tokens in bool `kept_T`, in order. Fewer numbers than the steps give: scaled to 1."""
    parts = []
    for hidden, kept in zip(torch.split(hidden_TE, CHUNK_TOKENS), torch.split(kept_T, CHUNK_TOKENS), strict=True):
        x_tC = hidden[kept].float()
        for step in steps:
            x_tC = step(x_tC)
        if dim < x_tC.shape[1]:
            x_tC = normalize(x_tC[:, :dim])
        parts.append(x_tC.to("cpu", torch.float32))
    vectors: np.ndarray = torch.cat(parts).numpy() if parts else np.zeros((0, dim), dtype=np.float32)
    return vectors


def offsets_of(kept_T: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """int64 (N + 1,): where each sequence's vectors begin among those of the kept tokens."""
    seen = np.concatenate(([0], np.cumsum(kept_T, dtype=np.int64)))
    offsets: np.ndarray = seen[cu_seqlens]
    return offsets


def merged(vectors: Multivector, *, factor: float, protected: int, normalized: bool) -> Multivector:
    """About 1 / factor of each text's vectors: the mean of each cluster of like ones; the first `protected` stay."""
    parts = [
        _merged(vectors.vectors[begin:end], factor, protected)
        for begin, end in zip(vectors.offsets[:-1], vectors.offsets[1:], strict=True)
    ]
    flat = np.concatenate(parts) if parts else vectors.vectors
    if normalized:
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        flat = flat / np.maximum(norms, 1e-12)
    offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
    return Multivector(offsets=offsets, vectors=flat.astype(np.float32))


def _merged(x_tC: np.ndarray, factor: float, protected: int) -> np.ndarray:
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    rest = x_tC[protected:]
    clusters = max(int(len(rest) // factor), 1)
    if clusters >= len(rest):
        return x_tC
    distances = np.clip(1.0 - rest @ rest.T, 0.0, 2.0)
    linkage = hierarchy.linkage(squareform(distances, checks=False), method="ward")
    labels = hierarchy.fcluster(linkage, t=clusters, criterion="maxclust")
    found, cluster = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(found), rest.shape[1]), dtype=np.float64)
    np.add.at(sums, cluster, rest)
    means = sums / np.bincount(cluster)[:, None]
    whole: np.ndarray = np.concatenate([x_tC[:protected], means.astype(np.float32)])
    return whole
