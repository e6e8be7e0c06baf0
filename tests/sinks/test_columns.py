"""Columns of vectors as any table may hold them, and every way a row of them can be bad."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from embedctl.outputs import Multivector, OutputSpec, Sparse
from embedctl.sinks.columns import kind_of, values_of
from embedctl.sinks.parquet import output_array

DENSE = OutputSpec(name="e", kind="dense", dim=3)
SPARSE = OutputSpec(name="s", kind="sparse", dim=100)
LATE = OutputSpec(name="m", kind="multivector", dim=2, vector_type="float16")
PAIR = pa.struct([("indices", pa.list_(pa.int64())), ("values", pa.list_(pa.float64()))])


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (pa.list_(pa.float32(), 3), "dense"),
        (pa.large_list(pa.int64()), "dense"),
        (PAIR, "sparse"),
        (pa.list_(pa.list_(pa.float16(), 2)), "multivector"),
        (pa.list_(pa.string()), None),
        (pa.struct([("indices", pa.list_(pa.int64()))]), None),
        (pa.list_(pa.list_(pa.list_(pa.float32()))), None),
        (pa.float32(), None),
    ],
)
def test_what_a_column_holds(type_, kind):
    assert kind_of(type_) == kind


@pytest.mark.parametrize("type_", [pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.int64())])
def test_dense_rows_stand_alone(type_):
    column = pa.array([[9, 9, 9], [1, 2, 3], None, [1, 2], [1, None, 2], [], [0, 0, 0], [4, 5, 6]], type_).slice(1)
    values, bad = values_of(column, DENSE)
    assert values.dtype == np.float32
    assert values[[0, 6]].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert bad == {
        1: "the vector is null", 2: "the vector has 2 numbers, not 3", 3: "the vector has a null in it",
        4: "the vector has 0 numbers, not 3", 5: "the vector is zero",
    }  # fmt: skip


def test_dense_numbers_that_do_not_fit():
    column = pa.array([[1e300, 0, 1], [float("nan"), 1, 1], [float("-inf"), 1, 1], [1, 2, 3]], pa.list_(pa.float64()))
    _, bad = values_of(column, DENSE)
    assert bad == {
        0: "the vector does not fit in float32", 1: "the vector has NaN or Inf", 2: "the vector has NaN or Inf"
    }  # fmt: skip
    _, bad = values_of(column, OutputSpec(name="e", kind="dense", dim=3, vector_type="float16"))
    assert set(bad) == {0, 1, 2}
    bytes_, bad = values_of(
        pa.array([[1, -128, 3], [1, 200, 3]], pa.list_(pa.int64())),
        OutputSpec(name="e", kind="dense", dim=3, vector_type="int8"),
    )
    assert bytes_[0].tolist() == [1, -128, 3]
    assert bad == {1: "the vector does not fit in int8"}


def test_packed_bits_are_an_eighth_as_wide():
    spec = OutputSpec(name="e", kind="dense", dim=12, vector_type="ubinary")
    values, bad = values_of(pa.array([[0, 0], [255, 16]], pa.list_(pa.uint8(), 2)), spec)
    assert values.tolist() == [[0, 0], [255, 16]]
    assert not bad, "no bit set is a vector too"


def test_sparse_rows_stand_alone():
    rows = [
        {"indices": [7, 2], "values": [1.0, 2.0]}, None, {"indices": [1], "values": [1.0, 2.0]},
        {"indices": [3, 3], "values": [1.0, 2.0]}, {"indices": [100], "values": [1.0]}, {"indices": [], "values": []},
        {"indices": [1, None], "values": [1.0, 2.0]}, {"indices": None, "values": [1.0]},
        {"indices": [1], "values": [float("nan")]}, {"indices": [-1], "values": [1.0]},
        {"indices": [9], "values": [3.0]},
    ]  # fmt: skip
    values, bad = values_of(pa.array(rows, PAIR), SPARSE)
    assert isinstance(values, Sparse)
    assert values.offsets.tolist() == [0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3]
    assert values.indices.tolist() == [2, 7, 9]
    assert values.values.tolist() == [2, 1, 3]
    assert bad == {
        1: "the vector is null", 2: "the vector has 1 indices for 2 values", 3: "the vector has an index twice",
        4: "the vector has an index that is not from 0 to 99", 5: "the vector is zero",
        6: "the vector has a null in it", 7: "the vector is null", 8: "the vector has NaN or Inf",
        9: "the vector has an index that is not from 0 to 99",
    }  # fmt: skip


def test_multivector_rows_stand_alone():
    rows = [
        [[1, 2], [3, 4]], None, [], [[0, 0], [1, 1]], [[0, 0]], [[1, 2], [1]], [[1, None]], [[1, 2], None], [[1e30, 1]],
        [[5, 6]],
    ]  # fmt: skip
    values, bad = values_of(pa.array(rows, pa.list_(pa.list_(pa.float64()))), LATE)
    assert isinstance(values, Multivector)
    assert values.vectors.dtype == np.float16
    good = [i for i in range(len(rows)) if i not in bad]
    assert good == [0, 3, 9]
    assert [values.vectors[values.offsets[i] : values.offsets[i + 1]].tolist() for i in good] == [rows[i] for i in good]
    assert bad == {
        1: "the vector is null", 2: "the vector is zero", 4: "the vector is zero",
        5: "among its vectors is one of 1 numbers, not 2", 6: "the vector has a null in it",
        7: "among its vectors is a null", 8: "the vector does not fit in float16",
    }  # fmt: skip


def test_what_is_written_is_what_is_read():
    chance = np.random.default_rng(3)
    dense = chance.normal(size=(5, 3)).astype(np.float32)
    sparse = Sparse(
        offsets=np.array([0, 1, 3, 4]),
        indices=np.array([5, 1, 99, 0], np.uint32),
        values=chance.random(4).astype(np.float32),
    )
    late = Multivector(offsets=np.array([0, 2, 3]), vectors=chance.normal(size=(3, 2)).astype(np.float16))
    for given, spec in ((dense, DENSE), (sparse, SPARSE), (late, LATE)):
        found, bad = values_of(output_array(given), spec)
        assert not bad
        for one, two in zip(_arrays(given), _arrays(found), strict=True):
            np.testing.assert_array_equal(one, two)


def _arrays(values):
    return [values] if isinstance(values, np.ndarray) else [getattr(values, name) for name in type(values).__slots__]


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_a_length_that_float32_cannot_square_is_no_vector(size: float) -> None:
    """Stores normalise in float32: such a vector would stand there as zeros or Inf."""
    spec = OutputSpec(name="embedding", kind="dense", dim=4)
    column = pa.array([[1.0, 0.0, 2.0, 0.0], [size, size, 0.0, 0.0]], pa.list_(pa.float32(), 4))
    _, bad = values_of(column, spec)
    assert list(bad) == [1]
    assert "square" in bad[1]
