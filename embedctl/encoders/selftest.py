"""Tries a model's own way of running against ours before the first row, for kinds nobody has tried yet.

Enters: an opened model. Leaves: None when packed (or padded) runs give what each sequence gives alone under
transformers' own attention without any padding, else a reason in words. Takes short sequences, some of one length,
more tokens in all than the model has positions, and one sequence longer than its sliding window, where those are small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.attention import NAME, UnsupportedAttention
from embedctl.encoders.padded import hidden_by_length, padded_hidden
from embedctl.encoders.torch_encoder import accepts
from embedctl.encoders.torch_varlen import packed_hidden
from embedctl.errors import EncoderError, ModelError
from embedctl.records import Batch

_MIN_COSINE = {torch.float32: 1 - 1e-5}
_MIN_COSINE_HALF = 0.995
_MAX_POSITIONS = 1024


def packed_obstacle(model: nn.Module, *, device: str, kernel: str, own: str) -> str | None:
    """Why the model cannot be trusted packed; None when it can. `own` names transformers' attention to hold it to."""
    if not accepts(model, "position_ids"):
        return "it takes no position_ids, so positions cannot restart"
    batch = trial_batch(model)
    try:
        with torch.inference_mode():
            ours = packed_hidden(model, batch, device=device, kernel=kernel)
            set_attention(model, own)
            alone = hidden_by_length(model, batch, device=device)
    except (EncoderError, UnsupportedAttention) as exc:
        return str(exc)
    except Exception as exc:
        return f"a trial run packed failed: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}"
    finally:
        set_attention(model, NAME)
    return _difference(ours, alone, "packed")


def padding_leaks(model: nn.Module, *, device: str) -> str | None:
    """Why padding cannot be used with this model; None when it can. :raises EncoderError: it does not run at all."""
    batch = trial_batch(model)
    try:
        with torch.inference_mode():
            alone = hidden_by_length(model, batch, device=device)
    except Exception as exc:
        raise EncoderError(f"a trial run failed: {exc}") from exc
    try:
        with torch.inference_mode():
            padded = padded_hidden(model, batch, device=device)
    except Exception as exc:
        return f"a trial run with padding failed: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}"
    return _difference(padded, alone, "padded")


def set_attention(model: nn.Module, name: str) -> None:
    """Switch the attention of a loaded transformers model."""
    switch: Callable[[str], Any] = model.set_attn_implementation  # type: ignore[assignment]
    switch(name)


def trial_batch(model: nn.Module) -> Batch:
    """What models are tried on: see the module."""
    config: Any = model.config
    positions = getattr(config, "max_position_embeddings", None)
    positions = positions if isinstance(positions, int) and positions > 0 else 512
    window = getattr(config, "sliding_window", None) or getattr(config, "local_attention", None)
    lengths = [3, 5, 5, 6]
    if positions <= _MAX_POSITIONS:
        # More tokens in the batch than the model has positions: what counts them across sequences fails here.
        lengths += [min(8, positions - 8)] * (positions // min(8, positions - 8))
    if isinstance(window, int) and window + 8 <= min(positions - 8, _MAX_POSITIONS):
        lengths.append(window + 8)
    size = _vocabulary(model)
    ids = 5 + (np.arange(sum(lengths), dtype=np.int64) * 7919 + 11) % max(size - 5, 1)
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return Batch(
        input_ids_T=np.minimum(ids, size - 1).astype(np.int32), cu_seqlens=cu_seqlens, units=np.arange(len(lengths))
    )


def _vocabulary(model: nn.Module) -> int:
    """How many token ids the model knows. :raises ModelError: it does not take token ids."""
    try:
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        return int(embeddings.weight.shape[0])
    except (AttributeError, NotImplementedError) as exc:
        raise ModelError(
            f"{type(model).__name__} has no table of token vectors, so it cannot be given token ids"
        ) from exc


def _difference(ours: Tensor, alone: Tensor, how: str) -> str | None:
    if ours.shape != alone.shape:
        return f"{how} gives another shape than one by one"
    cosine = nn.functional.cosine_similarity(ours.double(), alone.double(), dim=-1).min().item()
    least = _MIN_COSINE.get(ours.dtype, _MIN_COSINE_HALF)
    return None if cosine >= least else f"{how} gives other numbers than one by one (cosine {cosine:.5f})"
