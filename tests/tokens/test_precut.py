from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from embedctl.tokens.precut import PreCut
from embedctl.tokens.tokenize import RustTokenizer, load_tokenizer

PIECES = st.sampled_from(
    ["the", "quick", "Tokenization", "中", "文字", "日本語", "한국어", "é", "e\u0301", "\u0301", "👍🏽", "👩\u200d🔬",
     "´", "<s>", "</s>", "<mask>", "[SEP]", "[MASK]", "<|endoftext|>", "\u2581", ".", "!!!", "don't", "123", "4567",
     "\u0600", "\n", "\r\n", "\t", "  ", " ", " ", " ", " ", "\xa0", "\u3000", "\u200b", "\x00", "x" * 120, "د",
     "\u0e01\u0e33", "🇩🇪", "\u0d4e", "\U00011f02"]
)  # fmt: skip
TEXT = st.lists(PIECES, min_size=1, max_size=60).map("".join)


@functools.lru_cache
def _loaded(folder: Path) -> RustTokenizer:
    return load_tokenizer(folder, max_length=100)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT, data=st.data())
def test_tokens_of_a_cut_are_a_prefix(folders, kind, text, data):
    tokenizer = _loaded(folders[kind])
    place = tokenizer._precut.place(text, data.draw(st.integers(0, len(text))))
    if place is not None:
        rust = tokenizer._rust
        whole = rust.encode(text, add_special_tokens=False).ids
        cut = rust.encode(text[:place], add_special_tokens=False).ids
        assert 0 < place < len(text)
        assert cut == whole[: len(cut)]


def test_every_usual_kind_is_proven(folders, kind):
    assert _loaded(folders[kind])._precut.spaces


@pytest.mark.parametrize("seed", range(4))
def test_pre_cut_equals_full(folders, kind, seed):
    rng = random.Random(seed)
    words = ["the", "quick", "fox", "中文字", "日本", "e\u0301", "👍🏽", "\n", "x" * 200, "1234", "don't", "", "<s>"]
    text = " ".join(rng.choice(words) for _ in range(6000))
    solid = "".join(rng.choice(words[3:6]) for _ in range(4000))
    tokenizer = load_tokenizer(folders[kind], max_length=16)
    whole = load_tokenizer(folders[kind], max_length=16)
    whole._precut.spaces = whole._precut.cjk = False
    texts = [text, solid, solid + text, " " * 5000 + text, "short", " " * 9000, "word" + " " * 9000]
    a, b = tokenizer(texts), whole(texts)
    assert a.ids_T.tolist() == b.ids_T.tolist()
    assert a.truncated.tolist() == b.truncated.tolist()


def test_a_huge_text_reaches_the_library_only_in_part(minilm):
    tokenizer = load_tokenizer(minilm, max_length=256)
    seen: list[int] = []
    encode = tokenizer._encode
    tokenizer._encode = lambda texts, **kw: seen.extend(map(len, texts)) or encode(texts, **kw)  # type: ignore[method-assign]
    tokenizer(["The quick brown fox. " * 250_000, "中文字" * 1_700_000])
    assert max(seen) < 10_000


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Split(Regex("x.*y"), "isolated")),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Metaspace(split=False)),
        lambda t: setattr(t, "pre_tokenizer", None),
        lambda t: setattr(t, "normalizer", normalizers.Replace(Regex("a b"), "c")),
        lambda t: t.add_tokens(["new york"]),
    ],
)
def test_what_cannot_be_proven_is_not_cut(change):
    rust = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert PreCut(rust).place("a b " * 100, 50) == 49
    change(rust)
    assert PreCut(rust).place("a b " * 100, 50) is None
