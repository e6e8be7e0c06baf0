"""Matrix products of a layer on a CPU: torch's, or our own over AMX tiles, which do bias and GELU on the way.

Enters: x (T, K) and a weight as its own `lay_out` left it. Leaves: (T, N) in a buffer of the caller's. Weights of other
than whole tiles are torch's to multiply.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from embedctl.encoders.native import TILE_ROWS, Kernels


class Products(Protocol):
    """x and out in the compute dtype; biases float32 (N,)."""

    def lay_out(self, weight_NK: Tensor) -> Tensor:
        """The weight as the others want it."""

    def plain(self, x_TK: Tensor, weight: Tensor, out_TN: Tensor) -> None:
        """x weight^T."""

    def biased(self, x_TK: Tensor, weight: Tensor, bias_N: Tensor, out_TN: Tensor) -> None:
        """x weight^T + bias."""

    def gelu(self, x_TK: Tensor, weight: Tensor, bias_N: Tensor, out_TN: Tensor) -> None:
        """gelu(x weight^T + bias)."""


class TorchProducts:
    """`torch.mm` on transposed weights; what follows it is a pass of its own."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def lay_out(self, weight_NK: Tensor) -> Tensor:
        """(K, N), a view."""
        return weight_NK.t()

    def plain(self, x_TK: Tensor, weight: Tensor, out_TN: Tensor) -> None:
        """See `Products`."""
        torch.mm(x_TK, weight, out=out_TN)

    def biased(self, x_TK: Tensor, weight: Tensor, bias_N: Tensor, out_TN: Tensor) -> None:
        """See `Products`."""
        torch.mm(x_TK, weight, out=out_TN)
        out_TN += bias_N.to(out_TN.dtype)

    def gelu(self, x_TK: Tensor, weight: Tensor, bias_N: Tensor, out_TN: Tensor) -> None:
        """See `Products`."""
        torch.mm(x_TK, weight, out=out_TN)
        self._kernels.bias_gelu(out_TN, bias_N)


class TiledProducts:
    """Our own, for bfloat16 and widths that are multiples of 32. x is read up to a multiple of `TILE_ROWS` rows."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def lay_out(self, weight_NK: Tensor) -> Tensor:
        """(N, K) in the order in which tiles are loaded."""
        return self._kernels.pack_weights(weight_NK)

    def plain(self, x_TK: Tensor, weight: Tensor, out_TN: Tensor) -> None:
        """See `Products`."""
        self._kernels.product(x_TK, weight, None, out_TN)

    def biased(self, x_TK: Tensor, weight: Tensor, bias_N: Tensor, out_TN: Tensor) -> None:
        """See `Products`."""
        self._kernels.product(x_TK, weight, bias_N, out_TN)

    def gelu(self, x_TK: Tensor, weight: Tensor, bias_N: Tensor, out_TN: Tensor) -> None:
        """See `Products`."""
        self._kernels.product(x_TK, weight, bias_N, out_TN, with_gelu=True)


def room_for(rows: int) -> int:
    """Rows to allocate for so many, that a tiled product may read them."""
    return -(-rows // TILE_ROWS) * TILE_ROWS
