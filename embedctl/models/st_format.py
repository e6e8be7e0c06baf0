"""The files of sentence-transformers, and of plain transformers and model2vec folders, read whole.

Enters: a folder. Leaves: a `ModelFolder`, with the outputs it can give. Refuses by name whatever would change the
numbers and is not understood: unknown modules, routers without a way for documents, chat formats, other outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.entries import Entry, read_entries
from embedctl.models.folder import UNLIMITED, ModelFolder
from embedctl.models.late_format import is_late, is_stanford, read_rules, read_stanford, with_rules
from embedctl.models.media_format import is_media, read_media
from embedctl.models.module_files import check_widths, read_module, unknown_module
from embedctl.models.modules import Dense, Late, LayerNorm, Module, Normalize, Pooling
from embedctl.models.sparse_format import read_autoencoder, read_m3, read_splade, read_table, vocabulary_of
from embedctl.models.transformer_files import read_transformer, task_of

_LATE_RULES = ("MultiVectorMask", "HierarchicalTokenPooling")


def read_folder(root: Path, name: str, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> ModelFolder:
    """Everything but the weights' numbers. :raises ModelError: broken or not understood, in one line."""
    if not root.is_dir():
        raise ModelError(f"{root}: not a folder")
    start = ModelFolder(
        name=name, kind="transformer", root=root, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    if not (root / "modules.json").is_file() and is_media(root):
        return read_media(read_settings(start, root), root, {}, (), root)
    if (root / "modules.json").is_file():
        return _sentence_transformers(start, root)
    if not (root / "config.json").is_file():
        raise ModelError(
            f"{root}: neither modules.json nor config.json; this is not a model folder",
            hint="give the folder that holds them, or a model's name: embedctl models",
        )
    config = files.read_object(root / "config.json")
    if config.get("model_type") == "model2vec" or _is_model2vec(root):
        return _model2vec(start, root)
    if is_stanford(config):
        return read_stanford(read_transformer(read_settings(start, root), root, {}, task="feature-extraction"), root)
    return read_transformer(read_settings(start, root), root, {}, task=None)


def _sentence_transformers(start: ModelFolder, root: Path) -> ModelFolder:
    ways = read_entries(root)
    folder = _assembled(start, root, ways.documents)
    if ways.queries != ways.documents:
        queries = _assembled(start, root, ways.queries)
        if queries.kinds != folder.kinds:
            raise ModelError(f"{root}: queries give {queries.kinds[0]} vectors and documents {folder.kinds[0]} ones")
        folder = replace(folder, query_side=queries, weights=tuple(dict.fromkeys(folder.weights + queries.weights)))
    return folder


def _assembled(start: ModelFolder, root: Path, entries: tuple[Entry, ...]) -> ModelFolder:
    """The folder whose texts go through these modules."""
    first, rest = entries[0], entries[1:]
    folder, config = read_settings(start, root), files.read_object(root / _SETTINGS, missing_ok=True)
    if first.kind in ("Transformer", "MLMTransformer"):
        settings = _sentence_bert_config(first.path)
        if is_media(first.path):
            return read_media(folder, first.path, settings, rest, root)
        task = task_of(settings, "fill-mask" if first.kind == "MLMTransformer" else None, config.get("model_type"))
        folder = read_transformer(folder, first.path, settings, task=task)
        if task == "fill-mask":
            return _splade(folder, first, rest, root)
        if folder.kinds == ("score",):
            return folder
        if is_late(config) or _is_by_token(rest):
            return _late(folder, rest, root, config, settings)
    elif first.kind == "CLIPModel":
        return read_media(folder, first.path, _sentence_bert_config(first.path), rest, root)
    elif first.kind == "StaticEmbedding":
        folder = _static(folder, first.path)
    elif first.kind == "SparseStaticEmbedding" and not rest:
        return _sparse_table(folder, first, root)
    else:
        raise unknown_module(first, root)
    return _dense_way(folder, rest, root)


def _dense_way(folder: ModelFolder, rest: tuple[Entry, ...], root: Path) -> ModelFolder:
    static, modules = folder.kind == "static", list[Module]()
    coder = rest[-1] if rest and rest[-1].kind == "SparseAutoEncoder" else None
    for entry in rest if coder is None else rest[:-1]:
        pooled = static or any(isinstance(m, Pooling) for m in modules)
        module = read_module(entry, root, folder.allow_pickle, pooled=pooled)
        if module is not None:
            modules.append(module)
    if not static and not any(isinstance(m, Pooling) for m in modules):
        raise ModelError(f"{root / 'modules.json'}: no Pooling module, so no vector for a text")
    folder = replace(folder, modules=tuple(modules), weights=(*folder.weights, *_weights_of(modules, folder)))
    width = check_widths(folder, folder.modules, root)
    if coder is not None:
        sparse = read_autoencoder(coder, width, allow_pickle=folder.allow_pickle)
        weights = (*folder.weights, *files.find_weights(coder.path, allow_pickle=folder.allow_pickle))
        return replace(folder, sparse=sparse, gives=("sparse",), weights=weights, similarity="dot")
    heads = None if static or folder.path is None else read_m3(root, _config_of(folder), folder.hidden_dim)
    if heads is None:
        return folder
    tokens, late = heads
    extra = (tokens.projection.path, *(step.path for step in late.steps if isinstance(step, Dense)))
    weights = (*folder.weights, *extra)
    return replace(folder, sparse=tokens, late=late, gives=("dense", "sparse", "multivector"), weights=weights)


def _splade(folder: ModelFolder, first: Entry, rest: tuple[Entry, ...], root: Path) -> ModelFolder:
    if [entry.kind for entry in rest] != ["SpladePooling"]:
        raise unknown_module(rest[0] if rest else first, root)
    sparse = read_splade(rest[0], vocabulary_of(_config_of(folder), first.path))
    return replace(folder, sparse=sparse, gives=("sparse",), similarity="dot")


def _sparse_table(folder: ModelFolder, entry: Entry, root: Path) -> ModelFolder:
    """Token weights without a model. Its tokenizer cuts, and puts no special tokens."""
    table = read_table(entry, root)
    length = files.read_object(entry.path / "tokenizer_config.json", missing_ok=True).get("model_max_length")
    return replace(
        folder, kind="static", path=entry.path, architecture="SparseStaticEmbedding", model_type="static",
        add_special_tokens=False, max_seq_length=min(int(length or UNLIMITED), UNLIMITED), sparse=table,
        gives=("sparse",), weights=(table.path,), similarity="dot",
    )  # fmt: skip


def _is_by_token(rest: tuple[Entry, ...]) -> bool:
    """Modules that act on tokens and never pool them: PyLate before it named its kind, or late interaction's own."""
    kinds = [entry.kind for entry in rest]
    by_token = any(kind in _LATE_RULES for kind in kinds)
    return "Pooling" not in kinds and (by_token or any(entry.type.startswith("pylate.") for entry in rest))


def _late(
    folder: ModelFolder, rest: tuple[Entry, ...], root: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> ModelFolder:
    """Late interaction. A Pooling of the dense model that it was made from does not count."""
    rules = read_rules(config, settings, rest)
    steps: list[Dense | LayerNorm | Normalize] = []
    for entry in rest:
        if entry.kind in (*_LATE_RULES, "Pooling"):
            continue
        module = read_module(entry, root, folder.allow_pickle, pooled=False, here="token_embeddings")
        if module is not None and not isinstance(module, Pooling):
            steps.append(module)
    own_kind = config.get("model_type") == "MultiVectorEncoder"
    if not own_kind and not any(isinstance(step, Normalize) for step in steps):
        steps.append(Normalize())
    width = check_widths(folder, tuple(steps), root)
    weights = (*folder.weights, *_weights_of(steps, folder))
    return with_rules(replace(folder, weights=weights), Late(width=width, steps=tuple(steps)), rules)


def _weights_of(modules: list[Module] | list[Dense | LayerNorm | Normalize], folder: ModelFolder) -> tuple[Path, ...]:
    return tuple(
        path
        for module in modules
        if isinstance(module, (Dense, LayerNorm))
        for path in files.find_weights(module.path, allow_pickle=folder.allow_pickle)
    )


def _config_of(folder: ModelFolder) -> dict[str, Any]:
    assert folder.path is not None
    return files.read_object(folder.path / "config.json")


_SETTINGS = "config_sentence_transformers.json"


def read_settings(folder: ModelFolder, root: Path) -> ModelFolder:
    """With config_sentence_transformers.json's prompts, default prompt, similarity and Matryoshka width.

    :raises ModelError: they contradict each other."""
    path = root / _SETTINGS
    config = files.read_object(path, missing_ok=True)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise ModelError(f"{path}: prompts is not an object")
    prompts = {str(k): str(v or "") for k, v in prompts.items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(
            f"{path}: default_prompt_name {default!r} is not among prompts ({', '.join(prompts) or 'none'})"
        )
    return replace(
        folder,
        prompts=prompts,
        default_prompt_name=default,
        similarity=str(config.get("similarity_fn_name") or "cosine"),
        truncate_dim=config.get("truncate_dim"),
    )


def _sentence_bert_config(path: Path) -> dict[str, Any]:
    """The Transformer module's own settings, under today's name or one of the old ones."""
    names = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
    for name in names:
        config = files.read_object(path / f"sentence_{name}_config.json", missing_ok=True)
        if config:
            return config
    return {}


def _static(folder: ModelFolder, path: Path) -> ModelFolder:
    """A table of token vectors, averaged. Longer than the tokenizer's own truncation is cut, as its author set it."""
    weights = files.find_weights(path, allow_pickle=folder.allow_pickle)
    truncation = files.read_object(path / "tokenizer.json").get("truncation") or {}
    return replace(
        folder,
        kind="static",
        path=path,
        architecture="StaticEmbedding",
        model_type="static",
        add_special_tokens=False,
        max_seq_length=int(truncation.get("max_length") or UNLIMITED),
        hidden_dim=_table_width(weights[0]),
        weights=weights,
    )


def _is_model2vec(root: Path) -> bool:
    """Its config may name no type; the table's name in the weights tells."""
    path = root / "model.safetensors"
    config = files.read_object(root / "config.json")
    return "architectures" not in config and path.is_file() and "embeddings" in files.safetensors_header(path)


def _model2vec(start: ModelFolder, root: Path) -> ModelFolder:
    config = files.read_object(root / "config.json")
    folder = _static(start, root)
    length = config.get("max_length", 512) or UNLIMITED
    return replace(
        folder,
        architecture="model2vec",
        model_type="model2vec",
        max_seq_length=int(length),
        modules=(Normalize(),) if config.get("normalize") else (),
    )


def _table_width(path: Path) -> int:
    if path.suffix != ".safetensors":
        raise ModelError(f"{path}: a static table must be safetensors")
    header = files.safetensors_header(path)
    for key in ("embedding.weight", "embeddings"):
        if key in header:
            return int(header[key]["shape"][1])
    raise ModelError(f"{path}: no table named embedding.weight or embeddings")
