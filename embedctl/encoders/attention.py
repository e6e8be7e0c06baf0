"""The one attention seam: every model that asks transformers for its attention gets this function.

Enters: q, k, v of a packed batch, (1, H, T, D), and a `Packed` that travels as the keyword `packed`. Leaves:
(1, T, H, D). Sequences never see each other and nothing is padded. Causal or not, scale, grouped heads and sliding
windows are read where transformers' own functions read them. Refuses (`UnsupportedAttention`): a mask, a bias, soft
caps, sinks, dropped heads: what a packed call cannot honour, so that the caller takes the padded way.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.errors import UsageError

NAME = "embedctl_packed"
KERNELS = ("auto", "flash", "varlen", "sdpa")
WINDOW_BLOCKS = 4
MAX_WHOLE = 4096
"""A sequence of more windows or tokens than this is cut for a windowed attention; shorter ones are faster whole."""
_REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "output_attentions")


class UnsupportedAttention(Exception):
    """The model wants something of its attention that a packed batch cannot give. Never leaves encoders/."""


class Group(NamedTuple):
    """`num` neighbouring sequences of one length: tokens begin to begin + num * length."""

    begin: int
    num: int
    length: int


@dataclass(slots=True, kw_only=True)
class Packed:
    """Where the sequences of one forward pass lie. cu_seqlens: int32 (N + 1,) on the device. `calls` counts the
    layers that came through here: none means that the model has an attention of its own. unseen_T: bool (T,), tokens
    that none attends to, None: all are seen."""

    cu_seqlens: Tensor
    groups: Sequence[Group]
    max_seqlen: int
    kernel: str = "sdpa"
    calls: int = 0
    unseen_T: Tensor | None = None
    masks: dict[tuple[int, int, bool], Tensor] = field(default_factory=dict)


def groups_of(cu_seqlens: np.ndarray) -> tuple[Group, ...]:
    """Runs of equal length, in order; empty sequences have no tokens and so no group."""
    lengths = np.diff(cu_seqlens)
    if not len(lengths):
        return ()
    first = np.flatnonzero(np.concatenate(([True], lengths[1:] != lengths[:-1])))
    counts = np.diff(np.append(first, len(lengths)))
    return tuple(
        Group(int(cu_seqlens[i]), int(n), int(lengths[i])) for i, n in zip(first, counts, strict=True) if lengths[i]
    )


def choose_attention(device: str, dtype: str, requested: str | None = None) -> tuple[str, str]:
    """(kernel, why) for `--attention`, None and auto meaning the fastest that keeps the numbers.

    :raises UsageError: no such kernel, or one that this device, dtype or installation cannot run.
    """
    if requested not in (None, *KERNELS):
        raise UsageError(f"--attention: {requested!r} is not one of {', '.join(KERNELS)}", hint="--attention auto")
    obstacles = {"flash": _no_flash(device, dtype), "varlen": _no_varlen(device, dtype)}
    if requested is not None and requested != "auto":
        if obstacles.get(requested):
            raise UsageError(f"--attention {requested}: {obstacles[requested]}", hint="--attention auto")
        return requested, "asked for"
    if not obstacles["flash"]:
        return "flash", "flash-attn is installed"
    if not obstacles["varlen"]:
        return "varlen", f"torch's own variable-length kernel; {obstacles['flash']}"
    return "sdpa", f"groups of equal length, no padding; {obstacles['varlen']}"


def _no_flash(device: str, dtype: str) -> str:
    return _no_kernel(device, dtype) or (
        "" if importlib.util.find_spec("flash_attn") else "flash-attn is not installed"
    )


def _no_varlen(device: str, dtype: str) -> str:
    found = importlib.util.find_spec("torch.nn.attention.varlen")
    return _no_kernel(device, dtype) or ("" if found else "this torch has no torch.nn.attention.varlen")


def _no_kernel(device: str, dtype: str) -> str:
    if not device.startswith("cuda"):
        return f"variable-length kernels need CUDA, the device is {device}"
    if dtype not in ("bfloat16", "float16"):
        return f"variable-length kernels need bfloat16 or float16, the dtype is {dtype}"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "variable-length kernels need compute capability 8.0"
    return ""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - inference drops nothing
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    packed: Packed | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What `AttentionInterface` calls. query (1, H, T, D), key and value (1, H', T, D) with H a multiple of H'.

    :raises UnsupportedAttention: see the module.
    """
    if packed is None:
        raise UnsupportedAttention("the model does not hand keywords down to its attention")
    refused = [name for name in _REFUSED if kwargs.get(name) is not None and kwargs[name] is not False]
    if attention_mask is not None:
        refused.append("attention_mask")
    if refused or query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise UnsupportedAttention(f"its attention uses {', '.join(refused) or 'a shape of its own'}")
    packed.calls += 1
    causal = _is_causal(module, is_causal)
    # transformers counts the token itself in a window: `sliding_window` of 65 reaches 64 tokens back.
    reach = None if sliding_window is None or sliding_window > packed.max_seqlen else sliding_window - 1
    q_THD, k_THD, v_THD = (x[0].transpose(0, 1) for x in (query, key, value))
    run = (
        {"flash": _flash, "varlen": _varlen}.get(packed.kernel, _by_group) if _fits_kernels(query, value) else _by_group
    )
    return run(q_THD, k_THD, v_THD, packed, scaling, causal, reach).unsqueeze(0), None


def _fits_kernels(query: Tensor, value: Tensor) -> bool:
    """Variable-length kernels take half precision and heads of at most 256, a multiple of 8, all of one width."""
    width = query.shape[-1]
    return query.dtype in (torch.bfloat16, torch.float16) and width == value.shape[-1] <= 256 and width % 8 == 0


def _is_causal(module: nn.Module, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    config = getattr(module, "config", None)
    return bool(getattr(module, "is_causal", True)) and getattr(config, "is_causal", True) is not False


def _by_group(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, packed: Packed, scale: float | None, causal: bool, reach: int | None
) -> Tensor:
    """One SDPA a length. Each group is a strided view (n, H, L, D) into q, k and v: no copy, no padding, no mask."""
    outs = []
    for begin, num, length in packed.groups:
        q, k, v = (
            x[begin : begin + num * length].view(num, length, *x.shape[1:]).transpose(1, 2)
            for x in (q_THD, k_THD, v_THD)
        )
        if reach is not None and length > min(WINDOW_BLOCKS * (reach + 1), MAX_WHOLE) and packed.unseen_T is None:
            out = _by_window(q, k, v, reach, causal, scale)
        else:
            mask = _mask(packed, begin, num, length, causal, reach)
            out = _sdpa(q, k, v, mask, scale, causal=causal and mask is None and length > 1)
        outs.append(out.transpose(1, 2).flatten(0, 1))
    if not outs:
        return q_THD.new_zeros((0, q_THD.shape[1], v_THD.shape[2]))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, *, causal: bool) -> Tensor:
    return nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _by_window(q: Tensor, k: Tensor, v: Tensor, reach: int, causal: bool, scale: float | None) -> Tensor:
    """Long sequences under a sliding window, a stretch of queries at a time with the keys in their reach: neither the
    mask nor the scores ever have L x L numbers."""
    length, step = q.shape[2], min(max(reach + 1, 256), 1024)
    outs = []
    for begin in range(0, length, step):
        end = min(begin + step, length)
        low, high = max(begin - reach, 0), end if causal else min(end + reach, length)
        back = torch.arange(begin, end, device=q.device)[:, None] - torch.arange(low, high, device=q.device)[None, :]
        mask = (back.abs() <= reach) & (back >= 0) if causal else back.abs() <= reach
        outs.append(_sdpa(q[:, :, begin:end], k[:, :, low:high], v[:, :, low:high], mask, scale, causal=False))
    return torch.cat(outs, dim=2)


def _mask(packed: Packed, begin: int, num: int, length: int, causal: bool, reach: int | None) -> Tensor | None:
    """bool, broadcast to (num, H, L, L): True where a token may look; None where SDPA needs none."""
    windowed = reach is not None and length - 1 > reach
    if packed.unseen_T is None and not windowed:
        return None
    device = packed.cu_seqlens.device
    mask = _window_mask(packed, length, reach if windowed and reach is not None else length, causal, device)
    if packed.unseen_T is None:
        return mask
    return mask & ~packed.unseen_T[begin : begin + num * length].view(num, 1, 1, length)


def _window_mask(packed: Packed, length: int, reach: int, causal: bool, device: torch.device) -> Tensor:
    """bool (L, L), True where a token may look; shared by the layers of one pass."""
    key = (length, reach, causal)
    if key not in packed.masks:
        place = torch.arange(length, device=device)
        back = place[:, None] - place[None, :]
        packed.masks[key] = (back.abs() <= reach) & (back >= 0) if causal else back.abs() <= reach
    return packed.masks[key]


def _window(causal: bool, reach: int | None) -> tuple[int, int]:
    left = -1 if reach is None else reach
    return left, 0 if causal else left


def _varlen(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, packed: Packed, scale: float | None, causal: bool, reach: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q_THD, k_THD, v_THD, packed.cu_seqlens, packed.cu_seqlens, packed.max_seqlen, packed.max_seqlen,
        scale=scale, window_size=_window(causal, reach), enable_gqa=q_THD.shape[1] != k_THD.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def _flash(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, packed: Packed, scale: float | None, causal: bool, reach: int | None
) -> Tensor:
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    out: Tensor = flash_attn_varlen_func(
        q_THD, k_THD, v_THD, packed.cu_seqlens, packed.cu_seqlens, packed.max_seqlen, packed.max_seqlen,
        softmax_scale=scale, causal=causal, window_size=_window(causal, reach),
    )  # fmt: skip
    return out


def register() -> None:
    """Make `NAME` known to transformers. Safe to call again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Sequences are kept apart by `Packed`; transformers need build nothing."""
