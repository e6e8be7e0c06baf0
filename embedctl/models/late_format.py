"""What late interaction adds to a folder: sentence-transformers' own layout, PyLate's, Stanford's.

Enters: settings as they stand in the folder. Leaves: `Late` for documents and for queries, markers, lengths, prompts.
Refuses: a query expansion that is not understood. What a folder leaves out is filled in as sentence-transformers does.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files
from embedctl.models.entries import Entry
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import Dense, Expansion, Late, Normalize, TokenPooling
from embedctl.models.sparse_format import IDENTITY

TYPES = frozenset({"MultiVectorEncoder", "ColBERT"})
_PYLATE = (
    "query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens",
    "attend_to_mask_tokens", "query_prefix", "document_prefix", "skiplist_words",
)  # fmt: skip
_PREFIXES = ("query_prefix", "document_prefix")
_PUNCTUATION = tuple(string.punctuation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How texts become vectors beside the layers. markers, lengths: of queries, of documents; None: the model's own."""

    markers: tuple[str, str] = ("", "")
    lengths: tuple[int | None, int | None] = (None, None)
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    skipped_of_queries: bool = False
    only: tuple[int, ...] = ()
    pooling: TokenPooling | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)


def is_late(config: Mapping[str, Any]) -> bool:
    """Whether config_sentence_transformers.json is that of a late interaction model."""
    return config.get("model_type") in TYPES or any(key in config for key in _PREFIXES)


def read_rules(config: Mapping[str, Any], transformer: Mapping[str, Any], entries: tuple[Entry, ...]) -> Rules:
    """Of config_sentence_transformers.json, the Transformer's own settings, and masks and poolings among `entries`.

    :raises ModelError: see the module."""
    rules = (
        _pylate(config) if any(key in config for key in _PYLATE) or config.get("model_type") == "ColBERT" else Rules()
    )
    own = [transformer.get("query_length"), transformer.get("document_length")]
    lengths = (own[0] or rules.lengths[0], own[1] or rules.lengths[1])
    if "query_expansion" in transformer:
        rules = replace(rules, expansion=_expansion(transformer["query_expansion"], "sentence_bert_config.json"))
    rules = replace(rules, lengths=lengths)
    for entry in entries:
        if entry.kind == "MultiVectorMask":
            rules = _masked(rules, files.read_object(entry.config_path, missing_ok=True))
        elif entry.kind == "HierarchicalTokenPooling":
            rules = replace(rules, pooling=_pooling(entry))
    return rules


def _pylate(config: Mapping[str, Any]) -> Rules:
    """PyLate writes its settings at the top, and expands queries and skips punctuation where they say nothing."""
    length = config.get("query_length")
    if "query_expansion" in config:
        expansion = _expansion(config["query_expansion"], "config_sentence_transformers.json")
    elif config.get("do_query_expansion") is False:
        expansion = None
    else:
        attend = config.get("attend_to_expansion_tokens", config.get("attend_to_mask_tokens"))
        expansion, length = Expansion(length=int(length or 32), attend=bool(attend)), None
    words = config.get("skiplist_words")
    return Rules(
        markers=(str(config.get("query_prefix") or ""), str(config.get("document_prefix") or "")),
        lengths=(length, config.get("document_length")),
        expansion=expansion,
        skipped=_PUNCTUATION if words is None else tuple(words),
    )


def _expansion(settings: Any, where: str) -> Expansion | None:
    if settings is None:
        return None
    if not isinstance(settings, dict) or settings.get("strategy") not in ("fixed", "min"):
        raise ModelError(f"{where}: query_expansion {settings!r} is not understood")
    return Expansion(
        length=int(settings["length"]),
        attend=bool(settings.get("attend", False)),
        token=settings.get("token"),
        fixed=settings["strategy"] == "fixed",
    )


def _masked(rules: Rules, config: Mapping[str, Any]) -> Rules:
    tasks = config.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    words = tuple(config.get("skiplist_words") or ())
    return replace(
        rules,
        skipped=words if "document" in tasks else (),
        skipped_of_queries="query" in tasks,
        only=tuple(config.get("keep_only_token_ids") or ()),
    )


def _pooling(entry: Entry) -> TokenPooling | None:
    config = files.read_object(entry.config_path)
    tasks = config.get("tasks") or ["document"]
    if list(tasks) != ["document"]:
        raise ModelError(f"{entry.config_path}: tasks {tasks!r} is not understood; only documents can be pooled")
    factor = float(config.get("pool_factor", 1.0))
    return TokenPooling(
        factor=factor,
        protected=int(config.get("num_protected_tokens", 1)),
        normalize=bool(config.get("normalize_embeddings", False)),
    )


def with_rules(folder: ModelFolder, late: Late, rules: Rules) -> ModelFolder:
    """The folder as it reads documents, the way it reads queries at its side."""
    both = replace(folder, gives=("multivector",), prompts={**folder.prompts, **rules.prompts}, similarity="cosine")
    asked = rules.expansion.length if rules.expansion is not None and rules.expansion.fixed else rules.lengths[0]
    if rules.expansion is not None and asked is not None:
        asked = max(asked, rules.expansion.length)
    documents = replace(late, skipped=rules.skipped, only=rules.only, pooling=rules.pooling)
    queries = replace(
        late, skipped=rules.skipped if rules.skipped_of_queries else (), expansion=rules.expansion, pooling=None
    )
    query_side = replace(
        both, late=queries, marker=rules.markers[0], max_seq_length=_length(both, asked),
        default_prompt_name=_first_of(both, "query"),
    )  # fmt: skip
    return replace(
        both, late=documents, marker=rules.markers[1], max_seq_length=_length(both, rules.lengths[1]),
        default_prompt_name=_first_of(both, "document", "passage", "corpus"), query_side=query_side,
    )  # fmt: skip


def _first_of(folder: ModelFolder, *names: str) -> str | None:
    return next((name for name in names if name in folder.prompts), folder.default_prompt_name)


def _length(folder: ModelFolder, asked: int | None) -> int:
    """Tokens a text may have: what the rules say, as far as the weights have positions."""
    if asked is None:
        return folder.max_seq_length
    return min(int(asked), folder.max_positions or int(asked))


def is_stanford(config: Mapping[str, Any]) -> bool:
    return "HF_ColBERT" in (config.get("architectures") or ())


def read_stanford(folder: ModelFolder, root: Path) -> ModelFolder:
    """A checkpoint of Stanford's ColBERT: its projection lies among the weights, its settings in artifact.metadata."""
    metadata = files.read_object(root / "artifact.metadata", missing_ok=True)
    rules = Rules(
        markers=(metadata.get("query_token_id") or "[unused0]", metadata.get("doc_token_id") or "[unused1]"),
        lengths=(None, metadata.get("doc_maxlen")),
        expansion=Expansion(
            length=int(metadata.get("query_maxlen") or 32), attend=bool(metadata.get("attend_to_mask_tokens"))
        ),
        skipped=_PUNCTUATION if metadata.get("mask_punctuation", True) else (),
    )
    path, width = _projection(folder, metadata)
    dense = Dense(path=path, in_features=folder.hidden_dim, out_features=width, bias=False, activation=IDENTITY)
    return with_rules(folder, Late(width=width, steps=(dense, Normalize())), rules)


def _projection(folder: ModelFolder, metadata: Mapping[str, Any]) -> tuple[Path, int]:
    for path in folder.weights:
        if path.suffix != ".safetensors":
            return path, int(metadata.get("dim") or 128)
        header = files.safetensors_header(path)
        if "linear.weight" in header:
            return path, int(header["linear.weight"]["shape"][0])
    raise ModelError(f"{folder.root}: no tensor linear.weight, the projection of ColBERT", hint="download it again")
