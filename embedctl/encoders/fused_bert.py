"""BERT-shaped models on a CPU, as fast as its matrix products: what lies between them is fused, nothing is padded.

Enters: packed batches. Leaves: outputs, like its plain twin `torch_varlen`, whose numbers it keeps. One
query-key-value product a layer; biases, GELU, residual sums and LayerNorm in our own kernels; attention over AMX tiles
where the processor has them. One thread a batch, several batches at once: the number of threads changes no result.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedctl.encoders.attention import Packed, groups_of
from embedctl.encoders.native import Kernels
from embedctl.encoders.staging import as_ids
from embedctl.encoders.tail import Heads
from embedctl.encoders.torch_encoder import Loader, TorchEncoder
from embedctl.encoders.torch_varlen import positions_of
from embedctl.records import Batch

MODEL_TYPES = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})
"""Kinds whose layers are BERT's, told apart by where positions start."""

BLOCK_TOKENS = 2048
"""Tokens that go from one attention to the next together; 1,024 and 4,096 were slower on MiniLM's shapes."""


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
    """Weights in the compute dtype, transposed for `mm`: qkv (E, 3E), out (E, E), up (E, F), down (F, E). Biases
    float32, but qkv_bias, which only the plain attention adds."""

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
        config: Any = model.config
        self.model, self.config = model, config
        self.kernels, self.areas = kernels, Areas()
        self.heads: int = config.num_attention_heads
        dtype = next(model.parameters()).dtype
        head_width = config.hidden_size // self.heads
        self.tiles: bool = kernels.has_tiles and dtype == torch.bfloat16 and head_width % 32 == 0
        parts: Any = model.embeddings
        self.words, self.places = parts.word_embeddings.weight, parts.position_embeddings.weight
        self.types = parts.token_type_embeddings.weight.float()
        self.first_norm = _norm(parts.LayerNorm, self.types[0])
        self.type_steps = (self.types - self.types[0]).to(dtype)
        layers: Any = model.encoder
        self.layers = [_layer(layer, tiles=self.tiles) for layer in layers.layer]

    def forward(self, batch: Batch) -> Tensor:
        """Last hidden states (T, E). All large buffers belong to the calling thread and are used again."""
        ids_T, places_T = as_ids(batch.input_ids_T, "cpu"), as_ids(positions_of(self.model, batch), "cpu")
        cu_seqlens = torch.from_numpy(batch.cu_seqlens.copy())
        packed = Packed(cu_seqlens=cu_seqlens, groups=groups_of(batch.cu_seqlens), max_seqlen=batch.max_seqlen)
        words_TE, x_TE = functional.embedding(ids_T, self.words), functional.embedding(places_T, self.places)
        if batch.token_type_ids_T is not None and len(self.type_steps) > 1:
            words_TE += functional.embedding(as_ids(batch.token_type_ids_T, "cpu"), self.type_steps)
        self._normed(words_TE, x_TE, self.first_norm)
        qkv_TX = self.areas("qkv", len(x_TE), 3 * x_TE.shape[1], x_TE.dtype)
        mixed_TE = self.areas("mixed", len(x_TE), x_TE.shape[1], x_TE.dtype)
        blocks = [slice(i, i + BLOCK_TOKENS) for i in range(0, len(x_TE), BLOCK_TOKENS)]
        for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
            if layer is self.layers[0]:
                torch.mm(x_TE, layer.qkv, out=qkv_TX)
            self._attend(qkv_TX, layer, packed, mixed_TE)
            for block in blocks:  # a block's numbers stay in the cache from the attention to the next layer's product
                self._feed_forward(layer, mixed_TE[block], x_TE[block])
                if following is not None:
                    torch.mm(x_TE[block], following.qkv, out=qkv_TX[block])
        return x_TE

    def _feed_forward(self, layer: Layer, mixed_TE: Tensor, x_TE: Tensor) -> None:
        """What follows the attention, into `x_TE`."""
        out_TE = self.areas("out", len(x_TE), x_TE.shape[1], x_TE.dtype)
        up_TF = self.areas("up", len(x_TE), layer.up.shape[1], x_TE.dtype)
        torch.mm(mixed_TE, layer.out, out=out_TE)
        self._normed(out_TE, x_TE, layer.out_norm)
        torch.mm(x_TE, layer.up, out=up_TF)
        self.kernels.bias_gelu(up_TF, layer.up_bias)
        torch.mm(up_TF, layer.down, out=out_TE)
        self._normed(out_TE, x_TE, layer.down_norm)

    def _normed(self, x_TE: Tensor, residual_TE: Tensor, norm: Norm) -> None:
        self.kernels.add_norm(x_TE, norm.bias, residual_TE, norm.gamma, norm.beta, norm.eps)

    def _attend(self, qkv_TX: Tensor, layer: Layer, packed: Packed, out_TE: Tensor) -> None:
        if self.tiles:
            self.kernels.attend(qkv_TX, layer.query_bias, packed.cu_seqlens, self.heads, packed.max_seqlen, out_TE)
            return
        qkv_TX += layer.qkv_bias
        width = out_TE.shape[1]
        for begin, num, length in packed.groups:
            rows = slice(begin, begin + num * length)
            shaped = qkv_TX[rows].view(num, length, 3, self.heads, width // self.heads)
            q, k, v = (shaped[:, :, i].transpose(1, 2) for i in range(3))
            mixed = functional.scaled_dot_product_attention(q, k, v)
            out_TE[rows] = mixed.transpose(1, 2).reshape(num * length, width)


class Areas(threading.local):
    """Each thread's buffers, by name: fresh memory for every product costs a third of the time in page faults."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised matrix, the calling thread's until it asks for this name again."""
        held = self._held.get(name)
        if held is None or held.numel() < rows * width:
            held = self._held[name] = torch.empty(rows * width, dtype=dtype)
        return held[: rows * width].view(rows, width)


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
        qkv=torch.cat([p.weight for p in parts]).t(),
        query_bias=own.query.bias.float().contiguous(),
        qkv_bias=torch.cat([p.bias for p in parts]),
        out=output.dense.weight.t(),
        out_norm=_norm(output.LayerNorm, out_bias),
        up=layer.intermediate.dense.weight.t(),
        up_bias=layer.intermediate.dense.bias.float().contiguous(),
        down=layer.output.dense.weight.t(),
        down_norm=_norm(layer.output.LayerNorm, layer.output.dense.bias),
    )


class FusedBertEncoder(TorchEncoder):
    """See the module. `load` gives transformers' own model; `kernels` come from `native.load`."""

    engine = "fused_bert"

    def __init__(
        self, load: Loader, heads: Heads, *, dtype: str, threads: int | None, model: nn.Module, kernels: Kernels,
        reason: str, notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        def fused(dtype: str) -> nn.Module:
            return FusedBert(load(dtype), kernels)

        super().__init__(
            fused, heads, dtype=dtype, device="cpu", threads=1, model=FusedBert(model, kernels), notes=notes
        )
        self.lanes = threads or torch.get_num_threads()
        self._reason = reason

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        hidden: Tensor = model(batch)
        return hidden

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        attention = "amx tiles" if isinstance(self._model, FusedBert) and self._model.tiles else "sdpa"
        return {**super().describe(), "threads": self.lanes, "attention": attention, "attention_reason": self._reason}
