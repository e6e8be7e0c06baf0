"""What a reranker or classifier does with a text, as its folder says: where scores come from, and how they leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Head = Literal["classifier", "logits", "modules"]
"""classifier: the model's own classification head. logits: the odds of one word against another at the last token.
modules: pooling and a dense layer of sentence-transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """How a pair is written for a decoder. template: Jinja with the roles system, query and document, None for the
    tokenizer's own. structured: contents are lists of typed parts. options: the template's other variables."""

    template: str | None = None
    structured: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """activation: a class of torch.nn by its path, "" where the folder names none. true_id, false_id: the words of
    `logits`, the second may be missing. problem: `problem_type` of config.json, "" where it says nothing."""

    head: Head
    activation: str = ""
    problem: str = ""
    true_id: int = 0
    false_id: int | None = None
    chat: Chat | None = None

    @property
    def multi_label(self) -> bool:
        """Whether a text may have several labels at once, or none."""
        return self.problem == "multi_label_classification"

    def activation_for(self, task: str, num_labels: int, asked: str | None) -> str:
        """`none`, `sigmoid`, `softmax`, or a class of torch.nn by its path.

        Reranking follows sentence-transformers' CrossEncoder: what the folder says, else sigmoid for one label and
        nothing for several. Classifying follows transformers' pipeline: by the kind of problem and the labels.
        """
        if asked is not None:
            return asked
        if task == "rerank":
            return self.activation or ("sigmoid" if num_labels == 1 else "none")
        if self.problem == "regression":
            return "none"
        return "sigmoid" if self.multi_label or num_labels == 1 else "softmax"
