"""Collections that do not fit, and outputs that Qdrant has no place for, are refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("qdrant_edge")
pytest.importorskip("qdrant_client")

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import Multivector, OutputSpec
from tests.sinks.qdrant_kit import DENSE, DIM, KINDS, MANY, SPARSE, Place, place, plan, window


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place(request.param, tmp_path) as found:
        yield found


def test_another_layout_is_refused_in_words(there: Place) -> None:
    made = there.sink()
    made.prepare(plan())
    made.close()
    needs = "choose another collection with --to; one that does not exist is made with --create"
    for outputs, words in (
        ((DENSE, SPARSE), "has the vectors 'dense' (dense), 'sparse' (sparse), 'tokens' (multivector), this job needs"),
        ((DENSE,), "this job needs one unnamed dense vector"),
        ((replace(DENSE, dim=9), SPARSE, MANY), "vector 'dense' size 8, this job needs 9"),
        ((DENSE, replace(SPARSE, modifier=None), MANY), "vector 'sparse' modifier idf, this job needs none"),
        (
            (DENSE, SPARSE, replace(MANY, vector_type="float32")),
            "vector 'tokens' datatype float16, this job needs float32",
        ),
    ):
        sink = there.sink()
        with pytest.raises(UsageError) as caught:
            sink.prepare(plan(outputs))
        assert words in str(caught.value)
        assert caught.value.hint == needs
        sink.close()


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"vector_type": "int8"}, "--vector-type uint8"),
        ({"vector_type": "binary"}, "--vector-type float32 --quantization binary"),
        ({"vector_type": "ubinary"}, "--vector-type float32 --quantization binary"),
        ({"vector_type": "uint8", "quantization": "scalar"}, "leave --quantization out"),
    ],
)
def test_what_qdrant_would_misread_is_refused_before_anything(tmp_path: Path, asked: dict, hint: str) -> None:
    with place("edge", tmp_path) as there:
        with pytest.raises(UsageError) as caught:
            there.sink(**asked)
        assert caught.value.hint == hint
        assert not list(tmp_path.iterdir())


def test_outputs_without_a_place_are_refused(tmp_path: Path) -> None:
    with place("edge", tmp_path) as there:
        score = (OutputSpec(name="score", kind="score", dim=1, labels=("relevant",)),)
        with pytest.raises(UsageError, match="scores are no vectors"):
            there.sink().prepare(plan(score))
        dot = (OutputSpec(name="embedding", kind="dense", dim=DIM, vector_type="uint8", similarity="dot"),)
        with pytest.raises(UsageError, match="dot would rank them wrong"):
            there.sink(vector_type="uint8").prepare(plan(dot, vector_type="uint8"))
        with pytest.raises(UsageError, match="the embedded engine is one shard"):
            there.sink(shards=2).prepare(plan())
        long = window(1, ["a"], (MANY,))
        tokens = np.ones((300_000, MANY.dim), dtype=np.float16)
        long = replace(long, outputs={"tokens": Multivector(offsets=np.array([0, 300_000]), vectors=tokens)})
        sink = there.sink()
        sink.prepare(plan((MANY,)))
        with pytest.raises(SinkError, match="row 'a': tokens has 1200000 numbers, Qdrant takes 1048576"):
            sink.write(long)
