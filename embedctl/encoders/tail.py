"""What follows the transformer: pooling, Dense, LayerNorm, Normalize, the Matryoshka cut, in the folder's order.

Enters: hidden (T, E) of a packed batch. Leaves: float32 (N, dim). All of it runs in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from embedctl.encoders.weights import load_tensors
from embedctl.errors import ModelError
from embedctl.heads.pooling import pool
from embedctl.heads.projection import DenseLayer, NormLayer, normalize
from embedctl.models.folder import Dense, LayerNorm, ModelFolder, Module, Normalize, Pooling

Step = Callable[[Tensor], Tensor]


class Tail:
    """Callable: hidden (T, E) and cu_seqlens int64 (N + 1,), both on `device`, to float32 (N, dim)."""

    def __init__(
        self, folder: ModelFolder, *, device: str, pooling: str | None, dim: int, num_prompt_tokens: int
    ) -> None:
        """`pooling` replaces the folder's modes. :raises ModelError: weights of a module are broken."""
        self.dim = dim
        self._full = folder.width(pooling)
        self._normalize = folder.normalize
        self._before: list[Step] = []
        self._after: list[Step] = []
        self._pooling: Pooling | None = None
        for module in folder.modules:
            if isinstance(module, Pooling):
                self._pooling = Pooling(modes=(pooling,), include_prompt=module.include_prompt) if pooling else module
            else:
                steps = self._before if self._pooling is None and folder.pooling is not None else self._after
                steps.append(_step(module, device, folder.allow_pickle))
        left_out = self._pooling is not None and not self._pooling.include_prompt
        self._num_skipped = num_prompt_tokens if left_out else 0

    def __call__(self, hidden_TE: Tensor, cu_seqlens: Tensor) -> Tensor:
        for step in self._before:
            hidden_TE = step(hidden_TE.float())
        assert self._pooling is not None
        return self.finish(pool(hidden_TE, cu_seqlens, self._pooling.modes, num_skipped=self._num_skipped))

    def finish(self, pooled_NE: Tensor) -> Tensor:
        """Everything after the pooling: float32 (N, E) to float32 (N, dim)."""
        for step in self._after:
            pooled_NE = step(pooled_NE)
        if self.dim < self._full:
            pooled_NE = pooled_NE[:, : self.dim]
            if self._normalize:
                pooled_NE = normalize(pooled_NE)
        return pooled_NE


def _step(module: Module, device: str, allow_pickle: bool) -> Step:
    if isinstance(module, Normalize):
        return normalize
    assert isinstance(module, (Dense, LayerNorm))
    weights = load_tensors(module.path, allow_pickle=allow_pickle)
    try:
        if isinstance(module, LayerNorm):
            return NormLayer(weights, module.dimension).to(device).eval()
        return (
            DenseLayer(
                weights, in_features=module.in_features, out_features=module.out_features, bias=module.bias,
                activation=module.activation, residual=module.residual,
            )
            .to(device)
            .eval()
        )  # fmt: skip
    except ModelError as exc:
        raise ModelError(f"{module.path}: {exc}") from exc
