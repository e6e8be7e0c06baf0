"""Pairs to token ids: as the tokenizers library makes, cuts and types them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from embedctl import pairs
from embedctl.errors import ModelError, UsageError
from embedctl.tokens.pack import make_batches
from embedctl.tokens.pairs import frame_of, load_pair_tokenizer, longest_first

pytest.importorskip("transformers")

from tests.parity.scorers import WORDS, tokenizer_of

KINDS = ["bert", "roberta", "decoder"]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(2, 25))
def test_longest_first_cuts_as_the_library_does(first: int, second: int, room: int) -> None:
    rust = Tokenizer(models.WordLevel({"w": 0}, unk_token="w"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.enable_truncation(room, strategy="longest_first")
    sides = rust.encode("w " * first, "w " * second).sequence_ids
    assert longest_first(first, second, room) == (sides.count(0), sides.count(1))


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param)
    tokenizer_of(request.param).save_pretrained(out)
    return out


@pytest.mark.parametrize("max_length", [8, 21, 64])
@pytest.mark.parametrize("prompt", ["", "find the "])
def test_ids_and_types_are_those_of_transformers(folder: Path, max_length: int, prompt: str) -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = load_pair_tokenizer(folder, max_length=max_length, prompt=prompt)
    both = [(" ".join(WORDS[: i % 23 + 1]), " ".join(WORDS[i % 7 : i % 7 + i % 31 + 1])) for i in range(24)]
    both += [("the cat " * 300, "a fox " * n) for n in (1, 200, 299, 301)] + [("the", "a fox " * 1200)]
    found = ours([pairs.joined(pair) for pair in both])
    for i, (query, passage) in enumerate(both):
        wanted = theirs(prompt + query, passage, truncation="longest_first", max_length=max_length)
        span = slice(int(found.offsets[i]), int(found.offsets[i + 1]))
        assert found.ids_T[span].tolist() == wanted["input_ids"], (query, passage)
        if "token_type_ids" in wanted:
            assert found.types_T is not None
            assert found.types_T[span].tolist() == wanted["token_type_ids"]
        whole = len(theirs(prompt + query, passage)["input_ids"])
        assert found.truncated[i] == (whole > max_length)
    assert (found.types_T is not None) == ("token_type_ids" in theirs.model_input_names)


def test_batches_keep_the_types_of_their_tokens(tmp_path: Path) -> None:
    tokenizer_of("bert").save_pretrained(tmp_path)
    found = load_pair_tokenizer(tmp_path, max_length=64)([pairs.joined(["a " * n, "cat"]) for n in (3, 1, 5, 2)])
    (batch,) = make_batches(found, 4096)
    for i, unit in enumerate(batch.units.tolist()):
        here, there = slice(*batch.cu_seqlens[i : i + 2]), slice(*found.offsets[unit : unit + 2])
        assert batch.token_type_ids_T is not None
        assert found.types_T is not None
        np.testing.assert_array_equal(batch.token_type_ids_T[here], found.types_T[there])


def test_no_room_for_two_texts_is_refused(tmp_path: Path) -> None:
    tokenizer_of("bert").save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="--max-length: 4 leaves no room for two texts beside 3 special tokens"):
        load_pair_tokenizer(tmp_path, max_length=4)


def test_a_tokenizer_that_swaps_its_texts_is_refused() -> None:
    from tokenizers import processors

    rust = tokenizer_of("bert").backend_tokenizer
    rust.post_processor = processors.TemplateProcessing(single="$A", pair="$B $A", special_tokens=[])
    with pytest.raises(ModelError, match="does more to a pair of texts"):
        frame_of(rust)
