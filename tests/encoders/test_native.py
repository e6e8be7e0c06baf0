"""Every compiled kernel against its plain twin in torch, and life without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from embedctl.encoders import native

KERNELS, WHY = native.load()
needs_kernels = pytest.mark.skipif(KERNELS is None, reason=WHY)
needs_tiles = pytest.mark.skipif(KERNELS is None or not KERNELS.has_tiles, reason="no AMX tiles here")
TOLERANCE = {torch.bfloat16: 2**-7, torch.float32: 2e-6}


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 17), (64, 384), (5, 1536)])
def test_bias_gelu(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(rows)
    x, bias = (torch.randn(rows, width) * 4).to(dtype), torch.randn(width)
    expected = functional.gelu(x.float() + bias)
    assert KERNELS is not None
    found = KERNELS.bias_gelu(x, bias).float()
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=max(TOLERANCE[dtype] / 4, 2e-6))


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 17), (64, 384), (5, 1024)])
def test_add_norm(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(rows)
    x, residual = torch.randn(rows, width).to(dtype), torch.randn(rows, width).to(dtype)
    bias, gamma, beta = torch.randn(3, width)
    expected = functional.layer_norm(x.float() + bias + residual.float(), (width,), gamma, beta, 1e-12)
    assert KERNELS is not None
    KERNELS.add_norm(x, bias, residual, gamma, beta, 1e-12)
    torch.testing.assert_close(residual.float(), expected, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@needs_tiles
@pytest.mark.parametrize("head_width", [32, 64, 96])
@pytest.mark.parametrize("lengths", [[1], [16], [33, 33, 2], [100, 17, 16, 15, 1], [512, 3], [0, 5, 0], [1] * 9])
def test_attend(head_width: int, lengths: list[int]) -> None:
    torch.manual_seed(sum(lengths))
    heads, total = 3, sum(lengths)
    width = heads * head_width
    qkv = torch.randn(total, 3 * width).bfloat16()
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    found = torch.full((total, width), float("nan"), dtype=torch.bfloat16)
    assert KERNELS is not None
    KERNELS.attend(qkv, cu_seqlens, heads, max(lengths), found)
    q, k, v = (x.view(total, heads, head_width).transpose(0, 1).float() for x in qkv.split(width, 1))
    for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        rows = slice(begin, end)
        expected = functional.scaled_dot_product_attention(q[:, rows], k[:, rows], v[:, rows])
        torch.testing.assert_close(found[rows].float(), expected.transpose(0, 1).flatten(1), rtol=0.02, atol=0.02)


@needs_tiles
def test_nan_stays_in_its_sequence() -> None:
    qkv = torch.randn(40, 96).bfloat16()
    qkv[3] = float("nan")
    out = torch.zeros(40, 32, dtype=torch.bfloat16)
    assert KERNELS is not None
    KERNELS.attend(qkv, torch.tensor([0, 20, 40], dtype=torch.int32), 1, 20, out)
    assert out[:20].isnan().any()
    assert not out[20:].isnan().any()


@pytest.mark.parametrize(
    ("compiler", "says"), [("false", "could not compile"), ("/nowhere/cc", "could not be compiled or loaded")]
)
def test_without_a_working_compiler_there_is_a_reason(compiler: str, says: str, tmp_path: object) -> None:
    code = "from embedctl.encoders import native; kernels, why = native.load(); assert kernels is None; print(why)"
    environ = {**os.environ, "CC": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


@needs_tiles
@pytest.mark.parametrize("with_gelu", [False, True])
@pytest.mark.parametrize(
    ("rows", "dims", "width"), [(1, 32, 32), (31, 64, 96), (33, 384, 1536), (200, 1536, 384), (40, 96, 8192)]
)
def test_product(rows: int, dims: int, width: int, with_gelu: bool) -> None:
    torch.manual_seed(rows)
    x = torch.full((-(-rows // 32) * 32, dims), float("nan"), dtype=torch.bfloat16)[:rows]
    x.copy_(torch.randn(rows, dims))
    weight, bias = (torch.randn(width, dims) / dims**0.5).bfloat16(), torch.randn(width)
    found = torch.full((rows + 1, width), 7.0, dtype=torch.bfloat16)
    assert KERNELS is not None
    KERNELS.product(x, KERNELS.pack_weights(weight), bias, found[:rows], with_gelu=with_gelu)
    expected = x.float() @ weight.float().t() + bias
    expected = functional.gelu(expected) if with_gelu else expected
    torch.testing.assert_close(found[:rows].float(), expected, rtol=2**-7, atol=2**-8)
    assert (found[rows] == 7).all()


@needs_tiles
def test_a_product_refuses_rows_it_may_not_read() -> None:
    weight, x = torch.zeros(32, 32, dtype=torch.bfloat16), torch.zeros(33, 32, dtype=torch.bfloat16)
    assert KERNELS is not None
    with pytest.raises(ValueError, match="33 rows have no memory up to a multiple of 32"):
        KERNELS.product(x, KERNELS.pack_weights(weight), None, torch.zeros(33, 32, dtype=torch.bfloat16))


@needs_tiles
@pytest.mark.parametrize("width", [32, 128, 768])
@pytest.mark.parametrize("lengths", [[1], [5, 0, 31, 1], [32, 33, 600], [1] * 70])
def test_vocabulary_max(width: int, lengths: list[int]) -> None:
    chance = torch.Generator().manual_seed(width)
    x = torch.randn(sum(lengths), width, generator=chance).bfloat16()
    weight = torch.randn(1000, width, generator=chance).bfloat16()
    sequence_of = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths))
    found = KERNELS.vocabulary_max(x, sequence_of, len(lengths), KERNELS.pack_weights(weight))[:, :1000]
    parts = (x.float() @ weight.float().T).split(lengths)
    for row, part in zip(found, parts, strict=True):
        expected = part.amax(0) if len(part) else torch.full((1000,), float("-inf"))
        assert torch.allclose(row, expected, rtol=1e-4, atol=1e-4)
