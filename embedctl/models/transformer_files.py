"""config.json and the settings beside it: what a transformer's folder says before its weights are opened.

Enters: the folder, and sentence_bert_config.json where there is one. Leaves: the `ModelFolder` with architecture,
lengths, width and weights. Refuses: custom code without leave, chat formats, outputs other than token embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.folder import UNLIMITED, ModelFolder
from embedctl.models.modules import Pooling, Splade
from embedctl.models.onnx_files import weights_or_onnx
from embedctl.models.sparse_format import vocabulary_of

_UPSTREAMED = frozenset({"nomic_bert", "eurobert", "modernbert", "gte", "jina_embeddings_v3"})
"""Kinds that began as custom code and that transformers now holds under the same name with the same numbers. Custom
code under an older kind's name (bert, qwen2) means other numbers than that kind's: it is never replaced."""

_OFFSET_KINDS = frozenset({
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer", "ibert", "data2vec-text", "xmod",
    "roberta-prelayernorm", "mega", "luke", "bertweet", "esm", "jina_embeddings_v3",
})  # fmt: skip
"""Kinds whose positions start after the padding token's number."""

_UNPLACED = frozenset({"t5", "mt5", "umt5", "xlnet", "deberta-v2", "deberta", "bloom", "mpt"})
"""Kinds whose positions are relative, so that any length can be placed."""


SCORED = frozenset({"sequence-classification", "text-generation", "any-to-any"})
"""Tasks of a Transformer module that score pairs of texts or classify."""


def task_of(settings: Mapping[str, Any], assumed: str | None, kind: str | None) -> str:
    """What the Transformer module is for: as it says, as its class means, or as the whole model's kind does."""
    default = "sequence-classification" if kind == "CrossEncoder" else "feature-extraction"
    return str(settings.get("transformer_task") or assumed or default)


def read_transformer(folder: ModelFolder, path: Path, settings: Mapping[str, Any], *, task: str | None) -> ModelFolder:
    """See the module. task: None for a folder of transformers alone, which has none of the other modules.

    :raises ModelError: broken or not understood."""
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f"{path}: a PEFT adapter, not a whole model", hint="merge it into its base model and save that"
        )
    config = files.read_object(path / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{path / 'config.json'}: no model_type")
    _check_custom_code(folder, path, config, model_type)
    _check_text_route(path, settings, task or "feature-extraction")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    positions = _max_positions(config, model_type)
    length, notes = _max_seq_length(folder, path, settings, positions)
    folder = replace(
        folder,
        path=path,
        architecture=str((config.get("architectures") or [model_type])[0]),
        model_type=model_type,
        max_seq_length=length,
        max_positions=positions,
        lowercase=bool(settings.get("do_lower_case", False)),
        hidden_dim=_hidden_dim(path, text),
        weights=weights_or_onnx(path, allow_pickle=folder.allow_pickle),
        notes=(*folder.notes, *notes),
    )
    if task in SCORED or (task is None and folder.architecture.endswith("ForSequenceClassification")):
        one = task in ("text-generation", "any-to-any")  # the weight of a word, as decoder rerankers give it
        return replace(folder, gives=("score",), labels=("score",) if one else _labels(config))
    if task is not None:
        return folder
    if folder.architecture.endswith("ForMaskedLM"):
        return _with_default_splade(_with_default_pooling(folder, config), vocabulary_of(config, path))
    return _with_default_pooling(folder, config)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of a classifier's numbers. transformers writes them down only where there are not two."""
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels") or 2)))


def _with_default_splade(folder: ModelFolder, vocabulary: int) -> ModelFolder:
    """A masked language model on its own is taken for SPLADE, as sentence-transformers' SparseEncoder takes it."""
    note = (
        f"{folder.name} has no modules.json and a masked language model's head: sparse output, "
        "max over log(1 + relu) (--output dense for its pooled vectors)"
    )
    return replace(folder, sparse=Splade(vocabulary=vocabulary), gives=("sparse", "dense"), notes=(note,))


def _with_default_pooling(folder: ModelFolder, config: Mapping[str, Any]) -> ModelFolder:
    """Without modules.json the field's custom holds: the last token for causal models, the mean for all others."""
    causal = folder.architecture.endswith("ForCausalLM") and config.get("is_causal", True)
    mode = "lasttoken" if causal else "mean"
    note = f"{folder.name} has no modules.json: {mode} pooling, no normalising (--pooling chooses another)"
    return replace(folder, modules=(Pooling(modes=(mode,)),), notes=(*folder.notes, note))


def _check_custom_code(folder: ModelFolder, path: Path, config: Mapping[str, Any], model_type: str) -> None:
    custom = config.get("auto_map")
    if (
        isinstance(custom, dict)
        and "AutoModel" in custom
        and model_type not in _UPSTREAMED
        and not folder.trust_remote_code
    ):
        raise ModelError(
            f"{path / 'config.json'}: this model runs its own code ({custom['AutoModel']})",
            hint="read that code, then add --trust-remote-code",
        )
    positions = config.get("position_embedding_type", "absolute")
    if model_type in ("bert", "roberta", "xlm-roberta", "electra") and positions != "absolute" and not custom:
        raise ModelError(f"{path / 'config.json'}: position_embedding_type {positions!r} is not understood")


_READS = {"feature-extraction": "last_hidden_state", "fill-mask": "logits"}
"""What the Transformer module must read of the model, by task."""


def _check_text_route(path: Path, settings: Mapping[str, Any], task: str) -> None:
    """The Transformer module must turn plain text into one vector a token, and nothing else."""
    where = path / "sentence_bert_config.json"
    if task in SCORED:
        return
    if task not in _READS:
        raise ModelError(f"{where}: transformer_task {task!r} is not understood")
    routes = settings.get("modality_config")
    if routes is None:
        return
    if "message" in routes:
        raise ModelError(f"{where}: it wraps texts in a chat template (modality 'message'), which is not understood")
    text = routes.get("text")
    if text is None:
        raise ModelError(f"{where}: it takes {', '.join(routes) or 'nothing'}, not text")
    method, output = text.get("method"), text.get("method_output_name")
    if method != "forward" or output not in (_READS[task], [_READS[task]]):
        raise ModelError(f"{where}: text is read through {method!r} and {output!r}, which is not understood")


def _max_positions(config: Mapping[str, Any], model_type: str) -> int | None:
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1 or model_type in _UNPLACED:
        return None
    if model_type in _OFFSET_KINDS:
        pad = config.get("pad_token_id")
        return positions - (pad if isinstance(pad, int) else 1) - 1
    return positions


def _max_seq_length(
    folder: ModelFolder, path: Path, settings: Mapping[str, Any], positions: int | None
) -> tuple[int, tuple[str, ...]]:
    """The folder's own length, in the order sentence-transformers asks for it, never above what can be placed."""
    text = (settings.get("processing_kwargs") or {}).get("text") or {}
    tokenizer = settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}
    asked = text.get("max_length") or tokenizer.get("model_max_length") or settings.get("max_seq_length")
    if asked is None:
        asked = files.read_object(path / "tokenizer_config.json", missing_ok=True).get("model_max_length") or UNLIMITED
    length = min(int(asked), UNLIMITED)
    if positions is None or length <= positions:
        return length, ()
    if settings.get("max_seq_length"):
        return positions, (
            f"{folder.name} asks for {length} tokens but has positions for {positions}: {positions} is used",
        )
    return positions, ()


def _hidden_dim(path: Path, config: Mapping[str, Any]) -> int:
    for key in ("hidden_size", "d_model", "dim", "n_embd", "emb_dim"):
        if isinstance(config.get(key), int):
            return int(config[key])
    raise ModelError(f"{path / 'config.json'}: no hidden_size, so the width of its vectors is unknown")
