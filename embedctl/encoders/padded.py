"""The fallback: models with an attention of their own (MPNet, DeBERTa, T5) on padded, length-sorted batches.

Enters: a packed batch. Leaves: outputs of its heads. Padding is masked; for models whose layers let it leak all the
same, sequences of one length run together and nothing is padded at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.attention import groups_of
from embedctl.encoders.expansion import unseen_of
from embedctl.encoders.staging import as_ids
from embedctl.encoders.tail import Heads
from embedctl.encoders.torch_encoder import Loader, TorchEncoder, accepts, uses_token_types
from embedctl.records import Batch


class PaddedEncoder(TorchEncoder):
    """See the module. `by_length`: never pad. `reason` says why the model is not run packed."""

    engine = "padded"

    def __init__(
        self, load: Loader, heads: Heads, *, dtype: str, device: str, threads: int | None, reason: str,
        by_length: bool = False, model: nn.Module | None = None, notes: tuple[str, ...] = (),
        expand: Callable[[Batch], Batch] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            load, heads, dtype=dtype, device=device, threads=threads, model=model, notes=notes, expand=expand
        )
        self._reason, self._by_length = reason, by_length
        self.padded = not by_length

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        return (hidden_by_length if self._by_length else padded_hidden)(model, batch, device=self._device)

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        attention = getattr(getattr(self._model, "config", None), "_attn_implementation", None) or "own"
        return {**super().describe(), "attention": attention, "attention_reason": self._reason}


def padded_hidden(model: nn.Module, batch: Batch, *, device: str) -> Tensor:
    """Last hidden states (T, E) of sequences padded at their end to the longest."""
    lengths = np.diff(batch.cu_seqlens)
    mask_NL = np.arange(batch.max_seqlen)[None, :] < lengths[:, None]
    pad = getattr(getattr(model, "config", None), "pad_token_id", None)
    ids_NL = np.full(mask_NL.shape, pad if isinstance(pad, int) else 0, dtype=np.int64)
    ids_NL[mask_NL] = batch.input_ids_T
    seen_NL = mask_NL.copy()
    if (unseen := unseen_of(batch)) is not None:
        seen_NL[mask_NL] = ~unseen
    inputs: dict[str, Any] = {"input_ids": as_ids(ids_NL, device), "attention_mask": as_ids(seen_NL, device)}
    if uses_token_types(model):
        types_NL = np.zeros_like(ids_NL)
        if batch.token_type_ids_T is not None:
            types_NL[mask_NL] = batch.token_type_ids_T
        inputs["token_type_ids"] = as_ids(types_NL, device)
    hidden_NLE: Tensor = model(**inputs).last_hidden_state
    return hidden_NLE[torch.from_numpy(mask_NL).to(device)]


def hidden_by_length(model: nn.Module, batch: Batch, *, device: str) -> Tensor:
    """Last hidden states (T, E), one pass a length, no padding anywhere."""
    parts, unseen = [], unseen_of(batch)
    for begin, count, length in groups_of(batch.cu_seqlens):
        tokens = slice(begin, begin + count * length)
        ids_NL = as_ids(batch.input_ids_T[tokens], device).view(count, length)
        inputs: dict[str, Any] = {"input_ids": ids_NL}
        if accepts(model, "attention_mask"):
            seen = np.ones(count * length, dtype=bool) if unseen is None else ~unseen[tokens]
            inputs["attention_mask"] = as_ids(seen, device).view(count, length)
        if uses_token_types(model):
            types = batch.token_type_ids_T
            inputs["token_type_ids"] = (
                torch.zeros_like(ids_NL) if types is None else as_ids(types[tokens], device).view(count, length)
            )
        parts.append(model(**inputs).last_hidden_state.flatten(0, 1))
    return torch.cat(parts)
