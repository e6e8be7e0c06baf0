"""What follows a transformer, as records: the modules a folder names, and the heads that turn tokens into outputs.

Enters: what the readers of a folder found. Leaves: frozen records that encoders build from. Nothing is opened here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embedctl.media import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """Tokens to one vector; several modes are concatenated in this order. Without `include_prompt` the prompt's
    tokens are left out."""

    modes: tuple[str, ...]
    include_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """activation(x W + b), plus x (projected where widths differ) when `residual`. `activation` is a torch class.

    path: a module's folder, or the one file that holds its weights."""

    path: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    path: Path
    dimension: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What a model reads beside text.

    late: it gives a vector a token. tokens: of any picture or sound, None where the processor tells them. filled: texts
    are filled up to the longest they may be."""

    takes: Kind
    late: bool
    tokens: int | None
    filled: bool


Module = Pooling | Dense | LayerNorm | Normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class Splade:
    """The masked language model's scores of the vocabulary, log(1 + relu), pooled over a sequence's tokens.

    vocabulary: how many scores. log_twice: log(1 + log(1 + relu)), as OpenSearch's third version has it."""

    vocabulary: int
    pooling: Literal["max", "sum"] = "max"
    log_twice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """BGE-M3's sparse output: relu of one number a token, the greatest of each token id; special tokens: nothing."""

    vocabulary: int
    projection: Dense


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseTable:
    """A weight for each token id, given to every one that a text holds. path: safetensors, or idf.json by token."""

    vocabulary: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoEncoder:
    """CSR's sparse code of a pooled vector: its `top_k` greatest features of `vocabulary`, where above 0.

    width: of the pooled vector; normalize: it is scaled to mean 0 and deviation 1 first."""

    vocabulary: int
    width: int
    path: Path
    top_k: int
    normalize: bool


SparseHead = Splade | TokenWeights | SparseTable | AutoEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Queries are filled up to `length` tokens with `token` (None: the mask token, else the end token), which give
    vectors too. attend: whether other tokens see them. fixed: longer queries are cut to `length`."""

    length: int
    attend: bool = False
    fixed: bool = True
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPooling:
    """Vectors of a text merged into one for every `factor` of them, the first `protected` left alone."""

    factor: float
    protected: int = 1
    normalize: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Late interaction: a vector a token, of `width` numbers, through `steps` in order.

    skipped: words whose tokens give no vector; only: ids that alone give one, where not empty; skip_first: so many
    leading tokens give none. expansion: for queries only."""

    width: int
    steps: tuple[Dense | LayerNorm | Normalize, ...]
    skipped: tuple[str, ...] = ()
    only: tuple[int, ...] = ()
    skip_first: int = 0
    pooling: TokenPooling | None = None
    expansion: Expansion | None = None
