"""What follows the transformer, one head for each output: pooled and projected vectors, sparse ones, one a token.

Enters: hidden (T, E) of a packed batch. Leaves: values of one kind, float32, on the CPU. All of it runs in float32, but
the product with a vocabulary, which runs in the model's own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.masked_lm import Vocabulary
from embedctl.encoders.staging import to_host
from embedctl.encoders.weights import load_tensors
from embedctl.errors import ModelError
from embedctl.heads.late_interaction import merged, offsets_of, token_vectors
from embedctl.heads.pooling import pool
from embedctl.heads.projection import DenseLayer, NormLayer, normalize
from embedctl.heads.sparse import Pruning, greatest_of_each, sparsify
from embedctl.heads.splade import splade
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import (
    AutoEncoder,
    Dense,
    Late,
    LayerNorm,
    Module,
    Normalize,
    Pooling,
    Splade,
    TokenPooling,
    TokenWeights,
)
from embedctl.outputs import Multivector, OutputKind, Sparse, Values
from embedctl.records import Batch

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What was run. cu_seqlens: int64 (N + 1,) on the device."""

    batch: Batch
    cu_seqlens: Tensor


class Head(Protocol):
    """Makes one kind of output."""

    dim: int
    """See `OutputSpec.dim`."""

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> Values:
        """A value for each of the batch's sequences; hidden (T, E) on the device, in the model's dtype."""
        ...


Heads = Mapping[OutputKind, Head]


class Tail:
    """Pooling, Dense, LayerNorm, Normalize, the Matryoshka cut, in the folder's order: float32 (N, dim)."""

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
                steps.append(step_of(module, device, allow_pickle=folder.allow_pickle))
        left_out = self._pooling is not None and not self._pooling.include_prompt
        self._num_skipped = num_prompt_tokens if left_out else 0

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> np.ndarray:
        """See `Head`."""
        return to_host(self.vectors(hidden_TE, tokens.cu_seqlens))

    def vectors(self, hidden_TE: Tensor, cu_seqlens: Tensor) -> Tensor:
        """float32 (N, dim) on the device. cu_seqlens: int64 (N + 1,)."""
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


class SpladeHead:
    """Scores of the vocabulary, pooled. See `heads.splade` for what it holds at once. vocabularies: by dtype."""

    def __init__(self, vocabularies: Mapping[torch.dtype, Vocabulary], settings: Splade, pruning: Pruning) -> None:
        self.dim = settings.vocabulary
        self._vocabularies, self._settings, self._pruning = vocabularies, settings, pruning

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> Sparse:
        """See `Head`."""
        vocabulary, lengths = self._vocabularies[hidden_TE.dtype], np.diff(tokens.batch.cu_seqlens)
        return splade(
            vocabulary(hidden_TE), lengths.tolist(), vocabulary.weight, vocabulary.bias,
            pooling=self._settings.pooling, log_twice=self._settings.log_twice, pruning=self._pruning,
            maxima=vocabulary.maxima,
        )  # fmt: skip


class TokenWeightsHead:
    """BGE-M3's sparse output. special: ids that count nothing."""

    def __init__(
        self, settings: TokenWeights, special: frozenset[int], pruning: Pruning, *, device: str, allow_pickle: bool
    ) -> None:
        self.dim = settings.vocabulary
        self._project = step_of(settings.projection, device, allow_pickle=allow_pickle)
        self._special = np.array(sorted(special), dtype=np.int64)
        self._pruning = pruning

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> Sparse:
        """See `Head`."""
        weights = to_host(torch.relu(self._project(hidden_TE.float())[:, 0]))
        ids = tokens.batch.input_ids_T
        weights = np.where(np.isin(ids, self._special), np.float32(0), weights)
        return greatest_of_each(ids, weights, tokens.batch.cu_seqlens, self._pruning)


class AutoEncoderHead:
    """CSR: features of the pooled vector."""

    def __init__(self, tail: Tail, settings: AutoEncoder, pruning: Pruning, *, device: str, allow_pickle: bool) -> None:
        """:raises ModelError: weights are missing or of another shape."""
        self.dim = settings.vocabulary
        self._tail, self._normalize = tail, settings.normalize
        self._pruning = Pruning(top_k=pruning.top_k or settings.top_k, threshold=pruning.threshold)
        weights = load_tensors(settings.path, allow_pickle=allow_pickle)
        if "decoder.linear.weight" in weights:  # one matrix under two names, of which a file keeps either
            weights.setdefault("encoder.weight", weights["decoder.linear.weight"])
        shapes = {
            "pre_bias": (settings.width,),
            "encoder.weight": (self.dim, settings.width),
            "latent_bias": (self.dim,),
        }
        for name, shape in shapes.items():
            if name not in weights or tuple(weights[name].shape) != shape:
                raise ModelError(f"{settings.path}: {name} is missing or not of shape {shape}")
        self._before, self._weight, self._after = (weights[name].to(device) for name in shapes)

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> Sparse:
        """See `Head`."""
        x_NE = self._tail.vectors(hidden_TE, tokens.cu_seqlens)
        if self._normalize:
            x_NE = x_NE - x_NE.mean(dim=-1, keepdim=True)
            x_NE = x_NE / (x_NE.std(dim=-1, keepdim=True) + 1e-5)
        return sparsify(nn.functional.linear(x_NE - self._before, self._weight, self._after), self._pruning)


class LateHead:
    """A vector a token. skipped: ids whose tokens give none."""

    def __init__(
        self, settings: Late, skipped: frozenset[int], pooling: TokenPooling | None, *, device: str, dim: int,
        allow_pickle: bool,
    ) -> None:  # fmt: skip
        self.dim = dim
        self._settings, self._pooling = settings, pooling
        self._steps = [step_of(module, device, allow_pickle=allow_pickle) for module in settings.steps]
        self._skipped = np.array(sorted(skipped), dtype=np.int64)

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> Multivector:
        """See `Head`."""
        kept_T = self._kept(tokens.batch)
        vectors = token_vectors(hidden_TE, torch.from_numpy(kept_T).to(hidden_TE.device), self._steps, dim=self.dim)
        found = Multivector(offsets=offsets_of(kept_T, tokens.batch.cu_seqlens), vectors=vectors)
        if self._pooling is None:
            return found
        pooling = self._pooling
        return merged(found, factor=pooling.factor, protected=pooling.protected, normalized=pooling.normalize)

    def _kept(self, batch: Batch) -> np.ndarray:
        """bool (T,): tokens that give a vector."""
        kept = ~np.isin(batch.input_ids_T, self._skipped)
        if self._settings.only:
            kept &= np.isin(batch.input_ids_T, np.array(self._settings.only))
        if self._settings.skip_first:
            starts = np.repeat(batch.cu_seqlens[:-1].astype(np.int64), np.diff(batch.cu_seqlens))
            kept &= np.arange(batch.num_tokens) - starts >= self._settings.skip_first
        return kept


def step_of(module: Module, device: str, *, allow_pickle: bool) -> Step:
    """The module, its weights loaded, in float32. :raises ModelError: they are broken."""
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
