"""Long batches in bounded memory: what looks at each token alone runs over a stretch of tokens at a time.

Enters: a model of transformers. Leaves: the same, its MLPs wrapped: beside the hidden states a layer then holds the
wide numbers of `CHUNK_TOKENS` tokens, however long the batch. The attention bounds itself (see `attention`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CHUNK_TOKENS = 8192
"""Enough rows for a product of matrices to be as fast as it gets, on a CPU and on a GPU."""


def bound_memory(model: nn.Module) -> None:
    """Wrap every MLP of the model. Those of transformers take (1, T, E) and look at each token alone."""
    for module in model.modules():
        if type(module).__name__.endswith("MLP"):
            module.forward = _by_stretch(module.forward)


def _by_stretch(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or x.ndim != 3 or x.shape[1] <= CHUNK_TOKENS:
            return forward(x, *args, **kwargs)
        return torch.cat([forward(part) for part in torch.split(x, CHUNK_TOKENS, dim=1)], dim=1)

    return run
