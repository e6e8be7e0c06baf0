"""Opens the right encoder for a model folder, and resolves what "auto" means for device and dtype.

Enters: a `ModelFolder` and what the plan resolved. Leaves: an `Encoder`. Packed where the model allows it, padded
where it does not, with the reason in `describe()`. Refuses: a device that is not there, weights that do not load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from embedctl.encoders.attention import NAME, choose_attention, register
from embedctl.encoders.base import Encoder
from embedctl.encoders.chunked import bound_memory
from embedctl.encoders.expansion import expanded
from embedctl.encoders.open_heads import Wanted, expansion_token, open_heads
from embedctl.encoders.tail import Heads
from embedctl.encoders.torch_encoder import Loader
from embedctl.errors import ModelError, UsageError
from embedctl.heads.sparse import Pruning
from embedctl.models.folder import ModelFolder
from embedctl.outputs import OutputKind
from embedctl.records import Batch

VERIFIED = frozenset({
    "albert", "bert", "distilbert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "nomic_bert",
    "gte", "eurobert", "jina_embeddings_v3", "qwen2", "qwen3", "llama", "mistral", "modernbert", "gemma3_text",
})  # fmt: skip
"""Kinds held to their reference by our own tests; all others are tried when opened."""

PADDED = {
    "clip_text_model": "CLIP holds the tokens of a whole batch against its positions",
    "mpnet": "MPNet has an attention of its own",
    "deberta": "DeBERTa has an attention of its own",
    "deberta-v2": "DeBERTa-v2 has an attention of its own",
    "t5": "T5 adds a position bias inside its attention",
    "mt5": "mT5 adds a position bias inside its attention",
    "umt5": "UMT5 adds a position bias inside its attention",
}


def open_encoder(
    folder: ModelFolder,
    *,
    dtype: str,
    device: str,
    threads: int | None = None,
    attention: str | None = None,
    pooling: str | None = None,
    dim: int | None = None,
    num_prompt_tokens: int = 0,
    compile: bool | None = None,
    trust_remote_code: bool = False,
    outputs: tuple[OutputKind, ...] = (),
    sparse_top_k: int | None = None,
    sparse_threshold: float | None = None,
    pool_factor: float | None = None,
) -> Encoder:
    """`dtype` and `device` are resolved already; `dim` None keeps the folder's own. `num_prompt_tokens` as the
    tokenizer counts them, for models that leave the prompt out of the pooling. `outputs`: none for the folder's first.

    :raises ModelError: the weights or what belongs to them cannot be opened, or an output is not one of the folder's.
    :raises UsageError: see `choose_attention`.
    """
    if trust_remote_code and not folder.trust_remote_code:
        folder = replace(folder, trust_remote_code=True)
    outputs = outputs or folder.kinds[:1]
    if folder.kind == "fake":
        from embedctl.encoders.fake import FakeEncoder

        return FakeEncoder(folder.name, dim=dim or folder.width(pooling))
    if pooling is not None and folder.pooling is None:
        raise UsageError(f"--pooling: {folder.name} has no pooling to choose", hint="leave out --pooling")
    if folder.media is not None:
        from embedctl.encoders.media import open_media

        return open_media(folder, dtype=dtype, device=device, threads=threads, dim=dim)
    wanted = Wanted(
        pooling=pooling, dim=dim, num_prompt_tokens=num_prompt_tokens, pool_factor=pool_factor, compile=compile,
        pruning=Pruning(top_k=sparse_top_k, threshold=sparse_threshold or 0.0),
    )  # fmt: skip
    if folder.kind == "static":
        return _open_static(folder, dim, wanted.pruning)
    if folder.onnx is not None:
        from embedctl.encoders.onnx import open_onnx

        heads, _ = open_heads(folder, outputs, wanted, device="cpu")
        return open_onnx(folder, heads, threads=threads, expand=_expand(folder))
    kernel = choose_attention(device, dtype, attention)
    heads, loader = open_heads(folder, outputs, wanted, device=device)
    return open_body(folder, loader, heads, dtype=dtype, device=device, threads=threads, kernel=kernel, compile=compile)


def _open_static(folder: ModelFolder, dim: int | None, pruning: Pruning) -> Encoder:
    if folder.sparse is not None:
        from embedctl.encoders.sparse_table import SparseTableEncoder

        return SparseTableEncoder(folder, pruning)
    from embedctl.encoders.static import StaticEncoder

    return StaticEncoder(folder, dim=dim or min(folder.truncate_dim or folder.width(), folder.width()))


def open_body(
    folder: ModelFolder, loader: object, heads: Heads, *, dtype: str, device: str, threads: int | None,
    kernel: tuple[str, str], compile: bool | None,
) -> Encoder:  # fmt: skip
    """The encoder that runs a transformer the best way it allows. `loader`: as `load_transformer`."""
    from embedctl.encoders.padded import PaddedEncoder
    from embedctl.encoders.selftest import packed_obstacle, padding_leaks
    from embedctl.encoders.torch_varlen import TorchVarlenEncoder

    register()
    common: dict[str, Any] = {"dtype": dtype, "device": device, "threads": threads, "notes": folder.notes}
    expand = _expand(folder)
    if expand is not None:
        common["expand"] = expand
    reason = PADDED.get(folder.model_type)
    if reason is None:
        load = functools.partial(_load, loader, folder, device, NAME)
        model: nn.Module | None = None
        try:
            model = load(dtype)
        except ModelError as exc:
            reason = f"it does not take its attention from transformers ({exc})"
        if model is not None and expand is None and (fused := _fused(load, heads, model, compile, common)):
            return fused
        if model is not None and folder.model_type not in VERIFIED:
            reason = packed_obstacle(model, device=device, kernel=kernel[0], own="sdpa")
        if model is not None and reason is None:
            return TorchVarlenEncoder(load, heads, model=model, attention=kernel, **common)
        del model
    load = functools.partial(_load, loader, folder, device, None)
    model = load(dtype)
    leak = padding_leaks(model, device=device)
    reason = f"{reason}; {leak}: sequences of one length run together" if leak else reason
    return PaddedEncoder(load, heads, model=model, reason=reason or "", by_length=leak is not None, **common)


def _expand(folder: ModelFolder) -> Callable[[Batch], Batch] | None:
    expansion = None if folder.late is None else folder.late.expansion
    if expansion is None:
        return None
    return functools.partial(expanded, settings=expansion, token=expansion_token(folder, expansion))


def _fused(
    load: Loader, heads: Heads, model: nn.Module, compile: bool | None, common: Mapping[str, Any]
) -> Encoder | None:  # fmt: skip
    """The fused CPU encoder where model, device and compiler allow it; None leaves the plain way.

    :raises UsageError: `--compile` was asked for and cannot be had.
    """
    from embedctl.encoders import native
    from embedctl.encoders.fused_bert import FusedBertEncoder, obstacle

    if compile is False:
        return None
    device, dtype = common["device"], common["dtype"]
    kernels, why = native.load() if device == "cpu" else (None, f"the device is {device}")
    reason = (obstacle(model) or ("" if dtype in ("float32", "bfloat16") else f"the dtype is {dtype}")) or (
        "" if kernels else why
    )
    if kernels and not reason:
        return FusedBertEncoder(
            load, heads, dtype=dtype, threads=common["threads"], model=model, kernels=kernels, reason=why,
            notes=common["notes"],
        )  # fmt: skip
    if compile:
        raise UsageError(f"--compile: there are no fused kernels for this: {reason}", hint="leave out --compile")
    return None


def _load(loader: object, folder: ModelFolder, device: str, attention: str | None, dtype: str) -> nn.Module:
    assert callable(loader)
    model: nn.Module = loader(folder, dtype=dtype, device=device, attention=attention)
    bound_memory(model)
    return model


def cuda_devices() -> int:
    """How many CUDA devices this process sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def resolve_device(requested: str | None) -> str:
    """`cuda`, `mps` or `cpu` for None and auto; anything else is checked.

    :raises UsageError: no such device here; what there is, is named.
    """
    import torch

    if requested in (None, "auto"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(requested)
    except RuntimeError as exc:
        raise UsageError(f"--device: {requested!r} is not a device", hint="--device cpu  or  --device cuda:0") from exc
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
        raise UsageError(f"--device: {requested} is not here; there is: {there}", hint="embedctl doctor")
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise UsageError(
            f"--device: {requested} is not one that embedctl runs on", hint="--device cpu  or  --device cuda:0"
        )
    return str(device)


def resolve_dtype(requested: str, device: str) -> str:
    """auto: bfloat16 where the hardware multiplies it natively (CUDA 8.0 and later, CPU with AMX or AVX512-BF16)."""
    if requested != "auto":
        return requested
    return "bfloat16" if _native_bfloat16(device) else "float32"


def _native_bfloat16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)
    if device == "cpu":
        checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        kept = torch.backends.cpu.get_cpu_capability() in ("AVX2", "DEFAULT")  # by ATEN_CPU_CAPABILITY, or all there is
        return not kept and any(bool(getattr(torch.cpu, check, lambda: False)()) for check in checks)
    return False
