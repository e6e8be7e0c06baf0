"""Opens the right encoder for a model folder, and resolves what "auto" means for device and dtype.

Enters: a `ModelFolder` and what the plan resolved. Leaves: an `Encoder`. Packed where the model allows it, padded
where it does not, with the reason in `describe()`. Refuses: a device that is not there, weights that do not load.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from torch import nn

from embedctl.encoders.attention import NAME, choose_attention, register
from embedctl.encoders.base import Encoder
from embedctl.encoders.tail import Tail
from embedctl.encoders.torch_encoder import Loader
from embedctl.errors import ModelError, UsageError
from embedctl.models.folder import ModelFolder
from embedctl.outputs import OutputKind

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
    outputs: tuple[OutputKind, ...] = ("dense",),
) -> Encoder:
    """`dtype` and `device` are resolved already; `dim` None keeps the folder's own. `num_prompt_tokens` as the
    tokenizer counts them, for models that leave the prompt out of the pooling.

    :raises ModelError: the weights or what belongs to them cannot be opened.
    :raises UsageError: see `choose_attention`.
    """
    if trust_remote_code and not folder.trust_remote_code:
        folder = replace(folder, trust_remote_code=True)
    dim = dim or min(folder.truncate_dim or folder.width(pooling), folder.width(pooling))
    if folder.kind == "fake":
        from embedctl.encoders.fake import FakeEncoder

        return FakeEncoder(folder.name, dim=dim)
    if pooling is not None and folder.pooling is None:
        raise UsageError(
            f"--pooling: {folder.name} is a static model, which has no pooling to choose", hint="leave out --pooling"
        )
    if folder.kind == "static":
        from embedctl.encoders.static import StaticEncoder

        return StaticEncoder(folder, dim=dim)
    from embedctl.encoders.weights import load_transformer

    kernel = choose_attention(device, dtype, attention)
    tail = Tail(folder, device=device, pooling=pooling, dim=dim, num_prompt_tokens=num_prompt_tokens)
    return open_body(
        folder, load_transformer, tail, dtype=dtype, device=device, threads=threads, kernel=kernel, compile=compile
    )


def open_body(
    folder: ModelFolder, loader: object, tail: Tail, *, dtype: str, device: str, threads: int | None,
    kernel: tuple[str, str], compile: bool | None,
) -> Encoder:  # fmt: skip
    """The encoder that runs a transformer the best way it allows. `loader`: as `load_transformer`."""
    from embedctl.encoders.padded import PaddedEncoder
    from embedctl.encoders.selftest import packed_obstacle, padding_leaks
    from embedctl.encoders.torch_varlen import TorchVarlenEncoder

    register()
    common = {"dtype": dtype, "device": device, "threads": threads, "notes": folder.notes}
    reason = PADDED.get(folder.model_type)
    if reason is None:
        load = functools.partial(_load, loader, folder, device, NAME)
        model: nn.Module | None = None
        try:
            model = load(dtype)
        except ModelError as exc:
            reason = f"it does not take its attention from transformers ({exc})"
        if model is not None and (fused := _fused(load, tail, model, device, dtype, threads, compile, folder.notes)):
            return fused
        if model is not None and folder.model_type not in VERIFIED:
            reason = packed_obstacle(model, device=device, kernel=kernel[0], own="sdpa")
        if model is not None and reason is None:
            return TorchVarlenEncoder(load, tail, model=model, attention=kernel, **common)  # type: ignore[arg-type]
        del model
    load = functools.partial(_load, loader, folder, device, None)
    model = load(dtype)
    leak = padding_leaks(model, device=device)
    reason = f"{reason}; {leak}: sequences of one length run together" if leak else reason
    return PaddedEncoder(load, tail, model=model, reason=reason or "", by_length=leak is not None, **common)  # type: ignore[arg-type]


def _fused(
    load: Loader, tail: Tail, model: nn.Module, device: str, dtype: str, threads: int | None, compile: bool | None,
    notes: tuple[str, ...],
) -> Encoder | None:  # fmt: skip
    """The fused CPU encoder where model, device and compiler allow it; None leaves the plain way.

    :raises UsageError: `--compile` was asked for and cannot be had.
    """
    from embedctl.encoders import native
    from embedctl.encoders.fused_bert import FusedBertEncoder, obstacle

    if compile is False:
        return None
    kernels, why = native.load() if device == "cpu" else (None, f"the device is {device}")
    reason = (obstacle(model) or ("" if dtype in ("float32", "bfloat16") else f"the dtype is {dtype}")) or (
        "" if kernels else why
    )
    if kernels and not reason:
        return FusedBertEncoder(
            load, tail, dtype=dtype, threads=threads, model=model, kernels=kernels, reason=why, notes=notes
        )
    if compile:
        raise UsageError(f"--compile: there are no fused kernels for this: {reason}", hint="leave out --compile")
    return None


def _load(loader: object, folder: ModelFolder, device: str, attention: str | None, dtype: str) -> nn.Module:
    assert callable(loader)
    model: nn.Module = loader(folder, dtype=dtype, device=device, attention=attention)
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
        return any(bool(getattr(torch.cpu, check, lambda: False)()) for check in checks)
    return False
