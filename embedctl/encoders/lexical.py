"""BM25, BM42 and miniCOIL as fastembed computes them, so that queries made with it match.

Enters: batches of code points. Leaves: sparse values over hashed words. The library's own numbers, sorted by index.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedctl.errors import EncoderError
from embedctl.models.folder import ModelFolder
from embedctl.models.lexical import VOCABULARY, Lexical, open_library, parse
from embedctl.outputs import OutputKind, Outputs, Sparse
from embedctl.records import Batch


class LexicalEncoder:
    """Implements `encoders.base.Encoder`. Reads queries where the folder says so."""

    deterministic = True
    lanes = 1
    padded = False

    def __init__(self, folder: ModelFolder) -> None:
        """:raises ModelError: the library or the model's files are not to be had."""
        self.dims: Mapping[OutputKind, int] = {"sparse": VOCABULARY}
        found = parse(folder.name)
        assert found is not None
        self._folder, self._library = folder, open_library(found, offline=True)

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        return {"sparse": self._sparse(texts_of(batch))}

    encode_float32 = encode

    def _sparse(self, texts: Sequence[str]) -> Sparse:
        ask = self._library.query_embed if self._folder.for_queries else self._library.embed
        try:
            found = list(ask(texts))
        except Exception as exc:  # the library has no error tree of its own
            raise EncoderError(f"{self._folder.name}: fastembed failed: {exc}") from exc
        return joined(found)

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {
            "engine": "fastembed", "device": "cpu", "dtype": "float32", "threads": 1, "dim": VOCABULARY,
            "compile": False, "attention": "none", "attention_reason": "it is the library's", "notes": [],
        }  # fmt: skip

    def close(self) -> None:
        """See `Encoder.close`."""
        self._library = None


def texts_of(batch: Batch) -> list[str]:
    """The texts whose code points the batch holds."""
    ends = batch.cu_seqlens.tolist()
    ids = batch.input_ids_T.astype("<u4")
    return [ids[a:b].tobytes().decode("utf-32-le") for a, b in itertools.pairwise(ends)]


def joined(found: Sequence[Any]) -> Sparse:
    """The library's embeddings end to end, indices ascending in each."""
    lengths = [len(one.indices) for one in found]
    orders = [np.argsort(one.indices, kind="stable") for one in found]
    indices = [np.asarray(one.indices)[order] for one, order in zip(found, orders, strict=True)]
    values = [np.asarray(one.values)[order] for one, order in zip(found, orders, strict=True)]
    return Sparse(
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        indices=np.concatenate([*indices, np.zeros(0)]).astype(np.uint32),
        values=np.concatenate([*values, np.zeros(0)]).astype(np.float32),
    )


def word_counts(found: Lexical, texts: Sequence[str]) -> np.ndarray:
    """int64 (n,): the words of each text that BM25 counts, stop words gone.

    Without the length's part (b = 0) and with k = 1 the library's weight of a word that stands f times is 2f / (f + 1).
    """
    from dataclasses import replace

    library = open_library(replace(found, avg_len=None, b="0", k="1"), offline=True)
    weights = joined(list(library.embed(texts)))
    counts = np.rint(weights.values / (2.0 - weights.values.astype(np.float64)))
    running = np.concatenate(([0.0], np.cumsum(counts)))
    found_n: np.ndarray = (running[weights.offsets[1:]] - running[weights.offsets[:-1]]).astype(np.int64)
    return found_n
