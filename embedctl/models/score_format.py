"""The folders of rerankers and classifiers: plain transformers ones, and sentence-transformers' CrossEncoders.

Enters: a folder. Leaves: a `ModelFolder` with its `scorer` and labels. Refuses by name: embedders, modules that are not
understood, decoders whose chat template does not know a query and a document, activations that are not torch's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.entries import Entry, read_entries
from embedctl.models.fake import fake_options
from embedctl.models.folder import ModelFolder
from embedctl.models.module_files import check_widths, read_dense, read_pooling
from embedctl.models.modules import Module
from embedctl.models.scorer import Chat, Scorer
from embedctl.models.st_format import read_settings
from embedctl.models.transformer_files import read_transformer

QWEN3_TEMPLATE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ (messages | selectattr("role", "equalto", "system") | map(attribute="content") | first) \
or "Given a web search query, retrieve relevant passages that answer the query" }}
<Query>: {{ messages | selectattr("role", "equalto", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "equalto", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ "" }}"""
"""As Qwen3-Reranker's authors publish it, for folders whose own template is only for chatting."""

_TASKS = ("sequence-classification", "text-generation", "feature-extraction")
_SETTINGS = "config_sentence_transformers.json"
_AUTO = "AutoModelForSequenceClassification"


def read_scorer(root: Path, name: str, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> ModelFolder:
    """Everything but the weights' numbers. :raises ModelError: broken or not understood, in one line."""
    if not root.is_dir():
        raise ModelError(f"{root}: not a folder")
    start = ModelFolder(
        name=name, kind="transformer", root=root, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code,
        gives=("score",),
    )  # fmt: skip
    if not (root / "modules.json").is_file():
        return _plain(start, root)
    entries = _entries(root)
    first, rest = entries[0].path, entries[1:]
    settings = files.read_object(first / "sentence_bert_config.json", missing_ok=True)
    task = settings.get("transformer_task", "feature-extraction")
    if task not in _TASKS:
        raise ModelError(f"{first / 'sentence_bert_config.json'}: transformer_task {task!r} is not understood")
    folder, config = _transformer(read_settings(start, root), first, settings)
    saved = str(files.read_object(root / _SETTINGS, missing_ok=True).get("activation_fn") or "")
    scorer, modules, outputs = _head(folder, root, task, rest)
    chat = _chat_of(settings)
    activation = saved or _saved_activation(config)
    scorer = replace(scorer, activation=_known_activation(activation, root), problem=_problem(config), chat=chat)
    labels = _labels(config, root) if scorer.head == "classifier" else _numbered(outputs)
    return replace(folder, modules=modules, scorer=scorer, labels=labels)


def fake_scorer(name: str) -> ModelFolder:
    """A fake reranker of one label, or a classifier of as many as `dim` says."""
    options = fake_options(name)
    labels = _numbered(options.dim if "dim=" in name else 1)
    return ModelFolder(
        name=name, kind="fake", architecture="fake", model_type="fake", hidden_dim=options.dim,
        max_seq_length=options.max_length, gives=("score",), labels=labels, scorer=Scorer(head="classifier"),
    )  # fmt: skip


def _plain(start: ModelFolder, root: Path) -> ModelFolder:
    if not (root / "config.json").is_file():
        raise ModelError(
            f"{root}: neither modules.json nor config.json; this is not a model folder",
            hint="give the folder that holds them, or the id of a reranker or classifier on the hub",
        )
    folder, config = _transformer(start, root, {})
    template = _template(root)
    if folder.architecture.endswith("ForSequenceClassification"):
        scorer = Scorer(head="classifier", chat=None if template is None else Chat())
    elif folder.architecture.endswith("ForCausalLM"):
        scorer = _yes_no(folder, root, template)
        config = {**config, "id2label": {"0": "LABEL_0"}}
    else:
        raise ModelError(
            f"{root}: {folder.architecture} has no head that scores texts", hint="embedctl embed takes embedders"
        )
    activation = _known_activation(_saved_activation(config), root)
    scorer = replace(scorer, activation=activation, problem=_problem(config))
    return replace(folder, scorer=scorer, labels=_labels(config, root))


def _entries(root: Path) -> tuple[Entry, ...]:
    """Its modules, the transformer first."""
    ways = read_entries(root)
    for entry in ways.documents:
        if not entry.type.startswith("sentence_transformers."):
            raise _unknown(root, entry.type)
    if ways.queries != ways.documents or ways.documents[0].kind != "Transformer":
        raise _unknown(root, ways.documents[0].kind)
    return ways.documents


def _head(
    folder: ModelFolder, root: Path, task: str, rest: tuple[Entry, ...]
) -> tuple[Scorer, tuple[Module, ...], int]:
    """(where scores come from, modules to run for them, how many numbers they give)."""
    rest = tuple(entry for entry in rest if entry.kind != "Dropout")
    kinds = [entry.kind for entry in rest]
    if task == "sequence-classification" and not kinds:
        return Scorer(head="classifier"), (), 0
    if task == "text-generation" and kinds == ["LogitScore"]:
        return _logits(rest[0]), (), 1
    if task == "feature-extraction" and kinds[:1] == ["Pooling"] and set(kinds[1:]) == {"Dense"}:
        modules: tuple[Module, ...] = (
            read_pooling(rest[0]),
            *(read_dense(entry, allow_pickle=folder.allow_pickle) for entry in rest[1:]),
        )
        if files.read_object(rest[-1].config_path).get("module_output_name") != "scores":
            raise _embedder(root)
        return Scorer(head="modules"), modules, check_widths(folder, modules, root)
    if "LogitScore" not in kinds and task == "feature-extraction":
        raise _embedder(root)
    raise _unknown(root, f"{', '.join(kinds) or 'nothing'} after a Transformer for {task}")


def _logits(entry: Entry) -> Scorer:
    config = files.read_object(entry.config_path)
    true_id, false_id = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(true_id, int) or not isinstance(false_id, (int, type(None))):
        raise ModelError(f"{entry.config_path}: true_token_id and false_token_id are not token numbers")
    return Scorer(head="logits", true_id=true_id, false_id=false_id)


def _transformer(folder: ModelFolder, path: Path, settings: Mapping[str, Any]) -> tuple[ModelFolder, dict[str, Any]]:
    config = files.read_object(path / "config.json")
    custom = config.get("auto_map")
    if isinstance(custom, dict) and _AUTO in custom and not folder.trust_remote_code:
        raise ModelError(
            f"{path / 'config.json'}: this model runs its own code ({custom[_AUTO]})",
            hint="read that code, then add --trust-remote-code",
        )
    known = {k: v for k, v in settings.items() if k not in ("transformer_task", "modality_config")}
    gives = folder.gives
    return replace(read_transformer(folder, path, known, task="feature-extraction"), gives=gives), config


def _chat_of(settings: Mapping[str, Any]) -> Chat | None:
    """How pairs are rendered where the module says that it takes messages."""
    message = (settings.get("modality_config") or {}).get("message")
    if message is None:
        return None
    sizes = ("padding", "truncation", "max_length", "return_tensors", "restore_suffix")
    options = (settings.get("processing_kwargs") or {}).get("chat_template") or {}
    return Chat(
        structured=message.get("format") == "structured", options={k: v for k, v in options.items() if k not in sizes}
    )


def _template(root: Path) -> str | None:
    """The folder's chat template."""
    path = root / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = files.read_object(root / "tokenizer_config.json", missing_ok=True).get("chat_template")
    return template if isinstance(template, str) else None


def _yes_no(folder: ModelFolder, root: Path, template: str | None) -> Scorer:
    """A bare decoder is asked for yes or no, as Qwen3-Reranker is."""
    from tokenizers import Tokenizer

    own = template is not None and "query" in template and "document" in template
    if not own and folder.model_type != "qwen3":
        raise ModelError(
            f"{root}: a decoder whose chat template does not know a query and a document",
            hint="put a chat_template.jinja into the folder that renders the roles query and document",
        )
    try:
        vocabulary = Tokenizer.from_file(str(root / "tokenizer.json"))
    except Exception as exc:
        raise ModelError(f"{root / 'tokenizer.json'}: cannot be read: {exc}") from exc
    yes, no = vocabulary.token_to_id("yes"), vocabulary.token_to_id("no")
    if yes is None or no is None:
        raise ModelError(f"{root}: its tokenizer has no single tokens for yes and no, which a decoder is asked")
    return Scorer(head="logits", true_id=yes, false_id=no, chat=Chat(template=None if own else QWEN3_TEMPLATE))


def _labels(config: Mapping[str, Any], root: Path) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        return _numbered(int(config.get("num_labels") or 2))
    if sorted(map(int, names)) != list(range(len(names))):
        raise ModelError(f"{root / 'config.json'}: id2label does not number its labels from 0")
    return tuple(str(label) for _, label in sorted(names.items(), key=lambda item: int(item[0])))


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def _problem(config: Mapping[str, Any]) -> str:
    return str(config.get("problem_type") or "")


def _saved_activation(config: Mapping[str, Any]) -> str:
    """Where CrossEncoder kept it: inside config.json, under today's name or before version 4's."""
    newer = (config.get("sentence_transformers") or {}).get("activation_fn")
    return str(newer or config.get("sbert_ce_default_activation_function") or "")


def _known_activation(name: str, root: Path) -> str:
    if name and not name.startswith("torch.nn."):
        raise ModelError(f"{root}: its activation {name!r} is not one of torch.nn, so it is not understood")
    return name


def _unknown(root: Path, what: str) -> ModelError:
    return ModelError(f"{root / 'modules.json'}: {what} is not understood, so its scores would be wrong")


def _embedder(root: Path) -> ModelError:
    return ModelError(f"{root}: an embedder, whose modules give no scores", hint="embedctl embed takes embedders")
