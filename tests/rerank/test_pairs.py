"""Texts of a row joined into one and taken apart; rules that say why a row cannot be scored."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedctl import pairs
from embedctl.errors import UsageError
from embedctl.text.pairs import Candidates, PairRule, candidates_of
from embedctl.text.template import text_rule

cells = st.one_of(st.none(), st.text(max_size=12))


@given(st.text(max_size=12), st.lists(cells, min_size=1, max_size=5), st.booleans())
def test_parts_come_back_as_they_went_in(query: str, texts: list[str | None], with_ids: bool) -> None:
    names = [f"id;{i}\n,-" for i in range(len(texts))] if with_ids else []
    whole = pairs.joined([query, *texts], names)
    assert pairs.parts(whole) == [query, *texts]
    assert pairs.ids(whole) == names
    spans = pairs.passages(whole)
    assert [whole[b:e] for b, e in spans] == [t or "" for t in texts]
    assert [pairs.pair(pairs.pair_at(whole, b, e)) for b, e in spans] == [(query, t or "") for t in texts]


def rule(passage: Candidates | None = None) -> PairRule:
    return PairRule(query=text_rule("q", None), passage=passage or text_rule("p", None))


def problems(rule: PairRule, **columns: list[object]) -> list[str | None]:
    return [rule.problem(text) for text in rule.render(pa.RecordBatch.from_pydict(columns))]


def test_the_column_at_fault_is_named() -> None:
    found = problems(rule(), q=["a", None, "", "a", "a"], p=["b", "b", "b", None, " \n"])
    assert found == [None, "q: text is null", "q: text is empty", "p: text is null", "p: text is only white space"]


def test_the_candidate_at_fault_is_numbered() -> None:
    found = problems(rule(Candidates(column="c")), q=["a"] * 5, c=[["x"], None, [], ["x", None], ["x", "y", ""]])
    assert found == [
        None, "c: there is no list of candidates", "c: there are no candidates", "c[1]: text is null",
        "c[2]: text is empty",
    ]  # fmt: skip


def test_json_that_is_no_list_or_too_deep_is_a_row_of_its_own() -> None:
    cells = ['["b"]', "{", '"b"', "[" * 100_000, None]
    found = problems(rule(Candidates(column="c", is_json=True)), q=["a"] * len(cells), c=cells)
    assert found == [None] + ["c: there is no list of candidates"] * 4


def test_candidates_of_structs_keep_their_ids() -> None:
    lists = [[{"id": 5, "text": "x"}, {"id": None, "text": "y"}], None, [{"id": 7, "text": "z"}]]
    batch = pa.RecordBatch.from_pydict({"q": ["a", "b", "c"], "c": lists})
    texts = rule(candidates_of("c", batch.schema.field("c").type, text=None, id=None)).render(batch)
    assert texts[1] is None
    assert [pairs.ids(texts[0] or ""), pairs.ids(texts[2] or "")] == [["5", None], ["7"]]
    sliced = rule(candidates_of("c", batch.schema.field("c").type, text=None, id=None)).render(batch.slice(2))
    assert sliced == texts[2:]


def test_json_lists_may_hold_items_of_any_kind() -> None:
    cells = [
        '["x", 7]', None, "plain text", '{"text": "x"}', '[{"text": "x", "docid": 3}, {"body": "y", "id": "z9"}]',
        '[{"title": "no text"}]', "[null]", '[["x"]]',
    ]  # fmt: skip
    texts = rule(Candidates(column="c", is_json=True)).render(
        pa.RecordBatch.from_pydict({"q": ["a"] * len(cells), "c": cells})
    )
    assert [text and pairs.parts(text)[1:] for text in texts] == [
        ["x", "7"], None, None, None, ["x", "y"], [None], [None], [None],
    ]  # fmt: skip
    assert pairs.ids(texts[4] or "") == ["3", "z9"]
    found = rule(Candidates(column="c", is_json=True, text="title")).render(
        pa.RecordBatch.from_pydict({"q": ["a"], "c": [cells[5]]})
    )
    assert pairs.parts(found[0] or "") == ["a", "no text"]


STRUCT = pa.struct([("pid", pa.int64()), ("body", pa.string()), ("title", pa.string())])


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (pa.string(), {}, "--candidates-column: column 'c' is string, not a list"),
        (pa.list_(pa.int64()), {}, "--candidates-column: column 'c' lists int64; allowed: texts, or structs"),
        (pa.list_(pa.string()), {"text": "t"}, "--candidate-text: 'c' lists plain texts, which have no fields"),
        (pa.list_(STRUCT), {"id": "x"}, "--candidate-id: 'c' has no field 'x'; it has: pid, body, title"),
        (pa.list_(STRUCT), {"text": "x"}, "--candidate-text: which field of 'c' is the text? it has: pid, body, title"),
    ],
)
def test_other_columns_are_refused(kind: pa.DataType, given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        candidates_of("c", kind, text=given.get("text"), id=given.get("id"))
    assert str(refused.value) == message


def test_fields_are_found_by_their_names() -> None:
    assert candidates_of("c", pa.large_list(STRUCT), text=None, id=None) == Candidates(
        column="c", text="body", id="pid"
    )
