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
from embedctl.models.fake import fake_options
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import Dense, Module, Pooling
from embedctl.models.scorer import Chat, Scorer
from embedctl.models.transformer_files import read_transformer
from embedctl.spec import POOLINGS

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
    (_, first), rest = entries[0], entries[1:]
    settings = files.read_object(first / "sentence_bert_config.json", missing_ok=True)
    task = settings.get("transformer_task", "feature-extraction")
    if task not in _TASKS:
        raise ModelError(f"{first / 'sentence_bert_config.json'}: transformer_task {task!r} is not understood")
    folder, config = _transformer(_prompts(start, root), first, settings)
    saved = str(
        files.read_object(root / "config_sentence_transformers.json", missing_ok=True).get("activation_fn") or ""
    )
    scorer, modules, outputs = _head(root, task, rest, folder.hidden_dim)
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


def _entries(root: Path) -> list[tuple[str, Path]]:
    """(kind, folder) of each module, the transformer first."""
    listed = files.read_json(root / "modules.json")
    if not isinstance(listed, list) or not listed or not all(isinstance(m, dict) and "type" in m for m in listed):
        raise ModelError(f"{root / 'modules.json'}: not a list of modules")
    entries = []
    for module in listed:
        path = root / str(module.get("path", ""))
        if not path.resolve().is_relative_to(root.resolve()):
            raise ModelError(f"{root / 'modules.json'}: module path {module['path']!r} leads out of the folder")
        if not str(module["type"]).startswith("sentence_transformers."):
            raise _unknown(root, str(module["type"]))
        entries.append((str(module["type"]).rpartition(".")[2], path))
    if entries[0][0] != "Transformer":
        raise _unknown(root, entries[0][0])
    return entries


def _head(root: Path, task: str, rest: list[tuple[str, Path]], width: int) -> tuple[Scorer, tuple[Module, ...], int]:
    """(where scores come from, modules to run for them, how many numbers they give)."""
    kinds = [kind for kind, _ in rest if kind != "Dropout"]
    if task == "sequence-classification" and not kinds:
        return Scorer(head="classifier"), (), 0
    if task == "text-generation" and kinds == ["LogitScore"]:
        config = files.read_object(rest[0][1] / "config.json")
        true_id, false_id = config.get("true_token_id"), config.get("false_token_id")
        if not isinstance(true_id, int) or not isinstance(false_id, (int, type(None))):
            raise ModelError(f"{rest[0][1] / 'config.json'}: true_token_id and false_token_id are not token numbers")
        return Scorer(head="logits", true_id=true_id, false_id=false_id), (), 1
    if task == "feature-extraction" and kinds[:1] == ["Pooling"] and set(kinds[1:]) == {"Dense"}:
        paths = [path for kind, path in rest if kind != "Dropout"]
        modules: list[Module] = [_pooling(paths[0])]
        for path in paths[1:]:
            modules.append(_dense(path, width * len(_pooling(paths[0]).modes) if len(modules) == 1 else width))
            width = modules[-1].out_features  # type: ignore[union-attr]
        if files.read_object(paths[-1] / "config.json").get("module_output_name") != "scores":
            raise ModelError(
                f"{root}: an embedder, whose modules give no scores", hint="embedctl embed takes embedders"
            )
        return Scorer(head="modules"), tuple(modules), width
    if not (set(kinds) & {"LogitScore"}) and task == "feature-extraction":
        raise _embedder(root)
    raise _unknown(root, f"{', '.join(kinds) or 'nothing'} after a Transformer for {task}")


def _pooling(path: Path) -> Pooling:
    config = files.read_object(path / "config.json")
    modes = config.get("pooling_mode") or [m for m in POOLINGS if config.get(_legacy(m))] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes:
        if mode not in POOLINGS:
            raise ModelError(f"{path / 'config.json'}: pooling mode {mode!r} is not one of {', '.join(POOLINGS)}")
    return Pooling(modes=modes)


def _legacy(mode: str) -> str:
    return f"pooling_mode_{mode}" + {"cls": "_token", "max": "_tokens", "mean": "_tokens"}.get(mode, "")


def _dense(path: Path, width: int) -> Dense:
    config = files.read_object(path / "config.json")
    if config.get("in_features") != width:
        raise ModelError(f"{path}: takes {config.get('in_features')} numbers, the module before gives {width}")
    files.find_weights(path, allow_pickle=False)
    return Dense(
        path=path, in_features=width, out_features=int(config["out_features"]), bias=bool(config.get("bias", True)),
        activation=str(config.get("activation_function", "torch.nn.modules.activation.Tanh")),
        residual=bool(config.get("use_residual", False)),
    )  # fmt: skip


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


def _prompts(folder: ModelFolder, root: Path) -> ModelFolder:
    path = root / _SETTINGS
    config = files.read_object(path, missing_ok=True)
    prompts = {str(k): str(v or "") for k, v in (config.get("prompts") or {}).items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(
            f"{path}: default_prompt_name {default!r} is not one of its prompts: {', '.join(prompts) or 'none'}"
        )
    return replace(folder, prompts=prompts, default_prompt_name=default)


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
