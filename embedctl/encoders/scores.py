"""Rerankers and classifiers: the encoder runs packed as for embedding, a head of transformers' own gives the scores.

Enters: a `ModelFolder` with a `scorer`. Leaves: an `Encoder` of one output, `score`. Which tokens a head looks at is
found by trying it against the whole model when it is opened; a model whose head asks for more runs whole, sequences of
one length together. Refuses: heads without weights, which would score at random.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.attention import choose_attention, groups_of
from embedctl.encoders.base import Encoder
from embedctl.encoders.open import open_body
from embedctl.encoders.padded import hidden_by_length
from embedctl.encoders.selftest import trial_batch
from embedctl.encoders.staging import as_ids, to_host
from embedctl.encoders.tail import Heads, Tail, Tokens
from embedctl.encoders.torch_encoder import TorchEncoder, accepts, uses_token_types
from embedctl.encoders.weights import load_transformer
from embedctl.errors import ModelError
from embedctl.heads.classify import (
    POOLED,
    Activation,
    ClassifierHead,
    LogitHead,
    Pooled,
    activation,
    pooled_token,
)
from embedctl.models.folder import ModelFolder
from embedctl.records import Batch

_TOLERANCE = {torch.float32: 1e-4}
_TOLERANCE_HALF = 0.1


def open_scorer(
    folder: ModelFolder, *, activation_name: str, dtype: str, device: str, threads: int | None = None,
    attention: str | None = None, compile: bool | None = None,
) -> Encoder:  # fmt: skip
    """`activation_name` as `Scorer.activation_for` gives it; dtype and device are resolved already.

    :raises ModelError: weights, head or activation cannot be opened.
    """
    scorer = folder.scorer
    assert scorer is not None
    act, kernel = activation(activation_name), choose_attention(device, dtype, attention)
    body = functools.partial(
        open_body, folder, dtype=dtype, device=device, threads=threads, kernel=kernel, compile=compile
    )
    if scorer.head == "modules":
        count = len(folder.labels)
        modules = Tail(folder, device=device, pooling=None, dim=count, num_prompt_tokens=0)
        return body(load_transformer, _heads(lambda hidden, run: modules.vectors(hidden, run.cu_seqlens), act, count))
    model = load_whole(folder, dtype=dtype, device=device, attention=None)
    head = _head_of(model, folder).to(device)
    count = head.num_labels
    what = _pooled_by(model, head, device)
    if what is not None:
        return body(_BaseLoader(model, dtype), _heads(_one_token(model, head, what), act, count))

    def as_given(scores: Tensor, _: Tokens) -> Tensor:
        return head.odds(scores) if isinstance(head, LogitHead) else scores

    def load(wanted: str) -> nn.Module:
        return load_whole(folder, dtype=wanted, device=device, attention=None)

    return WholeEncoder(
        load, _heads(as_given, act, count), dtype=dtype, device=device, threads=threads, model=model,
        notes=folder.notes,
    )  # fmt: skip


def load_whole(folder: ModelFolder, *, dtype: str, device: str, attention: str | None) -> nn.Module:
    """The model with its head. :raises ModelError: see `load_transformer`."""
    assert folder.scorer is not None
    auto = "AutoModelForCausalLM" if folder.scorer.head == "logits" else "AutoModelForSequenceClassification"
    return load_transformer(folder, dtype=dtype, device=device, attention=attention, auto_class=auto)


class _BaseLoader:
    """Gives the encoder of the whole model, as `load_transformer` would; the open one is not read again."""

    def __init__(self, opened: nn.Module, dtype: str) -> None:
        self._opened: nn.Module | None = opened
        self._dtype = dtype

    def __call__(self, folder: ModelFolder, *, dtype: str, device: str, attention: str | None) -> nn.Module:
        whole, self._opened = self._opened if dtype == self._dtype else None, None
        if whole is not None and attention is not None:
            switch: Callable[[str], Any] = whole.set_attn_implementation  # type: ignore[assignment]
            try:
                switch(attention)
            except (ValueError, ImportError):
                whole = None
        if whole is None:
            whole = load_whole(folder, dtype=dtype, device=device, attention=attention)
        base: nn.Module = whole.base_model  # type: ignore[assignment]
        return base


class ScoreHead:
    """Implements `encoders.tail.Head`. raw: hidden (T, E) and what was run -> raw scores (N, labels)."""

    def __init__(self, raw: Callable[[Tensor, Tokens], Tensor], act: Activation, dim: int) -> None:
        self.dim = dim
        self._raw, self._act = raw, act

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> np.ndarray:
        """See `Head`: float32 (N, labels)."""
        return to_host(self._act(self._raw(hidden_TE, tokens).float()))


class WholeEncoder(TorchEncoder):
    """The whole model on sequences of one length at a time: nothing is padded, nothing packed."""

    engine = "whole"

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        return whole_scores(model, batch, device=self._device)

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        reason = "its head looks at more than one token, so sequences of one length run together"
        return {**super().describe(), "attention": "own", "attention_reason": reason}


def whole_scores(model: nn.Module, batch: Batch, *, device: str) -> Tensor:
    """Raw scores (N, labels) of the whole model: its classes, or the logits of its last token."""
    parts = []
    for begin, count, length in groups_of(batch.cu_seqlens):
        tokens = slice(begin, begin + count * length)
        ids_NL = as_ids(batch.input_ids_T[tokens], device).view(count, length)
        inputs: dict[str, Any] = {"input_ids": ids_NL, "attention_mask": torch.ones_like(ids_NL)}
        if uses_token_types(model) and batch.token_type_ids_T is not None:
            inputs["token_type_ids"] = as_ids(batch.token_type_ids_T[tokens], device).view(count, length)
        if accepts(model, "logits_to_keep"):
            inputs["logits_to_keep"] = 1
        logits: Tensor = model(**inputs).logits
        parts.append(logits[:, -1] if logits.ndim == 3 else logits)
    return torch.cat(parts)


def _heads(raw: Callable[[Tensor, Tokens], Tensor], act: Activation, count: int) -> Heads:
    return {"score": ScoreHead(raw, act, count)}


def _one_token(whole: nn.Module, head: ClassifierHead | LogitHead, what: Pooled) -> Callable[[Tensor, Tokens], Tensor]:
    """Raw scores from the one token that the head looks at."""
    config: Any = whole.config
    padding = config.get_text_config().pad_token_id
    # transformers' decoders take the last token that is not padding, and some tokenizers end every text with that one.
    skipped = padding if isinstance(head, ClassifierHead) and what == "lasttoken" else None

    def raw(hidden_TE: Tensor, run: Tokens) -> Tensor:
        if skipped is None:
            scores: Tensor = head(pooled_token(hidden_TE, run.cu_seqlens, what))
            return scores
        last = torch.from_numpy(last_but(run.batch, skipped)).to(hidden_TE.device)
        found: Tensor = head(hidden_TE[last].float())
        return found

    return raw


def last_but(batch: Batch, padding: int) -> np.ndarray:
    """int64 (N,): the place of each sequence's last token that is not `padding`, its first where there is no other."""
    places = np.where(batch.input_ids_T != padding, np.arange(batch.num_tokens), -1)
    last = np.maximum.reduceat(places, batch.cu_seqlens[:-1].astype(np.int64))
    found: np.ndarray = np.maximum(last, batch.cu_seqlens[:-1]).astype(np.int64)
    return found


def _head_of(whole: nn.Module, folder: ModelFolder) -> ClassifierHead | LogitHead:
    scorer = folder.scorer
    assert scorer is not None
    if scorer.head == "classifier":
        return ClassifierHead(whole)
    output: Any = whole.get_output_embeddings()  # type: ignore[operator]
    if output is None:
        raise ModelError(f"{folder.name}: {type(whole).__name__} has no layer that gives logits")
    return LogitHead(output, scorer.true_id, scorer.false_id)


def _pooled_by(whole: nn.Module, head: ClassifierHead | LogitHead, device: str) -> Pooled | None:
    """Which token the head wants: the one with which it gives the whole model's scores. None: no single one does."""
    base: nn.Module = whole.base_model  # type: ignore[assignment]
    batch = trial_batch(base)
    cu_seqlens = torch.from_numpy(batch.cu_seqlens.astype(np.int64)).to(device)
    errors: dict[Pooled, float] = {}
    with torch.inference_mode():
        expected = whole_scores(whole, batch, device=device).float()
        if isinstance(head, LogitHead):
            expected = head.odds(expected)
        hidden_TE = hidden_by_length(base, batch, device=device)
        for what in POOLED:
            try:
                found = head(pooled_token(hidden_TE, cu_seqlens, what))
            except Exception:  # a head that cannot be run on one token is not run so
                return None
            if found.shape == expected.shape:
                errors[what] = float((found - expected).abs().amax())
        allowed = _TOLERANCE.get(next(whole.parameters()).dtype, _TOLERANCE_HALF) * max(
            1.0, float(expected.abs().amax())
        )
    best = min(errors, key=lambda what: errors[what], default=None)
    return best if best is not None and errors[best] <= allowed else None
