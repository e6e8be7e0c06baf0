"""Packed batches through any model that takes its attention from transformers: no padding, no model code of ours.

Enters: a batch packed end to end. Leaves: outputs of its heads. Each sequence is computed as if alone: positions
restart (after the padding token's number where the kind counts so) and attention stays within it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.attention import Packed, UnsupportedAttention, groups_of
from embedctl.encoders.expansion import unseen_of
from embedctl.encoders.staging import as_ids, staged
from embedctl.encoders.tail import Heads
from embedctl.encoders.torch_encoder import Loader, TorchEncoder, uses_token_types
from embedctl.errors import EncoderError
from embedctl.records import Batch


class TorchVarlenEncoder(TorchEncoder):
    """See the module. `attention` is (kernel, why)."""

    engine = "torch_varlen"

    def __init__(
        self, load: Loader, heads: Heads, *, dtype: str, device: str, threads: int | None, attention: tuple[str, str],
        model: nn.Module | None = None, notes: tuple[str, ...] = (),
        expand: Callable[[Batch], Batch] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            load, heads, dtype=dtype, device=device, threads=threads, model=model, notes=notes, expand=expand
        )
        self._kernel, self._why = attention
        # On a GPU a second thread queues the next batch while the first waits for its vectors.
        self.lanes = 2 if device.startswith("cuda") else 1

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        # The second chance in float32 cannot take kernels that only know half precision.
        dtype = next(model.parameters()).dtype
        kernel = "sdpa" if dtype == torch.float32 else self._kernel
        return packed_hidden(model, batch, device=self._device, kernel=kernel)

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {**super().describe(), "attention": self._kernel, "attention_reason": self._why}


def packed_hidden(model: nn.Module, batch: Batch, *, device: str, kernel: str) -> Tensor:
    """Last hidden states (T, E). :raises EncoderError: the model did not ask for its attention here."""
    unseen = unseen_of(batch)
    packed = Packed(
        cu_seqlens=staged(batch.cu_seqlens.astype(np.int32), device),
        groups=groups_of(batch.cu_seqlens),
        max_seqlen=batch.max_seqlen,
        kernel=kernel if unseen is None else "sdpa",
        unseen_T=None if unseen is None else staged(unseen.copy(), device),
    )
    inputs: dict[str, Any] = {
        "input_ids": as_ids(batch.input_ids_T, device).unsqueeze(0),
        "position_ids": as_ids(positions_of(model, batch), device).unsqueeze(0),
        "packed": packed,
    }
    if uses_token_types(model):
        types = batch.token_type_ids_T if batch.token_type_ids_T is not None else np.zeros_like(batch.input_ids_T)
        inputs["token_type_ids"] = as_ids(types, device).unsqueeze(0)
    try:
        output = model(**inputs)
    except UnsupportedAttention as exc:
        raise EncoderError(f"the model cannot run packed: {exc}") from exc
    if not packed.calls:
        raise EncoderError("the model cannot run packed: it has an attention of its own")
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def positions_of(model: nn.Module, batch: Batch) -> np.ndarray:
    """int64 (T,): the place of each token in its sequence, from 0, or from the padding token's number + 1.

    Those kinds count tokens other than padding, and give the padding token's own number to any that is in a text.
    """
    starts = np.repeat(batch.cu_seqlens[:-1].astype(np.int64), np.diff(batch.cu_seqlens))
    pad = position_padding(model)
    if pad is None:
        return np.arange(batch.num_tokens, dtype=np.int64) - starts
    counted = batch.input_ids_T != pad
    total = np.concatenate(([0], np.cumsum(counted, dtype=np.int64)))
    positions: np.ndarray = (total[1:] - total[starts]) * counted + pad
    return positions


def position_padding(model: nn.Module) -> int | None:
    """The padding number that a learned table of positions starts after; None for kinds that start at 0.

    Told by the module that holds both, as in RoBERTa and its kin.
    """
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), nn.Embedding):
            return padding
    return None
