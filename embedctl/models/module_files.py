"""The modules that sentence-transformers puts behind a transformer: each one's own folder, read and checked.

Enters: an entry of modules.json. Leaves: records of `modules`. Refuses by name: what is not understood, or stands
where it does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.entries import Entry
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import Dense, LayerNorm, Module, Normalize, Pooling
from embedctl.spec import POOLINGS

_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OWN = ("sentence_transformers.", "pylate.")


def read_module(
    entry: Entry, root: Path, allow_pickle: bool, *, pooled: bool, here: str | None = None
) -> Module | None:
    """One module after the first; None for those that do nothing when embedding. here: what it reads when it does not
    say so."""
    if not entry.type.startswith(_OWN):
        raise unknown_module(entry, root)
    if entry.kind == "Dropout":
        return None
    if entry.kind == "Pooling" and not pooled:
        return read_pooling(entry)
    if entry.kind == "Normalize":
        config = files.read_object(entry.path / "config.json", missing_ok=True)
        _check_input(entry, config, pooled, here)
        return Normalize()
    if entry.kind == "Dense":
        _check_input(entry, files.read_object(entry.config_path), pooled, here)
        return read_dense(entry, allow_pickle=allow_pickle)
    if entry.kind == "LayerNorm" and pooled:
        config = files.read_object(entry.path / "config.json")
        files.find_weights(entry.path, allow_pickle=allow_pickle)
        return LayerNorm(path=entry.path, dimension=_whole(entry, config, "dimension"))
    raise unknown_module(entry, root)


def read_pooling(entry: Entry) -> Pooling:
    """:raises ModelError: a mode that is not understood."""
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


def read_dense(entry: Entry, *, allow_pickle: bool) -> Dense:
    """Whatever it reads and writes. :raises ModelError: a width is missing, or its weights are."""
    config = files.read_object(entry.config_path)
    files.find_weights(entry.path, allow_pickle=allow_pickle)
    return Dense(
        path=entry.path,
        in_features=_whole(entry, config, "in_features"),
        out_features=_whole(entry, config, "out_features"),
        bias=bool(config.get("bias", True)),
        activation=str(config.get("activation_function", "torch.nn.modules.activation.Tanh")),
        residual=bool(config.get("use_residual", False)),
    )


def _check_input(entry: Entry, config: Mapping[str, Any], pooled: bool, assumed: str | None) -> None:
    """A module must read and write what stands at its place: tokens before the pooling, one vector after it."""
    here = "sentence_embedding" if pooled else "token_embeddings"
    source = config.get("module_input_name") or assumed or "sentence_embedding"
    target = config.get("module_output_name") or source
    if source != here or target != here:
        raise ModelError(f"{entry.path}: {entry.kind} from {source} to {target} is not understood at this place")


def _whole(entry: Entry, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{entry.path / 'config.json'}: {key} is {value!r}, expected a number above 0")
    return value


def check_widths(folder: ModelFolder, modules: tuple[Module, ...], root: Path) -> int:
    """Width of what leaves the last module."""
    width = folder.hidden_dim
    for module in modules:
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
    return width


def unknown_module(entry: Entry, root: Path) -> ModelError:
    return ModelError(f"{root / 'modules.json'}: module {entry.type} is not understood, so its vectors would be wrong")
