"""What the reference libraries find for the same questions: their vectors, searched exactly in numpy, by rank.

Enters: a model and texts. Leaves: float64 scores (questions, documents), minus infinity where a document is no
neighbour at all, and runs made of them. sentence-transformers computes in float32 on the CPU; static vectors are
model2vec's, BM25 is fastembed's.
Refused: a library that is not installed, by its ImportError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

RRF_K = 60


def dense(path: str, questions: Sequence[str], documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Unit float32 (Q, C) and (N, C) of a sentence-transformers folder."""
    from sentence_transformers import SentenceTransformer

    return _encoded(SentenceTransformer(path, device="cpu", local_files_only=True), questions, documents)


def static(path: str, questions: Sequence[str], documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Unit float32 (Q, C) and (N, C) of a model2vec folder."""
    from model2vec import StaticModel

    # Not sentence-transformers' reading of the folder, which cuts nothing and averages unknown tokens too.
    model = StaticModel.from_pretrained(path)
    made = [model.encode(list(texts)).astype(np.float32) for texts in (questions, documents)]
    norms = [np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30) for vectors in made]
    return made[0] / norms[0], made[1] / norms[1]


def _encoded(model: Any, questions: Sequence[str], documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    made = [model.encode(list(t), normalize_embeddings=True, show_progress_bar=False) for t in (questions, documents)]
    return made[0], made[1]


def dense_scores(questions: np.ndarray, documents: np.ndarray, vector_type: str) -> np.ndarray:
    """Cosine; documents stored as sentence-transformers' `quantize_embeddings` stores them.

    Whole numbers are read as the middles of their steps, against questions in float32; bits meet bits.
    """
    if vector_type == "binary":
        bits = [np.where(x > 0, 1.0, -1.0) for x in (questions, documents)]
        equal: np.ndarray = bits[0] @ bits[1].T
        return equal
    if vector_type == "float16":
        documents = documents.astype(np.float16)
    elif vector_type == "int8":
        documents = _through_int8(documents)
    wide = [x.astype(np.float64) for x in (questions, documents)]
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in wide]
    cosine: np.ndarray = unit[0] @ unit[1].T
    return cosine


def _through_int8(vectors: np.ndarray) -> np.ndarray:
    from sentence_transformers.util.quantization import quantize_embeddings

    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    levels: Any = quantize_embeddings(vectors, precision="int8", ranges=ranges)
    step = (ranges[1].astype(np.float64) - ranges[0]) / 255
    middles: np.ndarray = ranges[0] + np.minimum(levels + 128.5, 255.0) * step
    return middles


def sparse_scores(path: str, questions: Sequence[str], documents: Sequence[str]) -> np.ndarray:
    """Dot products of sentence-transformers' SparseEncoder."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(path, device="cpu", local_files_only=True)
    found = [model.encode(list(t), show_progress_bar=False) for t in (questions, documents)]
    wide = [v.to_dense().numpy().astype(np.float64) for v in found]  # type: ignore[union-attr, unused-ignore]
    return _no_zeros(wide[0] @ wide[1].T)


def bm25_scores(path: str, questions: Sequence[str], documents: Sequence[str]) -> np.ndarray:
    """fastembed's BM25 (its defaults), each word weighed by its idf among the documents, as Qdrant weighs it."""
    from fastembed import SparseTextEmbedding

    library = SparseTextEmbedding("Qdrant/bm25", specific_model_path=path, local_files_only=True)
    asked, held = list(library.query_embed(list(questions))), list(library.embed(list(documents)))
    words, place = np.unique(np.concatenate([one.indices for one in [*asked, *held]]), return_inverse=True)
    wide = np.zeros((len(asked) + len(held), len(words)))
    wide[np.repeat(np.arange(len(wide)), [len(one.indices) for one in [*asked, *held]]), place] = np.concatenate(
        [one.values for one in [*asked, *held]]
    )
    queries, stored = wide[: len(asked)], wide[len(asked) :]
    frequency = (stored > 0).sum(axis=0)
    idf = np.log((len(stored) - frequency + 0.5) / (frequency + 0.5) + 1.0)
    return _no_zeros((queries * idf) @ stored.T)


def _no_zeros(scores: np.ndarray) -> np.ndarray:
    kept: np.ndarray = np.where(scores == 0, -np.inf, scores)
    return kept


def fused(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Reciprocal rank fusion of two scores: 1 / (k + rank), summed (Cormack, Clarke and Buettcher, 2009)."""
    total = np.zeros(first.shape)
    for scores in (first, second):
        order = np.argsort(-scores, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None, :], axis=1)
        total += np.where(np.isneginf(scores), 0.0, 1 / (RRF_K + ranks))
    return _no_zeros(total)


def best(scores: np.ndarray, ids: Sequence[str], depth: int) -> list[list[str]]:
    """The ids of each question's best documents, at most `depth`; equal scores in the documents' order."""
    orders = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    return [[ids[n] for n in order.tolist() if row[n] > -np.inf] for row, order in zip(scores, orders, strict=True)]
