from __future__ import annotations

import numpy as np
import pytest

from embedctl.tokens.fake import END_ID, START_ID, FakeTokenizer


def test_ids_offsets_and_truncation():
    fake = FakeTokenizer(4)
    got = fake(["one two", "", "a b c"])
    word = FakeTokenizer.id_of
    assert got.ids_T.tolist() == [
        START_ID, word("one"), word("two"), END_ID, START_ID, END_ID, START_ID, word("a"), word("b"), END_ID,
    ]  # fmt: skip
    assert got.offsets.tolist() == [0, 4, 6, 10]
    assert got.truncated.tolist() == [False, False, True]
    assert got.ids_T.dtype == np.int32
    assert word("one") == 2 + 0x7A6C86F1 % 30000
    assert fake.count([" a  b "]) == [2]
    assert fake.offsets([" a  bc"])[0].tolist() == [[1, 2], [4, 6]]
    assert fake([]).offsets.tolist() == [0]


def test_prompt_counts():
    fake = FakeTokenizer(8, prompt="query: ")
    assert (fake.num_prompt_tokens, fake.overhead_tokens) == (2, 3)
    assert fake(["x"]).ids_T[1] == FakeTokenizer.id_of("query:")


def test_lone_surrogate_is_refused():
    with pytest.raises(ValueError):
        FakeTokenizer(8)(["\ud800"])
