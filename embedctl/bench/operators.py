"""The operators of a model, each in every variant known to be fast: what `roofline` times.

Enters: a config and the lengths of one batch. Leaves: `Operator` records whose variants do the same work. Biases of
products are added by the operator that follows, since that is the faster way on every machine seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from embedctl.encoders.attention import groups_of
from embedctl.encoders.fused_bert import MODEL_TYPES
from embedctl.encoders.native import TILE_ROWS
from embedctl.encoders.products import room_for
from embedctl.heads.pooling import pool

Make = Callable[[], Callable[[], object]]
"""Allocates what a call needs, and gives the call."""

Build = Callable[[int], Callable[[], object]]
"""The same for so many rows."""

BLOCK_ROWS = 512
"""Rows at a time of the variants that keep within the caches."""

PRODUCT = "product "
FUSED_UP = "product up and gelu"
UP_PARTS = (f"{PRODUCT}up", "gelu")
_EPS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """hidden E, inner F, heads H, of each of `layers` layers; vocabulary V."""

    hidden: int
    inner: int
    heads: int
    layers: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """times: how often a batch needs it. variants: how to make a call, and how many calls the batch's rows take."""

    name: str
    times: int
    variants: Mapping[str, tuple[Make, float]] = field(default_factory=dict)


def _sized(name: str, build: Build, tokens: int, device: str) -> dict[str, tuple[Make, float]]:
    """All rows at once and, on a CPU, in blocks."""
    found: dict[str, tuple[Make, float]] = {name: (functools.partial(build, tokens), 1.0)}
    if device == "cpu" and tokens > BLOCK_ROWS:
        found[f"{name}, in blocks"] = (functools.partial(build, BLOCK_ROWS), tokens / BLOCK_ROWS)
    return found


def config_of(folder: Path) -> Any:
    """transformers' config of a model folder."""
    import transformers

    return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)


def bert_shape(config: Any) -> Shape | None:
    """None for kinds whose layers are not BERT's."""
    if config.model_type not in MODEL_TYPES:
        return None
    return Shape(
        hidden=config.hidden_size, inner=config.intermediate_size, heads=config.num_attention_heads,
        layers=config.num_hidden_layers, vocabulary=config.vocab_size,
    )  # fmt: skip


def product_weights(config: Any, shape: Shape | None) -> int:
    """Multiplications a token needs in matrix products other than attention's."""
    if shape:
        return shape.layers * (4 * shape.hidden**2 + 2 * shape.hidden * shape.inner)
    return sum(count * rows * columns for (rows, columns), count in _linears(config).items())


def of(config: Any, shape: Shape | None, lengths: np.ndarray, dtype: torch.dtype, device: str) -> Iterator[Operator]:
    """Operators of one batch. int (N,) lengths, longest first."""
    tokens = int(lengths.sum())
    if shape is None:
        for (rows, columns), count in _linears(config).items():
            yield _product(f"{columns}x{rows}", count, tokens, columns, rows, dtype, device)
        return
    wide, inner = shape.hidden, shape.inner
    yield Operator(name="embedding", times=1, variants={"torch": (_embedding(shape, tokens, dtype, device), 1.0)})
    for name, columns, rows in (
        ("qkv", wide, 3 * wide),
        ("out", wide, wide),
        ("up", wide, inner),
        ("down", inner, wide),
    ):
        yield _product(name, shape.layers, tokens, columns, rows, dtype, device)
    yield Operator(name="attention", times=shape.layers, variants=_attentions(shape, lengths, dtype, device))
    yield Operator(name="gelu", times=shape.layers, variants=_gelus(inner, tokens, dtype, device))
    yield Operator(name="norm", times=2 * shape.layers + 1, variants=_norms(wide, tokens, dtype, device))
    yield Operator(name="pooling", times=1, variants={"torch": (_pooling(wide, lengths, dtype, device), 1.0)})
    if device == "cpu":
        fused = _sized("onednn", _pointwise(wide, inner, dtype, "gelu"), tokens, device)
        if _tiled(wide, inner, dtype, device):
            fused |= _sized("native", _native_product(wide, inner, with_gelu=True), tokens, device)
        yield Operator(name=FUSED_UP, times=shape.layers, variants=fused)


def _linears(config: Any) -> dict[tuple[int, int], int]:
    """(rows, columns) of a model's linear layers -> how many, from the config alone."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    found: dict[tuple[int, int], int] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "pooler" not in name:
            key = (module.out_features, module.in_features)
            found[key] = found.get(key, 0) + 1
    return found


def _product(name: str, times: int, tokens: int, columns: int, rows: int, dtype: torch.dtype, device: str) -> Operator:
    def random(*size: int) -> Tensor:
        return torch.randn(*size, dtype=dtype, device=device)

    def plain(tokens: int) -> Callable[[], object]:
        x, w = random(tokens, columns), random(rows, columns)
        return lambda: functional.linear(x, w)

    def in_place(tokens: int) -> Callable[[], object]:
        x, w, out = random(tokens, columns), random(rows, columns).t(), random(tokens, rows)
        return lambda: torch.mm(x, w, out=out)

    def with_bias(tokens: int) -> Callable[[], object]:
        x, w, b = random(tokens, columns), random(rows, columns), random(rows)
        return lambda: functional.linear(x, w, b)

    builds: dict[str, Build] = {"torch": plain, "torch into a buffer": in_place, "torch with bias": with_bias}
    if device == "cpu":
        builds["onednn prepacked"] = _pointwise(columns, rows, dtype, "none")
    if _tiled(columns, rows, dtype, device):
        builds["native"] = _native_product(columns, rows, with_gelu=False)
    variants: dict[str, tuple[Make, float]] = {}
    for variant, build in builds.items():
        variants |= _sized(variant, build, tokens, device)
    return Operator(name=PRODUCT + name, times=times, variants=variants)


def _pointwise(columns: int, rows: int, dtype: torch.dtype, after: str) -> Build:
    def build(tokens: int) -> Callable[[], object]:
        x, w = torch.randn(tokens, columns, dtype=dtype), torch.randn(rows, columns, dtype=dtype)
        bias = torch.randn(rows, dtype=dtype) if after == "gelu" else None
        packed = torch.ops.mkldnn._reorder_linear_weight(w, tokens)
        scalar = "none" if after == "gelu" else ""
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, bias, after, [], scalar)

    return build


def _tiled(columns: int, rows: int, dtype: torch.dtype, device: str) -> bool:
    kernels = _kernels(device)
    whole = columns % TILE_ROWS == 0 and rows % TILE_ROWS == 0
    return bool(kernels and kernels.has_tiles and dtype == torch.bfloat16 and whole)


def _native_product(columns: int, rows: int, *, with_gelu: bool) -> Build:
    def build(tokens: int) -> Callable[[], object]:
        kernels = _kernels("cpu")
        x = torch.randn(room_for(tokens), columns).to(torch.bfloat16)[:tokens]
        packed = kernels.pack_weights((torch.randn(rows, columns) / columns**0.5).to(torch.bfloat16))
        bias, out = torch.randn(rows), torch.empty(tokens, rows, dtype=torch.bfloat16)
        return lambda: kernels.product(x, packed, bias, out, with_gelu=with_gelu)

    return build


def _embedding(shape: Shape, tokens: int, dtype: torch.dtype, device: str) -> Make:
    def make() -> Callable[[], object]:
        words = torch.randn(shape.vocabulary, shape.hidden, dtype=dtype, device=device)
        ids = torch.randint(0, shape.vocabulary, (tokens,), device=device)
        places = torch.arange(tokens, device=device) % min(512, shape.vocabulary)
        return lambda: (functional.embedding(ids, words), functional.embedding(places, words))

    return make


def _kernels(device: str) -> Any:
    if device != "cpu":
        return None
    from embedctl.encoders import native

    return native.load()[0]


def _gelus(inner: int, tokens: int, dtype: torch.dtype, device: str) -> dict[str, tuple[Make, float]]:
    kernels = _kernels(device)

    def eager(tokens: int) -> Callable[[], object]:
        x, b = torch.randn(tokens, inner, dtype=dtype, device=device), torch.randn(inner, dtype=dtype, device=device)
        return lambda: functional.gelu(x + b)

    def native(tokens: int) -> Callable[[], object]:
        x, b = (
            torch.randn(tokens, inner, dtype=dtype),
            torch.full((inner,), 0.1),
        )  # in place: must not sink to denormals
        return lambda: kernels.bias_gelu(x, b)

    found = _sized("torch", eager, tokens, device)
    return found | (_sized("native", native, tokens, device) if kernels else {})


def _norms(wide: int, tokens: int, dtype: torch.dtype, device: str) -> dict[str, tuple[Make, float]]:
    kernels = _kernels(device)

    def eager(tokens: int) -> Callable[[], object]:
        x, y = (torch.randn(tokens, wide, dtype=dtype, device=device) for _ in range(2))
        g, b = (torch.randn(wide, dtype=dtype, device=device) for _ in range(2))
        return lambda: functional.layer_norm(x + y, (wide,), g, b, _EPS)

    def native(tokens: int) -> Callable[[], object]:
        x, y = (torch.randn(tokens, wide, dtype=dtype) for _ in range(2))
        g, b, bias = (torch.randn(wide) for _ in range(3))
        return lambda: kernels.add_norm(x, bias, y, g, b, _EPS)

    found = _sized("torch", eager, tokens, device)
    return found | (_sized("native", native, tokens, device) if kernels else {})


def _attentions(shape: Shape, lengths: np.ndarray, dtype: torch.dtype, device: str) -> dict[str, tuple[Make, float]]:
    tokens, heads, width = int(lengths.sum()), shape.heads, shape.hidden // shape.heads
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    groups, kernels = groups_of(cu_seqlens), _kernels(device)

    def by_group(mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Make:
        def make() -> Callable[[], object]:
            qkv = torch.randn(tokens, 3, heads, width, dtype=dtype, device=device)
            views = [qkv[b : b + n * ln].view(n, ln, 3, heads, width).permute(2, 0, 3, 1, 4) for b, n, ln in groups]
            return lambda: [mix(v[0], v[1], v[2]) for v in views]

        return make

    def native() -> Callable[[], object]:
        qkv = torch.randn(tokens, 3 * shape.hidden, dtype=dtype)
        places, out = torch.from_numpy(cu_seqlens), torch.empty(tokens, shape.hidden, dtype=dtype)
        return lambda: kernels.attend(qkv, places, heads, int(lengths.max()), out)

    def varlen() -> Callable[[], object]:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (torch.randn(tokens, heads, width, dtype=dtype, device=device) for _ in range(3))
        places, most = torch.from_numpy(cu_seqlens).to(device), int(lengths.max())
        return lambda: varlen_attn(q, k, v, places, places, most, most)

    variants = {"sdpa": by_group(functional.scaled_dot_product_attention), "bmm": by_group(_bmm)}
    if kernels and kernels.has_tiles and dtype == torch.bfloat16 and width % 32 == 0:
        variants["native"] = native
    if device != "cpu" and dtype != torch.float32:
        variants["varlen"] = varlen
    return {name: (make, 1.0) for name, make in variants.items()}


def _bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v


def _pooling(wide: int, lengths: np.ndarray, dtype: torch.dtype, device: str) -> Make:
    def make() -> Callable[[], object]:
        x = torch.randn(int(lengths.sum()), wide, dtype=dtype, device=device)
        cu_seqlens = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)).to(device)
        return lambda: functional.normalize(pool(x, cu_seqlens, ["mean"]))

    return make
