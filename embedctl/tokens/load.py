"""Reads a model folder's tokenizer so that its ids equal what sentence-transformers feeds the model.

A folder enters; a `tokenizers.Tokenizer` without truncation and padding leaves, with the side it is cut at.
transformers rebuilds many tokenizers from its own classes (normalizer, special tokens, BOS and EOS from
tokenizer_config.json), so the file alone is read only where both are known to agree: BERT's own layout, and
static embeddings, which are defined by the file. Refused by name: no tokenizer files, one that exists only in Python.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedctl.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
_BERT_SPECIALS = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}  # fmt: skip  # noqa: E501
_BERT_HARMLESS = {
    "do_lower_case", "tokenize_chinese_chars", "strip_accents", "name_or_path", "do_basic_tokenize", "never_split",
    "tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "max_length", "stride", "truncation_side",
    "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "padding_side", "special_tokens_map_file",
    "tokenizer_file", "model_input_names", "backend", "is_local",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """`cut_left`: the tokenizer drops tokens from the start. `special_ids`: ids of its named special tokens.
    `file_max_length`: the truncation the file itself carried, None without one. `type_ids`: the model is given the
    token type of each token."""

    rust: Tokenizer
    cut_left: bool
    special_ids: frozenset[int]
    file_max_length: int | None
    type_ids: bool = False


def load_rust(folder: Path, *, trust_remote_code: bool, as_file: bool) -> LoadedTokenizer:
    """`as_file`: take tokenizer.json as it stands, whatever transformers would make of it.

    :raises ModelError: no tokenizer, or one that cannot be read or is not a Rust one.
    """
    path = folder / TOKENIZER_FILE
    if as_file and not path.is_file():
        raise ModelError(f"{folder}: no {TOKENIZER_FILE}", hint="static embeddings need one; is the folder complete?")
    if path.is_file():
        rust = _from_file(path)
        rust.no_padding()
        config = _read_json(folder / "tokenizer_config.json")
        if as_file or _is_plain_bert(rust, config, folder):
            return _loaded(rust, config.get("truncation_side") == "left", _file_specials(rust), _takes_types(config))
        if not _has_transformers():
            return _loaded(rust, config.get("truncation_side") == "left", _file_specials(rust), _takes_types(config))
    elif not _has_transformers():
        raise ModelError(f"{folder}: no {TOKENIZER_FILE}, and reading other tokenizers needs transformers",
                         hint="pip install 'embedctl[torch]'")  # fmt: skip
    return _from_transformers(folder, trust_remote_code)


def _from_file(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as exc:
        raise ModelError(f"{path}: not a tokenizer this version of tokenizers can read: {exc}",
                         hint="pip install -U tokenizers") from exc  # fmt: skip


def _from_transformers(folder: Path, trust_remote_code: bool) -> LoadedTokenizer:
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(
            str(folder), use_fast=True, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as exc:
        reason = str(exc).strip().split("\n", 1)[0]
        raise ModelError(f"{folder}: transformers cannot load its tokenizer: {reason}",
                         hint="look for tokenizer.json, vocab.txt or a .model file in the folder") from exc  # fmt: skip
    rust = getattr(wrapped, "backend_tokenizer", None)
    if rust is None:
        raise ModelError(
            f"{folder}: {type(wrapped).__name__} exists only in Python, without offsets or parallel encoding",
            hint=f"save a {TOKENIZER_FILE} for it and put it into the folder",
        )
    return _loaded(rust, wrapped.truncation_side == "left", frozenset(wrapped.all_special_ids),
                   "token_type_ids" in wrapped.model_input_names)  # fmt: skip


def _takes_types(config: dict[str, Any]) -> bool:
    """What tokenizer_config.json says, or what BERT's tokenizer does where it says nothing."""
    plain = str(config.get("tokenizer_class", "BertTokenizer")).removesuffix("Fast") == "BertTokenizer"
    return "token_type_ids" in config.get("model_input_names", ["token_type_ids"] if plain else [])


def _loaded(rust: Tokenizer, cut_left: bool, special_ids: frozenset[int], type_ids: bool) -> LoadedTokenizer:
    carried = rust.truncation
    rust.no_truncation()
    rust.no_padding()
    return LoadedTokenizer(
        rust=rust, cut_left=cut_left, special_ids=special_ids,
        file_max_length=carried["max_length"] if carried else None, type_ids=type_ids,
    )  # fmt: skip


def _file_specials(rust: Tokenizer) -> frozenset[int]:
    return frozenset(i for i, token in rust.get_added_tokens_decoder().items() if token.special)


def _has_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("transformers") is not None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path}: not readable JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise ModelError(f"{path}: holds a {type(content).__name__}, not an object")
    return content


def _is_plain_bert(rust: Tokenizer, config: dict[str, Any], folder: Path) -> bool:
    """Whether transformers' BertTokenizer would build just what the file holds."""
    if _read_json(folder / "config.json").get("model_type") != "bert" or (folder / "added_tokens.json").exists():
        return False
    if str(config.get("tokenizer_class", "BertTokenizer")).removesuffix("Fast") != "BertTokenizer":
        return False
    if not set(config) <= _BERT_HARMLESS | set(_BERT_SPECIALS) | {"added_tokens_decoder"}:
        return False
    named = _read_json(folder / "special_tokens_map.json") | config
    if not set(named) <= set(config) | set(_BERT_SPECIALS):
        return False
    if any(_text(named.get(key, value)) != value for key, value in _BERT_SPECIALS.items()):
        return False
    if not {_text(token) for token in config.get("added_tokens_decoder", {}).values()} <= set(_BERT_SPECIALS.values()):
        return False
    added = rust.get_added_tokens_decoder()
    if sorted(token.content for token in added.values()) != sorted(_BERT_SPECIALS.values()):
        return False
    return _state(rust.normalizer) == {
        "type": "BertNormalizer", "clean_text": True, "lowercase": config.get("do_lower_case", True),
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
    } and _state(rust.pre_tokenizer) == {"type": "BertPreTokenizer"} and _is_bert_model(rust)  # fmt: skip


def _is_bert_model(rust: Tokenizer) -> bool:
    model = rust.model
    if type(model).__name__ != "WordPiece" or model.unk_token != "[UNK]":
        return False
    if model.continuing_subword_prefix != "##" or model.max_input_chars_per_word != 100:
        return False
    wrapped = rust.encode("a", add_special_tokens=True).tokens
    return (wrapped[0], wrapped[-1]) == ("[CLS]", "[SEP]") and len(wrapped) == 3


def _text(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())
