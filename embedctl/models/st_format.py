"""The files of sentence-transformers, and of plain transformers and model2vec folders, read whole.

Enters: a folder. Leaves: a `ModelFolder`. Refuses by name whatever would change the numbers and is not understood:
unknown modules, routers with a choice, chat formats, other outputs than token embeddings, sparse and cross encoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.folder import UNLIMITED, Dense, LayerNorm, ModelFolder, Module, Normalize, Pooling
from embedctl.models.transformer_files import read_transformer
from embedctl.spec import POOLINGS

_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OTHER_KINDS = {
    "SparseEncoder": "a sparse encoder",
    "CrossEncoder": "a reranker",
    "MultiVectorEncoder": "late interaction",
}
_OWN = ("sentence_transformers.", "pylate.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One line of modules.json."""

    type: str
    path: Path

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


def read_folder(root: Path, name: str, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> ModelFolder:
    """Everything but the weights' numbers. :raises ModelError: broken or not understood, in one line."""
    if not root.is_dir():
        raise ModelError(f"{root}: not a folder")
    start = ModelFolder(
        name=name, kind="transformer", root=root, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    if (root / "modules.json").is_file():
        return _sentence_transformers(start, root)
    if not (root / "config.json").is_file():
        raise ModelError(
            f"{root}: neither modules.json nor config.json; this is not a model folder",
            hint="give the folder that holds them, or a model's name: embedctl models",
        )
    if files.read_object(root / "config.json").get("model_type") == "model2vec" or _is_model2vec(root):
        return _model2vec(start, root)
    return read_transformer(start, root, {}, plain=True)


def _sentence_transformers(start: ModelFolder, root: Path) -> ModelFolder:
    listed = files.read_json(root / "modules.json")
    if not isinstance(listed, list) or not listed or not all(isinstance(m, dict) and "type" in m for m in listed):
        raise ModelError(f"{root / 'modules.json'}: not a list of modules")
    entries = [_Entry(type=str(m["type"]), path=_inside(root, str(m.get("path", "")))) for m in listed]
    entries = _unrouted(entries)
    first, rest = entries[0], entries[1:]
    folder = _settings(start, root)
    if first.kind == "Transformer":
        config = _sentence_bert_config(first.path)
        folder = read_transformer(folder, first.path, config, plain=False)
    elif first.kind == "StaticEmbedding":
        folder = _static(folder, first.path)
    else:
        raise _unknown(first, root)
    static = folder.kind == "static"
    modules: list[Module] = list(folder.modules)
    for entry in rest:
        module = _module(
            entry, root, folder.allow_pickle, pooled=static or any(isinstance(m, Pooling) for m in modules)
        )
        if module is not None:
            modules.append(module)
    if folder.kind == "transformer" and not any(isinstance(m, Pooling) for m in modules):
        raise ModelError(f"{root / 'modules.json'}: no Pooling module, so no vector for a text")
    folder = replace(folder, modules=tuple(modules))
    _check_widths(folder, root)
    return folder


def _inside(root: Path, relative: str) -> Path:
    path = root / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise ModelError(f"{root / 'modules.json'}: module path {relative!r} leads out of the folder")
    return path


def _settings(folder: ModelFolder, root: Path) -> ModelFolder:
    """config_sentence_transformers.json: prompts, default prompt, similarity, Matryoshka width."""
    path = root / "config_sentence_transformers.json"
    config = files.read_object(path, missing_ok=True)
    kind = config.get("model_type")
    if kind in _OTHER_KINDS:
        raise ModelError(f"{path}: model_type {kind} ({_OTHER_KINDS[kind]}) is not one that gives dense vectors")
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


def _unrouted(entries: list[_Entry]) -> list[_Entry]:
    """A Router whose documents can only go one way is that way's modules; any other is refused."""
    first = entries[0]
    if first.kind not in ("Router", "Asym"):
        return entries
    config = files.read_object(first.path / "router_config.json", missing_ok=True) or files.read_object(
        first.path / "config.json"
    )
    types, structure = config.get("types"), config.get("structure")
    if not isinstance(types, dict) or not isinstance(structure, dict) or not structure:
        raise ModelError(f"{first.path}: the Router's config has no types and structure")
    routes = {name: tuple(members) for name, members in structure.items()}
    if len(set(routes.values())) > 1:
        raise ModelError(
            f"{first.path}: the Router has the routes {', '.join(routes)} with different modules; "
            "which of them corpus texts take is not understood"
        )
    members = next(iter(routes.values()))
    return [_Entry(type=str(types[m]), path=_inside(first.path, m)) for m in members] + entries[1:]


def _module(entry: _Entry, root: Path, allow_pickle: bool, *, pooled: bool) -> Module | None:
    """One module after the first; None for those that do nothing when embedding."""
    if not entry.type.startswith(_OWN):
        raise _unknown(entry, root)
    if entry.kind == "Dropout":
        return None
    if entry.kind == "Pooling" and not pooled:
        return _pooling(entry)
    if entry.kind == "Normalize":
        config = files.read_object(entry.path / "config.json", missing_ok=True)
        _check_input(entry, config, pooled)
        return Normalize()
    if entry.kind == "Dense":
        return _dense(entry, allow_pickle, pooled)
    if entry.kind == "LayerNorm" and pooled:
        config = files.read_object(entry.path / "config.json")
        files.find_weights(entry.path, allow_pickle=allow_pickle)
        return LayerNorm(path=entry.path, dimension=_whole(entry, config, "dimension"))
    raise _unknown(entry, root)


def _pooling(entry: _Entry) -> Pooling:
    path = entry.path / "config.json"
    config = files.read_object(path)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _LEGACY_MODES.items() if config.get(key)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        if mode not in POOLINGS:
            raise ModelError(f"{path}: pooling mode {mode!r} is not one of {', '.join(POOLINGS)}")
    unknown = [k for k, v in config.items() if k.startswith("pooling_mode_") and v and k not in _LEGACY_MODES]
    if unknown:
        raise ModelError(f"{path}: {unknown[0]} is not understood")
    return Pooling(modes=modes, include_prompt=bool(config.get("include_prompt", True)))


def _dense(entry: _Entry, allow_pickle: bool, pooled: bool) -> Dense:
    config = files.read_object(entry.path / "config.json")
    _check_input(entry, config, pooled)
    files.find_weights(entry.path, allow_pickle=allow_pickle)
    return Dense(
        path=entry.path,
        in_features=_whole(entry, config, "in_features"),
        out_features=_whole(entry, config, "out_features"),
        bias=bool(config.get("bias", True)),
        activation=str(config.get("activation_function", "torch.nn.modules.activation.Tanh")),
        residual=bool(config.get("use_residual", False)),
    )


def _check_input(entry: _Entry, config: Mapping[str, Any], pooled: bool) -> None:
    """A module must read and write what stands at its place: tokens before the pooling, one vector after it."""
    here = "sentence_embedding" if pooled else "token_embeddings"
    source = config.get("module_input_name") or "sentence_embedding"
    target = config.get("module_output_name") or source
    if source != here or target != here:
        raise ModelError(f"{entry.path}: {entry.kind} from {source} to {target} is not understood at this place")


def _whole(entry: _Entry, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{entry.path / 'config.json'}: {key} is {value!r}, expected a number above 0")
    return value


def _check_widths(folder: ModelFolder, root: Path) -> None:
    width = folder.hidden_dim
    for module in folder.modules:
        if isinstance(module, Pooling):
            width *= len(module.modes)
        elif isinstance(module, Dense):
            if module.in_features != width:
                raise ModelError(f"{module.path}: takes {module.in_features} numbers, the module before gives {width}")
            width = module.out_features
        elif isinstance(module, LayerNorm) and module.dimension != width:
            raise ModelError(f"{module.path}: takes {module.dimension} numbers, the module before gives {width}")
    if folder.truncate_dim is not None and not folder.truncate_dim > 0:
        raise ModelError(f"{root}: truncate_dim is {folder.truncate_dim!r}, expected a number above 0")


def _unknown(entry: _Entry, root: Path) -> ModelError:
    return ModelError(f"{root / 'modules.json'}: module {entry.type} is not understood, so its vectors would be wrong")


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
