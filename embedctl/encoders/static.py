"""Static embeddings: the mean of each token's own vector. numpy only, unless a Dense layer follows.

Enters: a batch whose sequences carry no special tokens. Leaves: float32 (N, dim); zeros for a sequence without known
tokens. Reads StaticEmbedding folders of sentence-transformers, and model2vec's (a shared table, a weight a token, and
unknown tokens left out, as model2vec does).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embedctl.encoders.tables import read_tables
from embedctl.errors import EncoderError
from embedctl.models.files import read_object
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import Normalize
from embedctl.outputs import OutputKind, Outputs
from embedctl.records import Batch

_CHUNK_TOKENS = 1 << 16


class StaticEncoder:
    """Implements `encoders.base.Encoder`. Runs on the CPU in float32 whatever the device: there is nothing to gain."""

    deterministic = True
    lanes = 1
    padded = False

    def __init__(self, folder: ModelFolder, *, dim: int | None = None) -> None:
        """:raises ModelError: the table cannot be read."""
        self._folder = folder
        self._dim = dim or folder.output_dim
        self.dims: Mapping[OutputKind, int] = {"dense": self._dim}
        tensors = read_tables(folder.weights[0])
        table = tensors.get("embedding.weight")
        self._table = tensors["embeddings"] if table is None else table
        self._mapping, self._weights = tensors.get("mapping"), tensors.get("weights")
        self._unknown = _unknown_token(folder) if folder.model_type == "model2vec" else None
        self._tail: Any = None
        if any(not isinstance(module, Normalize) for module in folder.modules):
            from embedctl.encoders.tail import Tail

            self._tail = Tail(folder, device="cpu", pooling=None, dim=self._dim, num_prompt_tokens=0)

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        means = self._means(batch)
        if self._tail is None:
            return {"dense": self._finish(means)}
        import torch

        with torch.inference_mode():
            vectors: np.ndarray = self._tail.finish(torch.from_numpy(means)).numpy()
            return {"dense": vectors}

    def encode_float32(self, batch: Batch) -> Outputs:
        """See `Encoder.encode_float32`: this is float32 already."""
        return self.encode(batch)

    def _means(self, batch: Batch) -> np.ndarray:
        known = np.ones(batch.num_tokens, dtype=bool) if self._unknown is None else batch.input_ids_T != self._unknown
        ends = np.concatenate(([0], np.cumsum(known)))
        ids, offsets = batch.input_ids_T[known].astype(np.int64), ends[batch.cu_seqlens]
        rows = len(self._table) if self._mapping is None else len(self._mapping)
        if len(ids) and int(ids.max()) >= rows:
            raise EncoderError(f"{self._folder.name}: token {int(ids.max())} is beyond its table of {rows}")
        counts = np.diff(offsets)
        means = np.zeros((len(counts), self._table.shape[1]), dtype=np.float32)
        for first, last in _spans(offsets):
            live = first + np.flatnonzero(counts[first:last])
            if len(live):
                x_TE = self._look_up(ids[offsets[first] : offsets[last]])
                sums = np.add.reduceat(x_TE, offsets[live] - offsets[first], axis=0, dtype=np.float64)
                means[live] = sums / counts[live, None]
        return means

    def _look_up(self, ids: np.ndarray) -> np.ndarray:
        """float32 (T, E)."""
        rows = ids if self._mapping is None else self._mapping[ids]
        x_TE: np.ndarray = self._table[rows].astype(np.float32)
        return x_TE if self._weights is None else x_TE * self._weights[ids].astype(np.float32)[:, None]

    def _finish(self, vectors: np.ndarray) -> np.ndarray:
        if self._folder.normalize:
            vectors = _unit(vectors)
        if self._dim < vectors.shape[1]:
            vectors = vectors[:, : self._dim]
            vectors = _unit(vectors) if self._folder.normalize else np.ascontiguousarray(vectors)
        return vectors

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {
            "engine": "static", "device": "cpu", "dtype": "float32", "threads": 1, "dim": self._dim, "compile": False,
            "attention": "none", "attention_reason": "a static model has none", "notes": list(self._folder.notes),
        }  # fmt: skip

    def close(self) -> None:
        """See `Encoder.close`."""
        self._table = np.zeros((0, self._folder.hidden_dim), dtype=np.float32)


def _spans(offsets: np.ndarray) -> list[tuple[int, int]]:
    """Sequences in runs of about `_CHUNK_TOKENS` tokens, so that the looked-up vectors stay small."""
    edges, first = [], 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + _CHUNK_TOKENS, side="right")) - 1, first + 1)
        edges.append((first, last))
        first = last
    return edges


def _unit(x: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return (x / np.where(norms == 0, 1, norms)).astype(np.float32)


def _unknown_token(folder: ModelFolder) -> int | None:
    """The id of the tokenizer's unknown token, None where it has none."""
    assert folder.path is not None
    model = read_object(folder.path / "tokenizer.json").get("model") or {}
    unknown, vocab = model.get("unk_token"), model.get("vocab")
    if isinstance(unknown, str) and isinstance(vocab, dict):
        return vocab.get(unknown)
    unknown_id = model.get("unk_id")
    return unknown_id if isinstance(unknown_id, int) else None
