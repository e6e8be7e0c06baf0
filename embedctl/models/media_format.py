"""Folders of models that read pictures or sounds beside text: CLIP and SigLIP kinds, CLAP, ColPali kinds.

Enters: a plain folder of transformers, or the modules of a sentence-transformers one. Leaves: a `ModelFolder` as it
reads texts; `ModelFolder.reading` gives it as it reads the rest. Refuses by name what would change the numbers and is
not understood: other ways into the model than its own, chat templates, modules on single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import CRITICAL
from pathlib import Path
from typing import Any

from embedctl.errors import EmbedctlError, ModelError
from embedctl.models import files
from embedctl.models.entries import Entry
from embedctl.models.folder import UNLIMITED, ModelFolder
from embedctl.models.module_files import check_widths, read_module, unknown_module
from embedctl.models.modules import Dense, LayerNorm, Media, Module

PICTURES = frozenset({"clip", "metaclip_2", "chinese_clip", "altclip", "align", "siglip", "siglip2"})
SOUNDS = frozenset({"clap"})
PAGES = frozenset({"colpali", "colqwen2", "colmodernvbert"})
"""Kinds by `model_type`: those with `get_image_features`, with `get_audio_features`, and with a vector a token."""
_FILLED = frozenset({"siglip", "siglip2"})
"""Kinds trained on texts filled up to one length, the filling seen like any token."""
_SOUND_TOKENS = _UNPATCHED_TOKENS = 64
_METHODS = {"text": "get_text_features", "image": "get_image_features", "audio": "get_audio_features"}


def is_media(path: Path) -> bool:
    """Whether the folder of transformers holds a model of these kinds."""
    return files.read_object(path / "config.json", missing_ok=True).get("model_type") in PICTURES | SOUNDS | PAGES


def read_media(
    folder: ModelFolder, path: Path, settings: Mapping[str, Any], rest: Sequence[Entry], root: Path
) -> ModelFolder:
    """settings: sentence_bert_config.json's. rest: modules after the model. :raises ModelError: see the module."""
    kind = str(files.read_object(path / "config.json")["model_type"])
    config: Any = _config(path, kind)
    _check_route(path, settings, late=kind in PAGES)
    media = Media(
        takes="audio" if kind in SOUNDS else "image", late=kind in PAGES, tokens=_tokens(config, kind, path),
        filled=kind in _FILLED,
    )  # fmt: skip
    positions = None if media.late else _positions(config.text_config, kind)
    folder = replace(
        folder, path=path, architecture=str((config.architectures or [kind])[0]), model_type=kind, media=media,
        hidden_dim=_width(config, kind), max_positions=positions, max_seq_length=_length(path, settings, positions),
        weights=files.find_weights(path, allow_pickle=folder.allow_pickle),
        gives=("multivector",) if media.late else ("dense",),
    )  # fmt: skip
    return _with_modules(folder, rest, root)


def _with_modules(folder: ModelFolder, rest: Sequence[Entry], root: Path) -> ModelFolder:
    modules: list[Module] = []
    for entry in rest:
        if folder.media is not None and folder.media.late:
            if entry.kind == "Normalize" or (entry.kind == "MultiVectorMask" and _masks_nothing(entry)):
                continue  # its vectors are of length 1 already, and pages have no padding
            raise unknown_module(entry, root)
        if entry.kind == "Pooling":
            raise unknown_module(entry, root)
        module = read_module(entry, root, folder.allow_pickle, pooled=True)
        if module is not None:
            modules.append(module)
    own = [m for m in modules if isinstance(m, (Dense, LayerNorm))]
    weights = [p for m in own for p in files.find_weights(m.path, allow_pickle=folder.allow_pickle)]
    folder = replace(folder, modules=tuple(modules), weights=(*folder.weights, *weights))
    check_widths(folder, folder.modules, root)
    return folder


def _masks_nothing(entry: Entry) -> bool:
    config = files.read_object(entry.path / "config.json", missing_ok=True)
    return not config.get("skiplist_words") and config.get("keep_only_token_ids") is None


def _config(path: Path, kind: str) -> object:
    """With what its makers left to defaults. :raises ModelError: transformers does not know it."""
    try:
        from transformers import AutoConfig
    except ImportError as exc:
        raise ModelError(
            f"{path}: reading a {kind} model needs transformers", hint="pip install 'embedctl[torch]'"
        ) from exc
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)  # it remarks on defaults that no user can change
    try:
        return AutoConfig.from_pretrained(str(path), local_files_only=True)
    except EmbedctlError:  # a signal came
        raise
    except Exception as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ModelError(f"{path / 'config.json'}: transformers cannot read it: {lines[0][:300]}") from exc
    finally:
        logging.set_verbosity(verbosity)


def _check_route(path: Path, settings: Mapping[str, Any], *, late: bool) -> None:
    """sentence-transformers may lead inputs another way; only the model's own is understood."""
    where = path / "sentence_bert_config.json"
    task = settings.get("transformer_task")
    if task is not None and task != ("retrieval" if late else "feature-extraction"):
        raise ModelError(f"{where}: transformer_task {task!r} is not understood")
    if "message" in (settings.get("modality_config") or {}):
        raise ModelError(f"{where}: it wraps inputs in a chat template (modality 'message'), which is not understood")
    for name, route in (settings.get("modality_config") or {}).items():
        method, output = route.get("method"), route.get("method_output_name")
        good = method == ("forward" if late else _METHODS.get(name))
        if not good or output not in (("embeddings",) if late else ("pooler_output", None)):
            raise ModelError(f"{where}: {name} is read through {method!r} and {output!r}, which is not understood")
    given = settings.get("processing_kwargs") or {}
    for name in given:
        if name != "text" or set(given[name]) - {"max_length", "truncation", "padding"}:
            raise ModelError(f"{where}: processing_kwargs for {name!r} are not understood")


def _tokens(config: Any, kind: str, path: Path) -> int | None:
    """Of any picture or sound; None where it depends on the picture or on the processor."""
    if kind in PAGES:
        return None
    if kind in SOUNDS:
        return _SOUND_TOKENS
    if kind == "siglip2":
        return int(processor_settings(path).get("max_num_patches") or 256)
    vision = config.vision_config
    if not hasattr(vision, "patch_size"):  # convolutions
        return _UNPATCHED_TOKENS
    side = int(vision.image_size) // int(vision.patch_size)
    return side * side + (0 if kind == "siglip" else 1)


def processor_settings(path: Path) -> dict[str, Any]:
    """How pictures or sounds are prepared, from the file of today or of yesterday. {} where no file says it."""
    whole = files.read_object(path / "processor_config.json", missing_ok=True)
    found = whole.get("image_processor") or whole.get("feature_extractor")
    return found if isinstance(found, dict) else files.read_object(path / "preprocessor_config.json", missing_ok=True)


def _width(config: Any, kind: str) -> int:
    if kind in PAGES:
        return int(config.embedding_dim)
    if kind in _FILLED:
        vision, text = config.vision_config, config.text_config
        found = int(getattr(text, "projection_size", None) or text.hidden_size)
        if found != int(vision.hidden_size):
            raise ModelError(f"{kind}: texts become {found} numbers and pictures {vision.hidden_size}")
        return found
    return int(config.projection_dim)


def _positions(text: Any, kind: str) -> int | None:
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return None
    if kind in ("clap", "altclip"):  # texts are RoBERTa's, whose positions start after the padding token's number
        return positions - int(getattr(text, "pad_token_id", None) or 1) - 1
    return positions


def _length(path: Path, settings: Mapping[str, Any], positions: int | None) -> int:
    text = (settings.get("processing_kwargs") or {}).get("text") or {}
    told = files.read_object(path / "tokenizer_config.json", missing_ok=True).get("model_max_length")
    asked = text.get("max_length") or settings.get("max_seq_length") or told or UNLIMITED
    return min(int(asked), positions or UNLIMITED, UNLIMITED)
