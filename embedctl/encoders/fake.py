"""An encoder without a model: exact, instant, and made to fail on request. numpy only.

Enters: a batch. Leaves: vectors of length 1, and token counts where asked, that depend on a sequence's token ids and
their order alone, the same bytes on every machine and in any batch. Options in its name provoke NaN, zeros, lack of
memory, slowness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embedctl.errors import OutOfDeviceMemory
from embedctl.models.fake import VOCABULARY, fake_options
from embedctl.outputs import Multivector, OutputKind, Outputs, Sparse, Values
from embedctl.records import Batch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea and Flood, 2014) over uint64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def _sparse(batch: Batch) -> Sparse:
    """How often each token stands in a sequence."""
    rows = np.repeat(np.arange(len(batch.cu_seqlens) - 1, dtype=np.int64), np.diff(batch.cu_seqlens))
    keys, counts = np.unique(rows * VOCABULARY + batch.input_ids_T % VOCABULARY, return_counts=True)
    ends = np.searchsorted(keys, np.arange(len(batch.cu_seqlens), dtype=np.int64) * VOCABULARY)
    indices = (keys % VOCABULARY).astype(np.uint32)
    return Sparse(offsets=ends.astype(np.int64), indices=indices, values=counts.astype(np.float32))


class FakeEncoder:
    """Implements `encoders.base.Encoder`. `name` is `fake` or `fake:option=value,...`."""

    deterministic = True
    lanes = 1
    padded = False

    def __init__(self, name: str = "fake", *, dim: int | None = None) -> None:
        """`dim`: keep only the first so many numbers, scaled to length 1 again."""
        self._options = fake_options(name)
        self._dim = dim or self._options.dim
        self.dims: Mapping[OutputKind, int] = {
            kind: VOCABULARY if kind == "sparse" else self._dim for kind in self._options.kinds
        }

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        if self._options.sleep_ms:
            time.sleep(self._options.sleep_ms / 1000)
        if self._options.oom_over is not None and batch.num_tokens > self._options.oom_over:
            raise OutOfDeviceMemory(
                f"{batch.num_tokens} tokens do not fit: this fake model holds {self._options.oom_over}"
            )
        vectors = self._vectors(batch)
        vectors[self._holds(batch, self._options.zero)] = 0.0
        vectors[self._holds(batch, self._options.nan)] = np.nan
        every: dict[OutputKind, Callable[[], Values]] = {
            "dense": lambda: vectors,
            "sparse": lambda: _sparse(batch),
            "multivector": lambda: self._multivector(batch),
        }
        return {kind: every[kind]() for kind in self.dims}

    def _multivector(self, batch: Batch) -> Multivector:
        """A vector a token, of length 1."""
        alone = np.arange(batch.num_tokens + 1, dtype=np.int32)
        each = Batch(input_ids_T=batch.input_ids_T, cu_seqlens=alone, units=alone[:-1].astype(np.int64))
        return Multivector(offsets=batch.cu_seqlens.astype(np.int64), vectors=self._vectors(each))

    def encode_float32(self, batch: Batch) -> Outputs:
        """See `Encoder.encode_float32`: the same, NaN and all."""
        return self.encode(batch)

    def _vectors(self, batch: Batch) -> np.ndarray:
        lengths = np.diff(batch.cu_seqlens)
        starts = np.repeat(batch.cu_seqlens[:-1].astype(np.int64), lengths)
        places = np.arange(batch.num_tokens, dtype=np.int64) - starts
        tokens = _mix(batch.input_ids_T.astype(np.uint64) * _GOLDEN + places.astype(np.uint64))
        # Sums of uint64 wrap, so a difference of running sums is exact however long the batch is.
        running = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(tokens, dtype=np.uint64)))
        seeds = running[batch.cu_seqlens[1:]] - running[batch.cu_seqlens[:-1]] + lengths.astype(np.uint64)
        columns = np.arange(1, self._dim + 1, dtype=np.uint64) * _GOLDEN
        bits = _mix(seeds[:, None] + columns[None, :]) >> np.uint64(40)
        vectors = bits.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
        norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
        scaled: np.ndarray = (vectors / np.where(norms == 0, 1, norms)).astype(np.float32)
        return scaled

    def _holds(self, batch: Batch, token: int | None) -> np.ndarray:
        """bool (N,): sequences in which the token stands."""
        if token is None:
            return np.zeros(len(batch.cu_seqlens) - 1, dtype=bool)
        seen = np.concatenate(([0], np.cumsum(batch.input_ids_T == token)))
        holds: np.ndarray = seen[batch.cu_seqlens[1:]] > seen[batch.cu_seqlens[:-1]]
        return holds

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {
            "engine": "fake", "device": "none", "dtype": "float32", "threads": 1, "dim": self._dim, "compile": False,
            "attention": "none", "attention_reason": "a fake model has none", "notes": [],
        }  # fmt: skip

    def close(self) -> None:
        pass


class FakeScores(FakeEncoder):
    """A fake reranker or classifier: as many numbers between 0 and 1 as there are labels."""

    def __init__(self, name: str, *, labels: int) -> None:
        super().__init__(name, dim=labels + 1)  # one number alone, scaled to length 1, would say nothing
        self._vector = FakeEncoder(name, dim=labels + 1)
        self.dims = {"score": labels}

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        dense = self._vector.encode(batch)["dense"]
        assert isinstance(dense, np.ndarray)
        return {"score": (dense[:, 1:] + np.float32(1)) / np.float32(2)}
