"""The heads of the outputs asked for, their weights loaded, and the loader of the model that they need.

Enters: a `ModelFolder`, the outputs wanted, what the job says of them. Leaves: `Heads`, a loader. Refuses: an output
that the folder does not give; words of its settings that its tokenizer must know and does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from embedctl.encoders.masked_lm import MaskedLoader
from embedctl.encoders.tail import AutoEncoderHead, Head, Heads, LateHead, SpladeHead, Tail, TokenWeightsHead
from embedctl.encoders.weights import load_transformer
from embedctl.errors import ModelError
from embedctl.heads.sparse import NO_PRUNING, Pruning
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import AutoEncoder, Expansion, Splade, TokenPooling, TokenWeights
from embedctl.outputs import OutputKind

ModelLoader = Callable[..., nn.Module]
"""As `load_transformer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a job asks of the outputs. dim: None for the folder's own. pool_factor: so many vectors of late interaction
    become one, None for what the folder says. num_prompt_tokens, compile: see `open_encoder`."""

    pooling: str | None = None
    dim: int | None = None
    num_prompt_tokens: int = 0
    pruning: Pruning = NO_PRUNING
    pool_factor: float | None = None
    compile: bool | None = None


def open_heads(
    folder: ModelFolder, outputs: Sequence[OutputKind], wanted: Wanted, *, device: str
) -> tuple[Heads, ModelLoader]:
    """In the order of `folder.kinds`. :raises ModelError: see the module."""
    for kind in outputs:
        if kind not in folder.kinds:
            raise ModelError(f"{folder.name} gives no {kind} output; it gives: {', '.join(folder.kinds)}")
    loader: ModelLoader = load_transformer
    heads: dict[OutputKind, Head] = {}
    for kind in (k for k in folder.kinds if k in outputs):
        if kind == "dense":
            heads[kind] = _dense(folder, wanted, device)
        elif kind == "multivector":
            heads[kind] = _late(folder, wanted, device, only="dense" not in folder.kinds)
        elif isinstance(folder.sparse, Splade):
            loader = masked = MaskedLoader(compile=wanted.compile)
            heads[kind] = SpladeHead(masked.heads, folder.sparse, wanted.pruning)
        elif isinstance(folder.sparse, AutoEncoder):
            heads[kind] = AutoEncoderHead(
                _dense(folder, wanted, device), folder.sparse, wanted.pruning, device=device,
                allow_pickle=folder.allow_pickle,
            )  # fmt: skip
        else:
            heads[kind] = _token_weights(folder, wanted, device)
    return heads, loader


def _dense(folder: ModelFolder, wanted: Wanted, device: str) -> Tail:
    width = folder.width(wanted.pooling)
    dim = wanted.dim or min(folder.truncate_dim or width, width)
    return Tail(folder, device=device, pooling=wanted.pooling, dim=dim, num_prompt_tokens=wanted.num_prompt_tokens)


def _late(folder: ModelFolder, wanted: Wanted, device: str, *, only: bool) -> LateHead:
    settings = folder.late
    assert settings is not None
    pooling = settings.pooling
    if wanted.pool_factor is not None:
        pooling = TokenPooling(factor=wanted.pool_factor, protected=0 if settings.skip_first else 1)
    return LateHead(
        settings, frozenset(_known(folder, settings.skipped)), None if folder.for_queries else pooling, device=device,
        dim=(wanted.dim if only else None) or settings.width, allow_pickle=folder.allow_pickle,
    )  # fmt: skip


def _token_weights(folder: ModelFolder, wanted: Wanted, device: str) -> TokenWeightsHead:
    assert isinstance(folder.sparse, TokenWeights)
    tokenizer = _tokenizer(folder)
    named = (tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    special = frozenset(int(id_) for id_ in named if id_ is not None)
    return TokenWeightsHead(folder.sparse, special, wanted.pruning, device=device, allow_pickle=folder.allow_pickle)


def expansion_token(folder: ModelFolder, settings: Expansion) -> int:
    """The id that fills queries up. :raises ModelError: the tokenizer has none."""
    tokenizer = _tokenizer(folder)
    if settings.token is not None:
        found = _known(folder, (settings.token,))
        if found:
            return found[0]
        raise ModelError(f"{folder.name}: its tokenizer does not know {settings.token!r}, which expands queries")
    for id_ in (tokenizer.mask_token_id, tokenizer.eos_token_id):
        if id_ is not None:
            return int(id_)
    raise ModelError(f"{folder.name}: its tokenizer has neither a mask nor an end token to expand queries with")


def _known(folder: ModelFolder, words: Sequence[str]) -> list[int]:
    """Ids of the words that are one token each."""
    if not words:
        return []
    tokenizer = _tokenizer(folder)
    ids = ((word, tokenizer.convert_tokens_to_ids(word)) for word in words)
    unknown = tokenizer.unk_token_id
    return [int(id_) for word, id_ in ids if id_ is not None and (id_ != unknown or word == tokenizer.unk_token)]


def _tokenizer(folder: ModelFolder) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder.path), local_files_only=True, trust_remote_code=folder.trust_remote_code
        )
    except Exception as exc:
        raise ModelError(f"{folder.path}: transformers cannot load its tokenizer: {str(exc).splitlines()[0]}") from exc
