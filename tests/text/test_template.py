from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest

from embedctl.errors import UsageError
from embedctl.text.template import row_problem, text_rule


def render(template: str, **columns: pa.Array) -> list[str | None]:
    return text_rule(None, template).render(pa.RecordBatch.from_pydict(columns))


def test_a_column_gives_its_strings():
    batch = pa.RecordBatch.from_pydict({"t": ["a", None, "", " b "]})
    rule = text_rule("t", None)
    assert rule.columns == ("t",)
    assert rule.render(batch) == ["a", None, "", " b "]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_every_kind_of_string(kind):
    values = pa.array(["a", None, "a"]).cast(kind)
    assert text_rule("t", None).render(pa.RecordBatch.from_pydict({"t": values})) == ["a", None, "a"]
    assert render("<{t}>", t=values) == ["<a>", None, "<a>"]


def test_escapes_braces_and_nulls():
    title, body = pa.array(["A", None, None, "D"]), pa.array(["x", "y", None, ""])
    assert render(r"{title}\n\n{body}", title=title, body=body) == ["A\n\nx", "\n\ny", None, "D\n\n"]
    assert render(r"{{{title}}}\t\\n", title=pa.array(["A"])) == ["{A}\t\\n"]
    assert render("{ title } {title}", title=pa.array(["é👍"])) == ["é👍 é👍"]
    assert text_rule(None, "{b}{a.c}{b}").columns == ("b", "a.c", "b")


def test_numbers_lists_and_dates():
    got = render(
        "{i} {f} {b} {d} {day} {tags} {nums}",
        i=pa.array([7, None]),
        f=pa.array([1.5, 2.0]),
        b=pa.array([True, False]),
        d=pa.array([decimal.Decimal("1.20"), None]),
        day=pa.array([0, 1], pa.date32()),
        tags=pa.array([["a", None, "b"], []]),
        nums=pa.array([[1, 2], None], pa.large_list(pa.int16())),
    )
    assert got == ["7 1.5 true 1.20 1970-01-01 a, b 1, 2", " 2 false  1970-01-02  "]


def test_a_list_column_alone_and_sliced():
    tags = pa.array([["x"], ["a", "b"], None, [], [None]], pa.list_(pa.string()))
    assert text_rule("t", None).render(pa.RecordBatch.from_pydict({"t": tags})) == ["x", "a, b", None, "", ""]
    sliced = pa.RecordBatch.from_pydict({"t": tags}).slice(1, 3)
    assert text_rule("t", None).render(sliced) == ["a, b", None, ""]
    fixed = pa.array([["x", "y"], None, ["z", None]], pa.list_(pa.string(), 2))
    assert text_rule("t", None).render(pa.RecordBatch.from_pydict({"t": fixed})) == ["x, y", None, "z"]


@pytest.mark.parametrize("claim", [pa.string(), pa.binary(), pa.large_binary()])
def test_bytes_that_are_not_utf8_hurt_their_row_alone(claim):
    offsets, data = pa.py_buffer(np.array([0, 2, 4, 4], dtype=np.int32).tobytes()), pa.py_buffer(b"ok\xffz")
    values = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data]).cast(pa.binary())
    values = values.view(claim) if claim == pa.string() else values.cast(claim)
    for got in (text_rule("t", None).render(pa.RecordBatch.from_pydict({"t": values})), render("{t}", t=values)):
        assert [row_problem(text) for text in got] == [
            None,
            "text has a lone surrogate or a byte that is not UTF-8 at character 0",
            "text is empty",
        ]


def test_struct_paths():
    doc = pa.array([{"meta": {"title": "A"}}, {"meta": None}, None])
    assert render("{doc.meta.title}!", doc=doc) == ["A!", None, None]
    batch = pa.RecordBatch.from_arrays([pa.array(["dotted"]), pa.array([{"b": "path"}])], names=["a.b", "a"])
    assert text_rule("a.b", None).render(batch) == ["dotted"]


def test_zero_rows():
    assert render("{a}{b}", a=pa.array([], pa.string()), b=pa.array([], pa.list_(pa.string()))) == []


@pytest.mark.parametrize(
    ("template", "message", "place"),
    [
        ("{title", "--text-template: this '{' is never closed; write {{ for a brace (character 0)", 0),
        ("a } b", "--text-template: a '}' without its '{'; write }} for a brace (character 2)", 2),
        ("ab{}", "--text-template: {} names no column (character 2)", 2),
        ("{a}{b.}", "--text-template: {b.} is not a column name (character 3)", 3),
        ("{a{b}", "--text-template: {a{b} is not a column name (character 0)", 0),
        (r"{a}\q", r"--text-template: '\\q' is no escape; write \n, \t, \r or \\ (character 3)", 3),
        ("{a}\\", r"--text-template: '\\' is no escape; write \n, \t, \r or \\ (character 3)", 3),
    ],
)
def test_malformed_templates_point_at_the_place(template, message, place):
    with pytest.raises(UsageError) as caught:
        text_rule(None, template)
    assert str(caught.value) == message
    assert caught.value.hint == f"{template}\n{' ' * place}^"


def test_other_errors():
    with pytest.raises(UsageError, match="'just words' names no column"):
        text_rule(None, "just words")
    for both in ((None, None), ("a", "{a}")):
        with pytest.raises(UsageError, match="give one of --text-column and --text-template"):
            text_rule(*both)
    batch = pa.RecordBatch.from_pydict({"a": [{"b": 1}], "c": ["x"]})
    for column, message in [
        ("d", "no column 'd'; there are: a, c"),
        ("a.x", "no column 'a.x': 'a' is struct<b: int64>, without a field 'x'"),
        ("a", "column 'a' is struct<b: int64>, which has no plain text"),
    ]:
        with pytest.raises(UsageError) as caught:
            text_rule(column, None).render(batch)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "text is null"),
        ("", "text is empty"),
        (" \n\t\x00\xa0\u3000\x1f\ufeff", "text is only white space"),
        ("ok\ud800", "text has a lone surrogate or a byte that is not UTF-8 at character 2"),
        ("a\x00b", None),
        ("👍", None),
    ],
)
def test_row_problem(text, problem):
    assert row_problem(text) == problem


def test_oversized():
    assert row_problem("abcd", 3) == "text is 4 characters; at most 3"
    assert row_problem("abc", 3) is None
