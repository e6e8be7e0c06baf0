"""`--where` keeps what SQL says, and refuses the rest with DuckDB's own words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from embedctl.errors import UsageError
from embedctl.sources.roles import mark_id
from embedctl.sources.where import Where, columns_of

BATCH = pa.record_batch(
    {
        "lang": ["en", None, "fr"],
        "n": pa.array([1, 2, None], pa.int64()),
        "meta": [{"a": 1}, {"a": 2}, None],
        "My col": ["x", "y", "z"],
        "digits": ["1", "2", "x"],
    }
)


@pytest.mark.parametrize(
    ("expression", "mask", "columns"),
    [
        ("lang = 'en'", [True, False, False], {"lang"}),
        ("LANG = 'en' -- with a comment", [True, False, False], {"lang"}),
        ("lang is null or n > 1", [False, True, False], {"lang", "n"}),
        ("meta.a = 2", [False, True, False], {"meta"}),
        ("\"My col\" in ('x', 'z')", [True, False, True], {"My col"}),
        ("length(lang) = 2 and 'n' = 'n'", [True, False, True], {"lang"}),
        ("try_cast(digits as int) >= 2", [False, True, False], {"digits"}),
        ("true", [True, True, True], set()),
    ],
)
def test_masks_and_columns(expression: str, mask: list[bool], columns: set[str]) -> None:
    assert columns_of(expression, BATCH.schema.names) == columns
    where = Where(expression, BATCH.schema)
    assert where.mask(BATCH).tolist() == mask
    assert where.mask(BATCH.slice(1)).tolist() == mask[1:]
    assert where.mask(BATCH.slice(0, 0)).tolist() == []
    where.close()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("lng = 'en'", "no column 'lng'; the corpus has lang, n, meta, My col, digits"),
        ('lang = "en"', "no column 'en'"),
        ("lang =", "is not a SQL expression: syntax error"),
        ("", "not true or false"),
        ("n = 1; drop table block", "is not a SQL expression"),
        ("n) from (select 1", "--where"),
        ("lang", "gives string, not true or false"),
        ("(select 1) = 1", "a subquery is not allowed"),
        ("n in (select 1)", "a subquery is not allowed"),
        ("random() < 0.5", "random() differs from run to run"),
        ("n = 'x' and nosuch(n)", "nosuch"),
        ("n, lang", "not true or false"),
        ("count(*) > 3", "does not judge a row by itself: Binder Error: WHERE clause cannot contain aggregates"),
        ("row_number() over () < 5", "does not judge a row by itself"),
        ("unnest([true, false])", "does not judge a row by itself"),
    ],
)
def test_refusals(expression: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Where(expression, BATCH.schema)
    assert message in str(caught.value)


def test_a_value_that_cannot_be_converted_is_told() -> None:
    with pytest.raises(UsageError, match="Could not convert string 'x'") as caught:
        Where("digits::int > 0", BATCH.schema).mask(BATCH)
    assert "try_cast" in str(caught.value.hint)


def test_an_id_of_numbers_compares_as_a_number() -> None:
    schema = pa.schema([mark_id(pa.field("id", pa.string()), numbers=True)])
    batch = pa.RecordBatch.from_arrays([pa.array(["9", "10", None])], schema=schema)
    assert Where("id < 10", schema).mask(batch).tolist() == [True, False, False]


def test_files_are_out_of_reach() -> None:
    with pytest.raises(UsageError):
        Where("read_text('/etc/hostname') is not null", BATCH.schema)
