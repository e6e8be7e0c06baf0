"""A masked language model in two: the transformer that runs packed like any other, and what makes scores of its states.

Enters: a model of transformers with a masked language model's head. Leaves: its base, and `Vocabulary`. Refuses: heads
that are not one Linear over the vocabulary behind layers that look at each token alone, found by a trial.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from embedctl.encoders import native
from embedctl.encoders.weights import DTYPES, load_transformer
from embedctl.errors import ModelError
from embedctl.heads.splade import Maxima
from embedctl.models.folder import ModelFolder


class MaskedLoader:
    """Loads as `load_transformer` does, and keeps what it took off the model, by dtype, in `heads`."""

    def __init__(self, *, compile: bool | None) -> None:
        """compile: see `open_encoder`."""
        self.heads: dict[torch.dtype, Vocabulary] = {}
        self._compile = compile

    def __call__(self, folder: ModelFolder, *, dtype: str, device: str, attention: str | None) -> nn.Module:
        """The base. :raises ModelError: see the module and `load_transformer`."""
        model = load_transformer(
            folder, dtype=dtype, device=device, attention=attention, auto_class="AutoModelForMaskedLM"
        )
        base, head = split(model, folder.name)
        if self._compile is not False:
            head.pack()
        self.heads[DTYPES[dtype]] = head
        return base


class _Given(nn.Module):
    """Stands in the base model's place and gives the hidden states that the caller has already."""

    def forward(self, *_args: Any, inputs_embeds: Tensor, **_kwargs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=inputs_embeds)


class Vocabulary(nn.Module):
    """The head: `forward` gives what its last Linear takes; weight (V, E) and bias (V,) are that Linear's own."""

    def __init__(self, model: nn.Module, last: nn.Linear) -> None:
        super().__init__()
        bias: Any = last.bias
        self.weight: Tensor = last.weight.detach()
        self.bias: Tensor | None = None if bias is None else bias.detach()
        self._model = model
        self._maxima: Maxima | None = None

    def pack(self) -> None:
        """Lay the weights out, once more, for the fused kernel, where processor, dtype and width allow it."""
        kernels = native.load()[0] if self.weight.device.type == "cpu" else None
        fits = self.weight.dtype == torch.bfloat16 and self.weight.shape[1] % 32 == 0
        if kernels is not None and kernels.has_tiles and fits:
            packed, run = kernels.pack_weights(self.weight), kernels.vocabulary_max
            self._maxima = lambda x_TE, sequence_of_T, count: run(x_TE, sequence_of_T, count, packed)

    @property
    def maxima(self) -> Maxima | None:
        """The fused kernel, which runs on one thread: None where there is none, or torch has more."""
        return self._maxima if torch.get_num_threads() == 1 else None

    def forward(self, hidden_TE: Tensor) -> Tensor:
        """(T, E) to (T, E')."""
        states: Tensor = self._model(inputs_embeds=hidden_TE.unsqueeze(0)).logits[0]
        return states


def split(model: Any, name: str) -> tuple[nn.Module, Vocabulary]:
    """(base, head). The model given is taken apart. :raises ModelError: see the module."""
    last: Any = model.get_output_embeddings()
    base: nn.Module = model.base_model
    prefix = model.base_model_prefix
    if not isinstance(last, nn.Linear) or base is model or getattr(model, prefix, None) is not base:
        raise ModelError(
            f"{name}: {type(model).__name__} has no Linear over its vocabulary, so it cannot give sparse vectors"
        )
    setattr(model, prefix, _Given())
    width = int(getattr(model.config, "hidden_size", None) or last.weight.shape[1])
    trial = torch.linspace(-1, 1, 3 * width, dtype=last.weight.dtype, device=last.weight.device).view(3, width)
    with torch.inference_mode():
        try:
            expected = model(inputs_embeds=trial.unsqueeze(0)).logits[0].float()
            _replace(model, last)
            head = Vocabulary(model, last)
            found = nn.functional.linear(head(trial), head.weight, head.bias).float()
        except Exception as exc:
            raise ModelError(f"{name}: its vocabulary head does not run alone: {exc}") from exc
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-2, atol=1e-2):
        raise ModelError(f"{name}: {type(model).__name__} does more than a Linear over its vocabulary")
    return base, head


def _replace(model: nn.Module, last: nn.Module) -> None:
    """Take the last Linear out, wherever the model holds it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is last:
                setattr(parent, name, nn.Identity())
