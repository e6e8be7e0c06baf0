from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from embedctl.errors import ModelError, UsageError
from embedctl.records import Tokenized
from embedctl.tokens.tokenize import RustTokenizer, load_tokenizer, set_threads

ALPHABET = (
    "abcdefghij THE quick.,!?'\n\t\r 123éüßñ中文字日本"
    "\u0301\u0308\u200d👍👩\u200d🔬\u0600\xa0\u3000\u2581한국данные<s></s>[SEP]\x00\x07\u00b4"
)
TEXTS = [
    "", " ", "The quick brown fox", "  lead and trail  ", "don't we'll it's", "中文字符 and 日本語", "a" * 300,
    "naïve café e\u0301 \u0301x", "👩\u200d🔬 👍🏽", "tabs\tand\r\nlines\n\n\n", "<s> special [SEP] </s> <mask>",
    "nul\x00 bell\x07",
    "x" * 20 + " " + "y " * 40, "\u0600 \u0601x", "    ", "\u2581mark", "12345 1.5e-7",
]  # fmt: skip
texts_strategy = st.text(alphabet=ALPHABET, max_size=120)
cached_auto = functools.lru_cache(lambda folder: AutoTokenizer.from_pretrained(folder, local_files_only=True))
FIXTURES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows(tokenized: Tokenized) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokenized.ids_T, tokenized.offsets[1:-1])]


def reference(folder: Path, texts: list[str], max_length: int, side: str = "right") -> list[list[int]]:
    auto = cached_auto(str(folder))
    auto.truncation_side = side
    return auto(texts, truncation="longest_first", max_length=max_length)["input_ids"]


@functools.lru_cache
def ours(folder: Path, max_length: int) -> RustTokenizer:
    return load_tokenizer(folder, max_length=max_length)


@pytest.mark.parametrize("max_length", [5, 16, 512])
def test_ids_equal_auto_tokenizer(folders, kind, max_length):
    folder = folders[kind]
    got = load_tokenizer(folder, max_length=max_length)(TEXTS)
    assert rows(got) == reference(folder, TEXTS, max_length)
    full = reference(folder, TEXTS, 100_000)
    assert got.truncated.tolist() == [len(ids) > max_length for ids in full]
    assert (got.ids_T.dtype, got.offsets.dtype, got.truncated.dtype) == (np.int32, np.int64, np.bool_)


@FIXTURES
@given(texts=st.lists(texts_strategy, max_size=5))
def test_any_text_equals_auto_tokenizer(folders, kind, texts):
    assert rows(ours(folders[kind], 20)(texts)) == (reference(folders[kind], texts, 20) if texts else [[]])


def test_minilm_equals_sentence_transformers(minilm):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    texts = [text for text in TEXTS if text] + ["vector " * 400]
    features = [model.preprocess([text])["input_ids"][0].tolist() for text in texts]
    assert rows(load_tokenizer(minilm, max_length=model.max_seq_length)(texts)) == features
    prompted = model.preprocess(["some text"], prompt="query: ")
    mine = load_tokenizer(minilm, max_length=256, prompt="query: ")
    assert rows(mine(["some text"])) == prompted["input_ids"].tolist()
    assert mine.num_prompt_tokens == prompted["prompt_length"] == 3
    assert mine.overhead_tokens == 4


def test_minilm_needs_neither_torch_nor_transformers(minilm):
    code = (
        "import sys; from pathlib import Path; from embedctl.tokens.tokenize import load_tokenizer\n"
        f"t = load_tokenizer(Path({str(minilm)!r}), max_length=8); t(['x'])\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cut_from_the_left(folders, tmp_path):
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folders["wordpiece"] / name).read_bytes())
    config = json.loads((folders["wordpiece"] / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"truncation_side": "left"}))
    texts = [*TEXTS, "quick brown fox " * 5000]
    got = load_tokenizer(tmp_path, max_length=12)(texts)
    assert rows(got) == reference(tmp_path, texts, 12, side="left")


@pytest.mark.parametrize("kind_of", ["wordpiece", "gpt2", "xlmr"])
def test_lowercase_is_that_of_sentence_transformers(folders, kind_of):
    from tokenizers.normalizers import Lowercase, Sequence

    auto = AutoTokenizer.from_pretrained(str(folders[kind_of]), local_files_only=True)
    known = auto.backend_tokenizer.normalizer
    parts = [] if known is None else [known[i] for i in range(len(known))] if isinstance(known, Sequence) else [known]
    auto.backend_tokenizer.normalizer = Sequence([Lowercase(), *parts])
    got = load_tokenizer(folders[kind_of], max_length=30, lowercase=True)(["The QUICK Fox ÜBER"])
    assert rows(got) == auto(["The QUICK Fox ÜBER"])["input_ids"]


def test_bert_with_only_a_vocabulary(folders, tmp_path):
    rust = json.loads((folders["wordpiece"] / "tokenizer.json").read_text())
    vocab = sorted(rust["model"]["vocab"], key=rust["model"]["vocab"].get)
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    got = load_tokenizer(tmp_path, max_length=64)(TEXTS)
    assert rows(got) == rows(load_tokenizer(folders["wordpiece"], max_length=64)(TEXTS))


def test_file_that_differs_from_the_class_follows_the_class(folders, tmp_path):
    """do_lower_case false in the config, lower case in the file: transformers obeys the config."""
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folders["wordpiece"] / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    got = rows(load_tokenizer(tmp_path, max_length=64)(["The Quick Fox"]))
    assert got == reference(tmp_path, ["The Quick Fox"], 64)
    assert got != rows(load_tokenizer(folders["wordpiece"], max_length=64)(["The Quick Fox"]))


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens_decoder": {"9": {"content": "quick", "special": True}}},
        {"additional_special_tokens": ["fox"]},
        {"mask_token": "the"},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"add_bos_token": True},
    ],
)
def test_what_the_config_changes_is_obeyed(folders, tmp_path, change):
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folders["wordpiece"] / name).read_bytes())
    config = json.loads((folders["wordpiece"] / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | change))
    got = load_tokenizer(tmp_path, max_length=64)
    assert rows(got(TEXTS)) == reference(tmp_path, TEXTS, 64)


def test_special_tokens_map_is_obeyed(folders, tmp_path):
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folders["wordpiece"] / name).read_bytes())
    (tmp_path / "special_tokens_map.json").write_text('{"additional_special_tokens": ["qui"]}')
    assert rows(load_tokenizer(tmp_path, max_length=64)(TEXTS)) == reference(tmp_path, TEXTS, 64)


def test_threads_leave_the_users_choice_alone(monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    set_threads(1)
    assert (os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"]) == ("7", "false")


def test_static_embeddings_take_the_file_as_it_is(folders):
    from tokenizers import Tokenizer

    rust = Tokenizer.from_file(str(folders["wordpiece"] / "tokenizer.json"))
    rust.no_padding()
    text = "quick brown fox " * 20
    got = load_tokenizer(folders["wordpiece"], max_length=10_000, add_special_tokens=False)([text, ""])
    assert rows(got) == [rust.encode(text, add_special_tokens=False).ids, []]
    assert got.truncated.tolist() == [True, False]


def test_lone_surrogate_is_a_value_error(folders):
    with pytest.raises(ValueError, match="the tokenizer cannot take this text"):
        ours(folders["wordpiece"], 20)(["fine", "bad \ud800"])


def test_errors_name_the_folder_and_the_way_out(folders, tmp_path):
    with pytest.raises(ModelError, match="cannot load its tokenizer") as caught:
        load_tokenizer(tmp_path, max_length=8)
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "tokenizer.json").write_text("{]")
    with pytest.raises(ModelError, match="not a tokenizer this version of tokenizers can read"):
        load_tokenizer(tmp_path, max_length=8)
    with pytest.raises(UsageError, match="--max-length: 2 leaves no room for text beside 2 special tokens"):
        load_tokenizer(folders["wordpiece"], max_length=2)


def test_count_and_offsets(folders, kind):
    tokenizer = ours(folders[kind], 100_000)
    spans = tokenizer.offsets(TEXTS)
    special = tokenizer.overhead_tokens
    assert tokenizer.count(TEXTS) == [len(s) for s in spans] == [len(r) - special for r in rows(tokenizer(TEXTS))]
    assert all(s.dtype == np.int64 and s.shape[1:] == (2,) for s in spans)
    assert all((s >= 0).all() and (s <= len(t)).all() for s, t in zip(spans, TEXTS, strict=True))
