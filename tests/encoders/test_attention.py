"""The one attention function, held to plain softmax over each sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from embedctl.encoders.attention import (
    Group,
    Packed,
    UnsupportedAttention,
    choose_attention,
    groups_of,
    packed_attention,
)
from embedctl.errors import UsageError


def plain(q, k, v, *, scale: float, causal: bool, window: int | None):
    """(L, H, D) of one sequence, softmax written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    back = torch.arange(len(q))[:, None] - torch.arange(len(q))[None, :]
    hidden = torch.zeros_like(back, dtype=torch.bool)
    if causal:
        hidden |= back < 0
    if window is not None:
        hidden |= back.abs() >= window
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_equals_plain_softmax(causal: bool, window: int | None, kv_heads: int) -> None:
    torch.manual_seed(1)
    lengths = [1, 1, 3, 5, 5, 5, 9]
    cu = np.concatenate(([0], np.cumsum(lengths)))
    q, k, v = (torch.randn(1, h, cu[-1], 8) for h in (4, kv_heads, kv_heads))
    packed = Packed(cu_seqlens=torch.from_numpy(cu), groups=groups_of(cu), max_seqlen=9)
    out, _ = packed_attention(
        torch.nn.Module(), q, k, v, None, scaling=0.3, is_causal=causal, sliding_window=window, packed=packed
    )
    assert out.shape == (1, cu[-1], 4, 8)
    assert packed.calls == 1
    for a, b in itertools.pairwise(cu):
        part = [x[0, :, a:b].transpose(0, 1) for x in (q, k, v)]
        expected = plain(*part, scale=0.3, causal=causal, window=window)
        assert torch.allclose(out[0, a:b], expected, atol=1e-6)


def test_groups_are_runs_of_equal_length() -> None:
    assert groups_of(np.array([0, 0, 2, 4, 7])) == (Group(0, 2, 2), Group(4, 1, 3))
    assert groups_of(np.array([0])) == ()


@pytest.mark.parametrize("extra", [{"softcap": 30.0}, {"s_aux": object()}, {"position_bias": object()}])
def test_what_cannot_be_honoured_is_refused(extra: dict[str, object]) -> None:
    x = torch.zeros(1, 2, 3, 4)
    packed = Packed(cu_seqlens=torch.tensor([0, 3]), groups=(Group(0, 1, 3),), max_seqlen=3)
    with pytest.raises(UnsupportedAttention, match=next(iter(extra))):
        packed_attention(torch.nn.Module(), x, x, x, None, packed=packed, **extra)
    with pytest.raises(UnsupportedAttention, match="keywords"):
        packed_attention(torch.nn.Module(), x, x, x, None)


def test_choice_says_why() -> None:
    name, why = choose_attention("cpu", "bfloat16")
    assert name == "sdpa"
    assert why == "groups of equal length, no padding; variable-length kernels need CUDA, the device is cpu"
    assert choose_attention("cpu", "float32", "sdpa") == ("sdpa", "asked for")
    with pytest.raises(UsageError, match="--attention flash: variable-length kernels need CUDA, the device is cpu"):
        choose_attention("cpu", "float32", "flash")
    with pytest.raises(UsageError, match="--attention: 'fast' is not one of auto, flash, varlen, sdpa"):
        choose_attention("cpu", "float32", "fast")
