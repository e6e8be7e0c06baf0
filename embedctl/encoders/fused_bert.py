"""BERT-shaped models on a CPU, as fast as its matrix products: what lies between them is fused, nothing is padded.

Enters: packed batches. Leaves: float32 (N, dim), like its plain twin `torch_varlen`, whose numbers it keeps. One query-key-
value product a layer; biases, GELU, residual sums and LayerNorm in our own kernels; attention over AMX tiles where the
processor has them. One thread a batch, several batches at once: results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedctl.encoders.attention import Packed, groups_of
from embedctl.encoders.native import Kernels
from embedctl.encoders.torch_encoder import Loader, TorchEncoder, as_ids
from embedctl.encoders.torch_varlen import positions_of
from embedctl.encoders.tail import Tail
from embedctl.records import Batch

MODEL_TYPES = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})
"""Kinds whose layers are BERT's, told apart by where positions start."""


def obstacle(model: nn.Module) -> str | None:
    """Why this model cannot run fused, or None."""
    config: Any = model.config
    if config.model_type not in MODEL_TYPES:
        return f"{config.model_type} has other layers"
    if config.hidden_act != "gelu":
        return f"its activation is {config.hidden_act}"
    if getattr(config, "position_embedding_type", "absolute") not in (None, "absolute"):
        return "its positions are relative"
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "it is a decoder"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """gamma and beta float32 (E,). bias: float32 (E,), what the product before it left out."""

    gamma: Tensor
    beta: Tensor
    eps: float
    bias: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights in the compute dtype, biases float32. qkv (3E, E); query_bias, key_bias, value_bias (E,) each."""

    qkv: Tensor
    query_bias: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_norm: Norm
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_norm: Norm


class FusedBert(nn.Module):
    """The weights of a transformers model, laid out for fused layers. Holds the model for its embeddings and config."""

    def __init__(self, model: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.kernels = kernels
        self.heads: int = model.config.num_attention_heads
        dtype = next(model.parameters()).dtype
        head_width = model.config.hidden_size // self.heads
        self.tiles = kernels.has_tiles and dtype == torch.bfloat16 and head_width % 32 == 0
        parts: Any = model.embeddings
        self.words, self.places = parts.word_embeddings.weight, parts.position_embeddings.weight
        self.types = parts.token_type_embeddings.weight.float()
        self.first_norm = _norm(parts.LayerNorm, self.types[0])
        layers: Any = model.encoder
        self.layers = [_layer(layer, tiles=self.tiles) for layer in layers.layer]

    def forward(self, batch: Batch) -> Tensor:
        """Last hidden states (T, E)."""
        ids_T, places_T = as_ids(batch.input_ids_T, "cpu"), as_ids(positions_of(self.model, batch), "cpu")
        cu_seqlens = torch.from_numpy(batch.cu_seqlens.copy())
        packed = Packed(cu_seqlens=cu_seqlens, groups=groups_of(batch.cu_seqlens), max_seqlen=batch.max_seqlen)
        x_TE = self._normed(functional.embedding(ids_T, self.words), functional.embedding(places_T, self.places), self.first_norm)
        for layer in self.layers:
            x_TE = self._normed(functional.linear(self._attend(x_TE, layer, packed), layer.out), x_TE, layer.out_norm)
            up_TF = self.kernels.bias_gelu(functional.linear(x_TE, layer.up), layer.up_bias)
            x_TE = self._normed(functional.linear(up_TF, layer.down), x_TE, layer.down_norm)
        return x_TE

    def _normed(self, x_TE: Tensor, residual_TE: Tensor, norm: Norm) -> Tensor:
        return self.kernels.add_norm(x_TE, norm.bias, residual_TE, norm.gamma, norm.beta, norm.eps)

    def _attend(self, x_TE: Tensor, layer: Layer, packed: Packed) -> Tensor:
        qkv_TX = functional.linear(x_TE, layer.qkv)
        if self.tiles:
            return self.kernels.attend(qkv_TX, layer.query_bias, packed.cu_seqlens, self.heads, packed.max_seqlen)
        qkv_TX += layer.qkv_bias
        width = qkv_TX.shape[1] // 3
        out_TE = torch.empty(qkv_TX.shape[0], width, dtype=qkv_TX.dtype)
        for begin, num, length in packed.groups:
            rows = slice(begin, begin + num * length)
            shaped = qkv_TX[rows].view(num, length, 3, self.heads, width // self.heads)
            q, k, v = (shaped[:, :, i].transpose(1, 2) for i in range(3))
            mixed = functional.scaled_dot_product_attention(q, k, v)
            out_TE[rows] = mixed.transpose(1, 2).reshape(num * length, width)
        return out_TE


def _norm(module: Any, bias: Tensor) -> Norm:
    return Norm(
        gamma=module.weight.float().contiguous(),
        beta=module.bias.float().contiguous(),
        eps=module.eps,
        bias=bias.float().contiguous(),
    )


def _layer(layer: Any, *, tiles: bool) -> Layer:
    own, output = layer.attention.self, layer.attention.output
    parts = (own.query, own.key, own.value)
    out_bias = output.dense.bias.float()
    if tiles:  # the attention leaves out the value bias, which the next product carries through
        out_bias = out_bias + output.dense.weight.float() @ own.value.bias.float()
    return Layer(
        qkv=torch.cat([p.weight for p in parts]).contiguous(),
        query_bias=own.query.bias.float().contiguous(),
        qkv_bias=torch.cat([p.bias for p in parts]),
        out=output.dense.weight,
        out_norm=_norm(output.LayerNorm, out_bias),
        up=layer.intermediate.dense.weight,
        up_bias=layer.intermediate.dense.bias.float().contiguous(),
        down=layer.output.dense.weight,
        down_norm=_norm(layer.output.LayerNorm, layer.output.dense.bias),
    )


class FusedBertEncoder(TorchEncoder):
    """See the module. `load` gives transformers' own model; `kernels` come from `native.load`."""

    engine = "fused_bert"

    def __init__(
        self, load: Loader, tail: Tail, *, dtype: str, threads: int | None, model: nn.Module, kernels: Kernels, reason: str,
        notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        def fused(dtype: str) -> nn.Module:
            return FusedBert(load(dtype), kernels)

        super().__init__(fused, tail, dtype=dtype, device="cpu", threads=1, model=FusedBert(model, kernels), notes=notes)
        self.lanes = threads or torch.get_num_threads()
        self._reason = reason

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        hidden: Tensor = model(batch)
        return hidden

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        attention = "amx tiles" if isinstance(self._model, FusedBert) and self._model.tiles else "sdpa"
        return {**super().describe(), "threads": self.lanes, "attention": attention, "attention_reason": self._reason}
