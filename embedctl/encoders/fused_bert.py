"""BERT-shaped models on a CPU, as fast as its matrix products: what lies between them is fused, nothing is padded.

Enters: packed batches. Leaves: outputs, like its plain twin `torch_varlen`, whose numbers it keeps. One query-key-value
product a layer; residual sums and LayerNorm in our own kernels; where the processor has AMX tiles, products with their
biases and GELU, and attention, too. One thread a batch, several batches at once: their number changes no result.
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
from embedctl.encoders.native import TILE_ROWS, Kernels
from embedctl.encoders.products import Products, TiledProducts, TorchProducts, room_for
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
    """Weights as `Products` laid them out: qkv (3E, E), out (E, E), up (F, E), down (E, F). Biases float32."""

    qkv: Tensor
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
        whole = head_width % TILE_ROWS == 0 and config.intermediate_size % TILE_ROWS == 0
        self.tiles: bool = kernels.has_tiles and dtype == torch.bfloat16 and whole
        self.products: Products = TiledProducts(kernels) if self.tiles else TorchProducts(kernels)
        parts: Any = model.embeddings
        self.words, self.places = parts.word_embeddings.weight, parts.position_embeddings.weight
        self.types = parts.token_type_embeddings.weight.float()
        self.first_norm = _norm(parts.LayerNorm, self.types[0])
        self.type_steps = (self.types - self.types[0]).to(dtype)
        layers: Any = model.encoder
        self.layers = [_layer(layer, self.products) for layer in layers.layer]

    def forward(self, batch: Batch) -> Tensor:
        """Last hidden states (T, E). All large buffers belong to the calling thread and are used again."""
        ids_T, places_T = as_ids(batch.input_ids_T, "cpu"), as_ids(positions_of(self.model, batch), "cpu")
        cu_seqlens = torch.from_numpy(batch.cu_seqlens.copy())
        packed = Packed(cu_seqlens=cu_seqlens, groups=groups_of(batch.cu_seqlens), max_seqlen=batch.max_seqlen)
        num, width = len(ids_T), self.words.shape[1]
        words_TE = self.areas("words", num, width, self.words.dtype)
        x_TE = torch.empty(room_for(num), width, dtype=self.words.dtype)[:num]
        torch.index_select(self.words, 0, ids_T, out=words_TE)
        torch.index_select(self.places, 0, places_T, out=x_TE)
        if batch.token_type_ids_T is not None and len(self.type_steps) > 1:
            words_TE += functional.embedding(as_ids(batch.token_type_ids_T, "cpu"), self.type_steps)
        self._normed(words_TE, x_TE, self.first_norm)
        qkv_TX = self.areas("qkv", num, 3 * width, x_TE.dtype)
        mixed_TE = self.areas("mixed", num, width, x_TE.dtype)
        blocks = [slice(i, i + BLOCK_TOKENS) for i in range(0, num, BLOCK_TOKENS)]
        for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
            if layer is self.layers[0]:
                self.products.biased(x_TE, layer.qkv, layer.qkv_bias, qkv_TX)
            self._attend(qkv_TX, packed, mixed_TE)
            for block in blocks:  # a block's numbers stay in the cache from the attention to the next layer's product
                self._feed_forward(layer, mixed_TE[block], x_TE[block])
                if following is not None:
                    self.products.biased(x_TE[block], following.qkv, following.qkv_bias, qkv_TX[block])
        return x_TE

    def _feed_forward(self, layer: Layer, mixed_TE: Tensor, x_TE: Tensor) -> None:
        """What follows the attention, into `x_TE`."""
        out_TE = self.areas("out", len(x_TE), x_TE.shape[1], x_TE.dtype)
        up_TF = self.areas("up", len(x_TE), len(layer.up_bias), x_TE.dtype)
        self.products.plain(mixed_TE, layer.out, out_TE)
        self._normed(out_TE, x_TE, layer.out_norm)
        self.products.gelu(x_TE, layer.up, layer.up_bias, up_TF)
        self.products.plain(up_TF, layer.down, out_TE)
        self._normed(out_TE, x_TE, layer.down_norm)

    def _normed(self, x_TE: Tensor, residual_TE: Tensor, norm: Norm) -> None:
        self.kernels.add_norm(x_TE, norm.bias, residual_TE, norm.gamma, norm.beta, norm.eps)

    def _attend(self, qkv_TX: Tensor, packed: Packed, out_TE: Tensor) -> None:
        if self.tiles:
            self.kernels.attend(qkv_TX, packed.cu_seqlens, self.heads, packed.max_seqlen, out_TE)
            return
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
        held, room = self._held.get(name), room_for(rows) * width
        if held is None or held.numel() < room:
            held = self._held[name] = torch.empty(room, dtype=dtype)
        return held[: rows * width].view(rows, width)


def _norm(module: Any, bias: Tensor) -> Norm:
    return Norm(
        gamma=module.weight.float().contiguous(),
        beta=module.bias.float().contiguous(),
        eps=module.eps,
        bias=bias.float().contiguous(),
    )


def _layer(layer: Any, products: Products) -> Layer:
    own, output = layer.attention.self, layer.attention.output
    parts = (own.query, own.key, own.value)
    return Layer(
        qkv=products.lay_out(torch.cat([p.weight for p in parts])),
        qkv_bias=torch.cat([p.bias for p in parts]).float(),
        out=products.lay_out(output.dense.weight),
        out_norm=_norm(output.LayerNorm, output.dense.bias),
        up=products.lay_out(layer.intermediate.dense.weight),
        up_bias=layer.intermediate.dense.bias.float().contiguous(),
        down=products.lay_out(layer.output.dense.weight),
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
