"""What sparse encoders add to a folder: SpladePooling, tables of token weights, BGE-M3's two linear layers.

Enters: a module's entry, or a folder. Leaves: records of `modules`. Refuses: what is not understood.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.entries import Entry
from embedctl.models.modules import AutoEncoder, Dense, Late, Normalize, SparseTable, Splade, TokenWeights

IDENTITY = "torch.nn.modules.linear.Identity"
_SPARSE_LINEAR, _LATE_LINEAR = "sparse_linear.pt", "colbert_linear.pt"
_ACTIVATIONS = {"relu": False, "log1p_relu": True}


def vocabulary_of(config: Mapping[str, Any], path: Path) -> int:
    """:raises ModelError: config.json does not tell how many tokens there are."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    size = text.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"{path / 'config.json'}: vocab_size is {size!r}, expected a number above 0")
    return size


def read_splade(entry: Entry, vocabulary: int) -> Splade:
    """SpladePooling's settings. :raises ModelError: one that is not understood."""
    config = files.read_object(entry.config_path)
    pooling = config.get("pooling_strategy", "max")
    activation = config.get("activation_function", "relu")
    if pooling not in ("max", "sum"):
        raise ModelError(f"{entry.config_path}: pooling_strategy {pooling!r} is not one of max, sum")
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"{entry.config_path}: activation_function {activation!r} is not one of {known}")
    return Splade(vocabulary=vocabulary, pooling=pooling, log_twice=_ACTIVATIONS[activation])


def read_table(entry: Entry, root: Path) -> SparseTable:
    """SparseStaticEmbedding's weights: of the module's own file, or of the JSON it names.

    :raises ModelError: missing, or cut short."""
    named = files.read_object(entry.config_path, missing_ok=True).get("path")
    if isinstance(named, str) and named.endswith(".json"):
        places = [folder / Path(named).name for folder in (entry.path, root)]
        path = next((p for p in places if p.is_file()), None)
        if path is None:
            raise ModelError(f"{entry.path}: {named} is missing; the weights of its tokens stand in it")
        return SparseTable(vocabulary=_tokens(entry.path), path=path)
    path = files.find_weights(entry.path, allow_pickle=False)[0]
    header = files.safetensors_header(path)
    if "weight" not in header or len(header["weight"]["shape"]) != 1:
        raise ModelError(f"{path}: no table named weight with one number a token")
    return SparseTable(vocabulary=int(header["weight"]["shape"][0]), path=path)


def read_autoencoder(entry: Entry, width: int, *, allow_pickle: bool) -> AutoEncoder:
    """SparseAutoEncoder's settings. :raises ModelError: it does not take `width` numbers, or has no weights."""
    config = files.read_object(entry.config_path)
    if config.get("input_dim") != width:
        raise ModelError(f"{entry.path}: takes {config.get('input_dim')} numbers, the module before gives {width}")
    files.find_weights(entry.path, allow_pickle=allow_pickle)
    return AutoEncoder(
        vocabulary=int(config.get("hidden_dim", 512)), width=width, path=entry.path, top_k=int(config.get("k", 8)),
        normalize=bool(config.get("normalize", False)),
    )  # fmt: skip


def _tokens(path: Path) -> int:
    """How many ids the tokenizer beside a table knows, added ones included."""
    tokenizer = files.read_object(path / "tokenizer.json")
    vocab = (tokenizer.get("model") or {}).get("vocab")
    if not isinstance(vocab, (dict, list)):
        raise ModelError(f"{path / 'tokenizer.json'}: no vocabulary, so the table's size is unknown")
    ids = set(vocab.values()) if isinstance(vocab, dict) else set(range(len(vocab)))
    return len(ids | {token["id"] for token in tokenizer.get("added_tokens") or ()})


def read_m3(root: Path, config: Mapping[str, Any], hidden_dim: int) -> tuple[TokenWeights, Late] | None:
    """BGE-M3's sparse and late heads, None where the folder has neither. The pickles hold nothing but tensors."""
    weights, vectors = root / _SPARSE_LINEAR, root / _LATE_LINEAR
    if not (weights.is_file() and vectors.is_file()):
        return None
    width = _rows_of(vectors)
    sparse = TokenWeights(vocabulary=vocabulary_of(config, root), projection=_linear(weights, hidden_dim, 1))
    late = Late(width=width, steps=(_linear(vectors, hidden_dim, width), Normalize()), skip_first=1)
    return sparse, late


def _linear(path: Path, width: int, out: int) -> Dense:
    return Dense(path=path, in_features=width, out_features=out, bias=True, activation=IDENTITY)


def _rows_of(path: Path) -> int:
    import torch

    try:
        return int(torch.load(path, map_location="cpu", weights_only=True)["weight"].shape[0])
    except Exception as exc:
        reason = "it holds more than tensors" if isinstance(exc, pickle.UnpicklingError) else type(exc).__name__
        raise ModelError(f"{path}: not a linear layer saved by torch: {reason}") from exc
