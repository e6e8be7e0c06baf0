"""The name of a collection in its URI."""

from __future__ import annotations

import pytest

from embedctl.job.destination import collection_of, with_collection, without_secrets


@pytest.mark.parametrize(
    ("target", "name", "other"),
    [
        ("qdrant://host:6334/docs", "docs", "qdrant://host:6334/new"),
        ("qdrant://host:6334/v1.docs/", "v1.docs", "qdrant://host:6334/new"),
        ("qdrant-edge://./db/docs", "docs", "qdrant-edge://./db/new"),
        ("postgresql://host/db?table=docs", "docs", "postgresql://host/db?table=new"),
        ("postgresql://u@host/db?sslmode=require&table=sch.docs", "docs", "postgresql://u@host/db?sslmode=require&table=sch.new"),
        ("postgres://host/db?table=sch.docs&a=b", "docs", "postgres://host/db?table=sch.new&a=b"),
        ("postgresql://host/db/sch.docs", "docs", "postgresql://host/db/sch.new"),
    ],
)  # fmt: skip
def test_a_collection_in_a_uri(target: str, name: str, other: str) -> None:
    assert collection_of(target) == name
    assert with_collection(target, "new") == other


def test_a_password_with_an_at_sign_is_taken_out_whole() -> None:
    assert without_secrets("postgresql://me:p@ss@host:1/db?table=docs") == "postgresql://host:1/db?table=docs"
    assert without_secrets("lancedb://./a@b/docs") == "lancedb://./a@b/docs"
