"""A row dies or lives whole, bad days cost only what they must, and what is committed is what was encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from embedctl.encoders.fake import FakeEncoder
from embedctl.errors import GuardRefused
from embedctl.ledger import dead
from embedctl.ledger.segments import Ledger
from embedctl.outputs import SINGLE
from embedctl.plan import Plan
from embedctl.records import FileBooks, WindowOutput
from embedctl.sinks.memory import MemorySink
from embedctl.spec import JobSpec
from embedctl.stages.commit import Committer, VectorRules, assemble
from embedctl.stages.prepare import TextRules, prepare, repack
from embedctl.storage import LocalStorage
from embedctl.testing.plans import hand_plan
from embedctl.text.chunk import pool_chunks
from embedctl.tokens.fake import FakeTokenizer
from tests.stages.hand import KEY, HandEncoder, by_bars, encode, text_rules, vector_of, window

PLAIN = VectorRules(store=lambda name, vectors: (vectors, {}), pool=None)


def embed(
    texts: Sequence[str], encoder: HandEncoder, *, budget: int = 64, rules: TextRules | None = None, **assembled: object
) -> WindowOutput:
    encoded = encode(prepare(window(texts), rules or text_rules(), [budget]), encoder)
    return assemble(encoded, assembled.get("plan", hand_plan()), assembled.get("vectors", PLAIN))


def lived(output: WindowOutput) -> list[str]:
    return list(dict.fromkeys(output.ids))


CHUNKED = hand_plan(JobSpec(chunk="tokens:8"))


def test_one_bad_chunk_withholds_its_whole_row_and_no_other() -> None:
    texts = ["one|two", "one|bad|three", "three", "four|bad"]
    out = embed(texts, HandEncoder(always_nan="bad"), rules=text_rules(chunk=by_bars), plan=CHUNKED)
    assert out.ids == ["row 0", "row 0", "row 2"]
    assert out.outputs[SINGLE].tolist() == [vector_of("one"), vector_of("two"), vector_of("three")]
    assert [d.id for d in out.dead] == ["row 1", "row 3"]
    assert {d.reason for d in out.dead} == {"the vector has NaN or Inf"}
    assert out.record.books == (FileBooks(file=0, read=4, written=2, skipped=0, duplicates=0, dead=2),)
    assert (out.record.units, out.record.tokens) == (3, 9)
    assert out.chunk.tolist() == [0, 1, 0]
    assert list(zip(out.char_start.tolist(), out.char_end.tolist(), strict=True)) == [(0, 3), (4, 7), (0, 5)]
    assert out.kept["n"].to_pylist() == [0, 0, 2]


def test_identical_texts_are_encoded_once() -> None:
    encoder = HandEncoder()
    out = embed(["same", "other", "same", "same"], encoder)
    assert len(encoder.seen) == len(set(encoder.seen)) == 2
    assert out.outputs[SINGLE].tolist() == [vector_of(t) for t in ("same", "other", "same", "same")]
    assert (out.record.tokens, out.record.units) == (12, 4)


def test_nan_is_tried_again_alone_in_float32() -> None:
    encoder = HandEncoder(nan="odd")
    out = embed(["good", "odd one", "fine"], encoder)
    assert encoder.again == [tuple(FakeTokenizer()(["odd one"]).ids_T.tolist())]
    assert out.outputs[SINGLE].tolist() == [vector_of(t) for t in ("good", "odd one", "fine")]
    assert out.dead == ()


def test_a_row_that_stays_nan_is_dead_after_one_more_try() -> None:
    encoder = HandEncoder(always_nan="odd")
    out = embed(["good", "odd", "fine"], encoder)
    assert len(encoder.again) == 1
    assert [(d.id, d.reason) for d in out.dead] == [("row 1", "the vector has NaN or Inf")]
    assert lived(out) == ["row 0", "row 2"]


def test_a_zero_vector_is_dead_and_not_tried_again() -> None:
    encoder = HandEncoder(zero="nil")
    out = embed(["good", "nil", "fine"], encoder)
    assert [(d.id, d.reason) for d in out.dead] == [("row 1", "the vector is zero")]
    assert out.outputs[SINGLE].tolist() == [vector_of("good"), vector_of("fine")]
    assert encoder.again == []


@pytest.mark.parametrize("room", [5, 9, 17, 40])
def test_a_full_device_halves_fills_everything_and_lowers_the_budget(room: int) -> None:
    texts = [" ".join(f"w{i}{k}" for k in range(1 + i % 3)) for i in range(30)]
    prepared = prepare(window(texts), text_rules(), [64])
    encoder = HandEncoder(oom_over=room)
    encoded = encode(prepared, encoder)
    assert encoded.reasons == {}
    assert encoded.outputs[SINGLE].tolist() == [vector_of(t) for t in texts]
    assert 1 <= encoded.budgets[0] < 64
    assert sorted(encoder.seen) == sorted(tuple(FakeTokenizer()([t]).ids_T.tolist()) for t in texts)
    later = encode(repack(prepared, text_rules(), encoded.budgets), calm := HandEncoder(oom_over=room))
    assert later.outputs[SINGLE].tolist() == encoded.outputs[SINGLE].tolist()
    assert max(calm.sizes) <= max(encoded.budgets[0], 5)


def test_a_row_that_does_not_fit_alone_is_dead_and_the_budget_survives_it() -> None:
    prepared = prepare(window(["a b c d e f g h", "short", "other"]), text_rules(), [8])
    encoded = encode(prepared, encoder := HandEncoder(oom_over=6))
    assert encoded.budgets == (8,)
    assert encoder.again == []
    out = assemble(encoded, hand_plan(), PLAIN)
    assert [(d.id, d.reason) for d in out.dead] == [("row 0", "does not fit in device memory (10 tokens)")]
    assert out.outputs[SINGLE].tolist() == [vector_of("short"), vector_of("other")]


def test_a_text_that_cannot_be_tokenized_kills_only_its_row() -> None:
    texts = ["good", "lone \ud800 one", "fine|\udfff", "fine"]
    out = embed(texts, HandEncoder(), rules=text_rules(chunk=by_bars), plan=CHUNKED)
    assert lived(out) == ["row 0", "row 3"]
    assert out.outputs[SINGLE].tolist() == [vector_of("good"), vector_of("fine")]
    assert [d.id for d in out.dead] == ["row 1", "row 2"]
    assert all(d.reason.startswith("the text cannot be tokenized: ") for d in out.dead)


def test_a_text_that_cannot_be_cut_kills_only_its_row() -> None:
    def chunk(text: str) -> list[tuple[int, int]]:
        if "!" in text:
            raise ValueError("no place to cut")
        return by_bars(text)

    out = embed(["a|b", "c!|d", "e"], HandEncoder(), rules=text_rules(chunk=chunk), plan=CHUNKED)
    assert lived(out) == ["row 0", "row 2"]
    assert out.dead[0].reason == "the text cannot be cut into chunks: no place to cut"


@pytest.mark.parametrize(
    ("rule", "alive", "units"),
    [("truncate", ["row 0", "row 1"], 2), ("dead-letter", ["row 1"], 1), ("chunk", ["row 0", "row 1"], 3)],
)
def test_overlong_texts_go_the_way_that_was_asked(rule: str, alive: list[str], units: int) -> None:
    rules = text_rules(tokenize=FakeTokenizer(max_length=6), on_overlong=rule)
    out = embed(["a b c |d e f", "a b"], HandEncoder(), rules=rules, plan=hand_plan(JobSpec(on_overlong=rule)))
    assert (lived(out), out.record.units) == (alive, units)
    assert out.record.truncated == (1 if rule == "truncate" else 0)
    assert out.truncated.tolist() == ([True, False] if rule == "truncate" else [False] * units)


def test_pooled_chunks_are_the_weighted_mean() -> None:
    texts = ["a b c|d", "e", "f|bad", "g|h i|j k l m"]
    rules = text_rules(chunk=by_bars)
    pooled = VectorRules(store=PLAIN.store, pool=lambda v, d, w: pool_chunks(v, d, w, normalise=True))
    spec = JobSpec(chunk="tokens:8", chunk_pool="mean")
    out = embed(texts, HandEncoder(always_nan="bad"), rules=rules, plan=hand_plan(spec), vectors=pooled)
    assert out.ids == ["row 0", "row 1", "row 3"]
    assert (out.chunk, out.record.units) == (None, 3)
    for vector, tokens, text in zip(out.outputs[SINGLE], out.token_count, [texts[0], texts[1], texts[3]], strict=True):
        pieces = [vector_of(piece) for piece in text.split("|")]
        weights = [piece[1] for piece in pieces]
        mean = np.average(np.array(pieces, np.float64), axis=0, weights=weights)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=1e-6)
        assert tokens == sum(weights)
    assert out.kept["n"].to_pylist() == [0, 1, 3]


def test_a_vector_that_cannot_be_stored_kills_its_whole_row() -> None:
    def store(name: str, vectors: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        return vectors, dict.fromkeys(np.flatnonzero(vectors[:, 1] > 4).tolist(), "too large")

    rules = text_rules(chunk=by_bars)
    texts = ["a|b", "c|d e f|g", "h", "i|bad"]
    out = embed(
        texts, HandEncoder(always_nan="bad"), rules=rules, plan=CHUNKED, vectors=VectorRules(store=store, pool=None)
    )
    assert (lived(out), out.record.units) == (["row 0", "row 2"], 3)
    assert [(d.id, d.reason) for d in out.dead] == [("row 1", "too large"), ("row 3", "the vector has NaN or Inf")]


@pytest.fixture
def committer(tmp_path: Path) -> Iterator[Callable[..., Committer]]:
    """`committer(**checks)`: a real ledger and dead letters in a folder, a sink in memory."""

    def make(**checks: Callable[..., None]) -> Committer:
        storage = LocalStorage(tmp_path)
        plan: Plan = hand_plan(id_column="id")
        nothing = {name: lambda *_: None for name in ("check_dead", "check_source", "check_lease")}
        return Committer(
            plan=plan, storage=storage, sink=MemorySink(), ledger=Ledger(storage), rules=PLAIN, **(nothing | checks)
        )

    return make


def test_a_commit_is_in_the_sink_the_ledger_and_the_letters(
    committer: Callable[..., Committer], tmp_path: Path
) -> None:
    to = committer()
    encoded = encode(prepare(window(["good", "nil", "fine"]), text_rules(), [64]), HandEncoder(zero="nil"))
    record, letters = to.commit(encoded)
    assert [d.id for d in letters] == ["row 1"]
    assert to.sink.count([record]) == record.units == 2
    assert to.sink.rows(record) == (["row 0", "row 2"], [0, 2])
    assert Ledger(LocalStorage(tmp_path)).contents.windows == {KEY: record}
    assert [letter["position"] for _, letter in dead.letters(to.storage, [(KEY, 0)])] == [1]
    assert to.commit(encoded) == (record, letters)
    assert to.sink.count([record]) == 2


def test_a_lowered_budget_is_remembered_for_later_windows(committer: Callable[..., Committer], tmp_path: Path) -> None:
    encoded = encode(prepare(window([f"w{i}" for i in range(20)]), text_rules(), [64]), HandEncoder(oom_over=20))
    committer().commit(encoded)
    assert encoded.budgets[0] < 64
    expected = {"kind": "budget", "after": [1, 0, 0], "batch_tokens": encoded.budgets[0], "pass": 0}
    assert Ledger(LocalStorage(tmp_path)).contents.events == [expected]


@pytest.mark.parametrize("check", ["check_dead", "check_source", "check_lease"])
def test_a_refused_commit_leaves_nothing_taken_as_done(
    committer: Callable[..., Committer], tmp_path: Path, check: str
) -> None:
    def refuse(*_: object) -> None:
        raise GuardRefused("no")

    to = committer(**{check: refuse})
    with pytest.raises(GuardRefused):
        to.commit(encode(prepare(window(["good"]), text_rules(), [64]), HandEncoder()))
    assert Ledger(LocalStorage(tmp_path)).contents.windows == {}
    assert to.sink.windows == {}


def test_the_budget_changes_the_batches_and_not_the_vectors() -> None:
    texts = [f"w{i} " * (1 + i % 5) for i in range(40)]
    whole = encode(prepare(window(texts), text_rules(), [10_000]), FakeEncoder())
    for budget in (1, 7, 50):
        assert encode(prepare(window(texts), text_rules(), [budget]), FakeEncoder()).outputs[SINGLE].tobytes() == (
            whole.outputs[SINGLE].tobytes()
        )
