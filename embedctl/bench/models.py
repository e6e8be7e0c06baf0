"""The folders that every contender opens: one copy a model, its tokenizer cut at the length that all must keep.

Leaves: a sentence-transformers folder in the cache. all-MiniLM-L6-v2's weights are real; `bge-small-shape` has random
ones from a fixed seed, which is as good for speed and for agreement between programs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from embedctl.models.load import find_model

REAL = "all-MiniLM-L6-v2"
SHAPED = "bge-small-shape"
BENCH_MODELS = (REAL, SHAPED)
_SEED = 20
_SHAPE = {"num_hidden_layers": 12, "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
"""bge-small-en-v1.5's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchModel:
    """path: what all contenders open. max_length: tokens, special ones included. dim: of the vectors."""

    name: str
    path: str
    max_length: int
    dim: int


def bench_model(name: str, cache: Path) -> BenchModel:
    """The folder of that name, made where the cache has none. :raises ModelError: MiniLM's package is not installed.

    :raises ValueError: not one of the bench's models.
    """
    if name not in BENCH_MODELS:
        raise ValueError(f"--models: {name!r} is not one of {', '.join(BENCH_MODELS)}")
    source = Path(find_model(REAL, offline=True).path or "")
    max_length = 256 if name == REAL else 512
    return own_copy(name, source, cache, max_length, partial(random_bert, _SHAPE) if name == SHAPED else None)


def own_copy(
    name: str, source: Path, cache: Path, max_length: int, change: Callable[[Path], None] | None = None
) -> BenchModel:
    """A copy of a model folder whose tokenizer has no cap but `max_length`; `change` alters it before it is
    published.
    """
    folder = cache / "models" / name
    if not (folder / "config.json").is_file():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        making.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, making)
        _lift_cap(making, max_length)
        if change is not None:
            change(making)
        making.rename(folder)
    return BenchModel(name=name, path=str(folder), max_length=max_length, dim=find_model(str(folder)).width(None))


def _lift_cap(folder: Path, max_length: int) -> None:
    """Every place in which a library might find another length."""
    for file in [*folder.glob("tokenizer.json"), *folder.glob("*/tokenizer.json")]:
        _edit(file, truncation=None, padding=None)
    for file in [*folder.glob("tokenizer_config.json"), *folder.glob("*/tokenizer_config.json")]:
        _edit(file, model_max_length=max_length, max_length=max_length)
    if (folder / "sentence_bert_config.json").is_file():
        _edit(folder / "sentence_bert_config.json", max_seq_length=max_length)


def random_bert(shape: Mapping[str, int], folder: Path) -> None:
    """A BERT of this shape (names of the config), MiniLM's vocabulary, weights from a fixed seed."""
    import torch
    import transformers

    _edit(folder / "config.json", **shape)
    pooling = folder / "1_Pooling" / "config.json"
    if pooling.is_file():
        _edit(pooling, word_embedding_dimension=shape["hidden_size"])
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
        model = transformers.AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        model.save_pretrained(str(folder))


def _edit(file: Path, **values: object) -> None:
    told = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**told, **values}, indent=2), encoding="utf-8")
