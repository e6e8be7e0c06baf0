"""What a sentence-transformers folder may put around the pooling: Dense, LayerNorm, Normalize, and the Matryoshka cut.

Enters: float32 (..., E). Leaves: float32. Everything here runs in float32 whatever the encoder's dtype is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from embedctl.errors import ModelError


class DenseLayer(nn.Module):
    """activation(x W^T + b), plus x or its projection when residual."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        *,
        in_features: int,
        out_features: int,
        bias: bool,
        activation: str,
        residual: bool,
    ) -> None:
        """:raises ModelError: an activation that is not torch's own, or weights of another shape."""
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = _activation(activation)
        self.residual = residual
        self.projected = (
            nn.Linear(in_features, out_features, bias=False) if residual and in_features != out_features else None
        )
        named: dict[str, Tensor] = {"linear.weight": self.linear.weight}
        if bias:
            named["linear.bias"] = self.linear.bias
        if self.projected is not None:
            named["residual.weight"] = self.projected.weight
        _fill(named, weights)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        out: Tensor = self.activation(self.linear(x))
        if not self.residual:
            return out
        return out + (x if self.projected is None else self.projected(x))


class NormLayer(nn.Module):
    """LayerNorm over the last axis."""

    def __init__(self, weights: Mapping[str, Tensor], dimension: int) -> None:
        """:raises ModelError: weights of another shape."""
        super().__init__()
        self.norm = nn.LayerNorm(dimension)
        _fill({"norm.weight": self.norm.weight, "norm.bias": self.norm.bias}, weights)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x)
        return out


def normalize(x: Tensor) -> Tensor:
    """Length 1 along the last axis; zeros stay zeros."""
    return nn.functional.normalize(x, p=2.0, dim=-1)


def _fill(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        given = weights.get(name)
        if given is None or given.shape != parameter.shape:
            got = "missing" if given is None else f"of shape {tuple(given.shape)}"
            raise ModelError(f"{name} is {got}, expected {tuple(parameter.shape)}")
        with torch.no_grad():
            parameter.copy_(given)
        parameter.requires_grad_(False)


def _activation(path: str) -> nn.Module:
    """The torch.nn class of that path, such as torch.nn.modules.activation.Tanh."""
    module, _, name = path.rpartition(".")
    if path.startswith("torch.nn."):
        found = getattr(importlib.import_module(module), name, None)
        if isinstance(found, type) and issubclass(found, nn.Module):
            made: nn.Module = found()
            return made
    raise ModelError(f"activation {path!r} is not one of torch.nn, so it is not understood")
