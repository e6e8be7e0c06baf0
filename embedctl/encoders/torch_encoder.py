"""What the torch encoders share: one model, its heads, the second model in float32, errors, threads.

Enters: packed batches. Leaves: the outputs of its heads, in numpy. A subclass says only how a batch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.staging import as_ids
from embedctl.encoders.tail import Heads, Tokens
from embedctl.encoders.weights import is_out_of_memory
from embedctl.errors import EmbedctlError, EncoderError, OutOfDeviceMemory
from embedctl.outputs import OutputKind, Outputs, Values, empty
from embedctl.records import Batch

Loader = Callable[[str], nn.Module]
"""dtype -> the model in it, on the device."""


class TorchEncoder:
    """Implements `encoders.base.Encoder` but for `_hidden`."""

    deterministic = True
    lanes: int = 1
    padded = False
    engine = "torch"

    def __init__(
        self, load: Loader, heads: Heads, *, dtype: str, device: str, threads: int | None,
        model: nn.Module | None = None, notes: tuple[str, ...] = (), expand: Callable[[Batch], Batch] | None = None,
    ) -> None:  # fmt: skip
        """`model`, where given, is what `load(dtype)` would give. `expand`: what is run in a batch's place."""
        self.dims: Mapping[OutputKind, int] = {kind: head.dim for kind, head in heads.items()}
        self._load, self._heads = load, heads
        self._dtype, self._device = dtype, device
        self._threads = threads or torch.get_num_threads()
        self._model: nn.Module | None = load(dtype) if model is None else model
        self._model_float32: nn.Module | None = None
        self._notes, self._expand = notes, expand

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        """Hidden states (T, E) in the order of the batch, on the device."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        if self._model is None:
            raise EncoderError("the encoder was closed")
        return self._run(self._model, batch)

    def encode_float32(self, batch: Batch) -> Outputs:
        """See `Encoder.encode_float32`. The float32 model is loaded at the first call and kept."""
        if self._dtype == "float32":
            return self.encode(batch)
        if self._model_float32 is None:
            self._model_float32 = self._load("float32")
        return self._run(self._model_float32, batch)

    def _run(self, model: nn.Module, batch: Batch) -> Outputs:
        if batch.num_tokens == 0:
            return {kind: zeros(kind, dim, len(batch.cu_seqlens) - 1) for kind, dim in self.dims.items()}
        batch = batch if self._expand is None else self._expand(batch)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                hidden_TE = self._hidden(model, batch)
                tokens = Tokens(batch=batch, cu_seqlens=as_ids(batch.cu_seqlens, self._device))
                return {kind: head(hidden_TE, tokens) for kind, head in self._heads.items()}
        except EmbedctlError:
            raise
        except Exception as exc:
            if is_out_of_memory(exc):
                raise OutOfDeviceMemory(f"{batch.num_tokens} tokens do not fit on {self._device}") from exc
            raise EncoderError(f"the encoder failed on {batch.num_tokens} tokens: {exc}") from exc

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {
            "engine": self.engine,
            "device": self._device,
            "dtype": self._dtype,
            "threads": self._threads,
            "dim": next(iter(self.dims.values())),
            "compile": False,
            "notes": list(self._notes),
        }

    def close(self) -> None:
        """Let go of the models' memory."""
        self._model = self._model_float32 = None
        self._heads = {}


def zeros(kind: OutputKind, dim: int, count: int) -> Values:
    """What `count` sequences without a token give: zeros, or nothing at all."""
    nothing = empty(kind, dim)
    if isinstance(nothing, np.ndarray):
        return np.zeros((count, dim), dtype=np.float32)
    return replace(nothing, offsets=np.zeros(count + 1, dtype=np.int64))


def accepts(model: nn.Module, name: str) -> bool:
    """Whether the model's forward names this parameter."""
    import inspect

    return name in inspect.signature(model.forward).parameters


def uses_token_types(model: nn.Module) -> bool:
    """Whether the model adds a vector for the segment a token is in."""
    size = getattr(getattr(model, "config", None), "type_vocab_size", 0)
    return accepts(model, "token_type_ids") and isinstance(size, int) and size > 0
