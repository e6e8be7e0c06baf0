"""From token vectors to the scores of a reranker or classifier, and from raw scores to what leaves.

Enters: hidden (T, E) of a packed batch. Leaves: float32 (N, labels). Heads are transformers' own modules, given one
pooled token a sequence, so that no model's head is written again here; all of it runs in float32.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from embedctl.errors import ModelError
from embedctl.heads.pooling import pool

Activation = Callable[[Tensor], Tensor]
Pooled = Literal["cls", "lasttoken", "mean"]
POOLED: tuple[Pooled, ...] = ("cls", "lasttoken", "mean")
"""What heads of classification look at, the commonest first."""
_NAMES = {"none": "torch.nn.Identity", "sigmoid": "torch.nn.Sigmoid"}


class ClassifierHead(nn.Module):
    """The head of a `...ForSequenceClassification`: everything of it but its encoder, in float32."""

    def __init__(self, model: nn.Module) -> None:
        """The model is left as it is; what is taken of it is copied."""
        super().__init__()
        prefix, base = str(model.base_model_prefix), _base_of(model)
        self.head = _without_encoder(model, prefix, base)
        self.num_labels: int = self.head.config.num_labels
        pad = self.head.config.get_text_config().pad_token_id
        self._token = 1 if pad == 0 else 0

    def forward(self, pooled_NE: Tensor) -> Tensor:
        """float32 (N, E) to raw scores, float32 (N, labels)."""
        hidden_N1E = pooled_NE.float().unsqueeze(1)
        # Heads of decoders look for the last token that is not padding: the one there is must not look like it.
        tokens_N1 = torch.full((len(pooled_NE), 1), self._token, device=pooled_NE.device)
        out: Any = self.head(
            input_ids=tokens_N1, inputs_embeds=hidden_N1E, attention_mask=torch.ones_like(tokens_N1), return_dict=True
        )
        scores: Tensor = out.logits.float()
        return scores.reshape(len(pooled_NE), -1)


class _Given(nn.Module):
    """Stands where the encoder was, and gives back what it would have computed."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        pooler = getattr(base, "pooler", None)
        self.pooler = copy.deepcopy(pooler).float() if isinstance(pooler, nn.Module) else None
        activation = getattr(base, "pooler_activation", None)
        self.activation = copy.deepcopy(activation) if isinstance(activation, nn.Module) else None

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

        del input_ids
        assert inputs_embeds is not None
        pooled = None
        if isinstance(self.pooler, nn.Linear) and self.activation is not None:  # ALBERT's pooler is in two parts
            pooled = self.activation(self.pooler(inputs_embeds[:, 0]))
        elif self.pooler is not None:
            pooled = self.pooler(inputs_embeds)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=inputs_embeds, pooler_output=pooled)


def _base_of(model: nn.Module) -> nn.Module:
    base: nn.Module = model.base_model  # type: ignore[assignment]
    if base is model:
        raise ModelError(f"{type(model).__name__} has no encoder apart from its head")
    return base


def _without_encoder(model: nn.Module, prefix: str, base: nn.Module) -> Any:
    head: Any = copy.copy(model)
    own = {name: copy.deepcopy(part).float() for name, part in model._modules.items() if part and name != prefix}
    head._modules = {**own, prefix: _Given(base)}
    head.config = copy.deepcopy(model.config)
    text = head.config.get_text_config()
    if text.pad_token_id is None:  # several sequences at once are refused without one, though nothing is padded
        text.pad_token_id = 0
    return head.eval()


class LogitHead(nn.Module):
    """The logit of one word less that of another, of all that a decoder could say next."""

    num_labels = 1

    def __init__(self, output: nn.Module, true_id: int, false_id: int | None) -> None:
        """`output`: the decoder's last layer, (V, E). :raises ModelError: it has no such words."""
        super().__init__()
        weight: Any = output.weight
        bias: Any = getattr(output, "bias", None)
        if max(true_id, false_id or 0) >= len(weight):
            raise ModelError(f"token {max(true_id, false_id or 0)} is not one of the model's {len(weight)}")
        with torch.no_grad():
            row = weight[true_id].float() - (0 if false_id is None else weight[false_id].float())
            constants = (0.0 if bias is None or i is None else float(bias[i]) for i in (true_id, false_id))
        true, false = constants
        self._ids = (true_id, false_id)
        self.row_E: Tensor
        self.register_buffer("row_E", row)
        self.constant = true - false

    def forward(self, pooled_NE: Tensor) -> Tensor:
        """float32 (N, E) to float32 (N, 1)."""
        scores: Tensor = pooled_NE.float() @ self.row_E + self.constant
        return scores.unsqueeze(1)

    def odds(self, logits_NV: Tensor) -> Tensor:
        """The same of logits already computed: (N, V) to (N, 1)."""
        true_id, false_id = self._ids
        scores = logits_NV[:, true_id] - (0 if false_id is None else logits_NV[:, false_id])
        return scores.unsqueeze(1)


def pooled_token(hidden_TE: Tensor, cu_seqlens: Tensor, what: Pooled) -> Tensor:
    """float32 (N, E): the first or last token of each sequence, or the mean of all."""
    return pool(hidden_TE, cu_seqlens, (what,))


def activation(name: str) -> Activation:
    """`none`, `sigmoid`, `softmax` (over the labels), or a class of torch.nn by its path.

    :raises ModelError: no such class.
    """
    path = _NAMES.get(name, name)
    if path == "softmax" or path.endswith(".Softmax"):
        return lambda scores: torch.softmax(scores, dim=-1)
    module, _, kind = path.rpartition(".")
    found = getattr(importlib.import_module(module), kind, None) if path.startswith("torch.nn.") else None
    if isinstance(found, type) and issubclass(found, nn.Module):
        try:
            made: nn.Module = found()
            return made
        except TypeError:
            pass
    raise ModelError(f"activation {name!r} is not one of torch.nn, so it is not understood", hint="--activation none")
