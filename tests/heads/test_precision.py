"""Vector types, held to sentence-transformers' own quantisation."""

from __future__ import annotations

import numpy as np
import pytest

from embedctl.errors import EncoderError, UsageError
from embedctl.heads.precision import calibrate, overflows, quantize

VECTORS = np.random.default_rng(5).normal(size=(50, 20)).astype(np.float32)


@pytest.mark.parametrize("vector_type", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_equals_sentence_transformers(vector_type: str) -> None:
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    ranges = calibrate(VECTORS[:30])
    ours = quantize(VECTORS, vector_type, ranges)
    theirs = quantization.quantize_embeddings(VECTORS, precision=vector_type, ranges=ranges)
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


def test_outside_the_ranges_is_clipped_not_wrapped() -> None:
    ranges = np.array([[-1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    x = np.array([[-9, -9], [9, 900], [0, 0]], dtype=np.float32)
    assert quantize(x, "int8", ranges)[:2].tolist() == [[-128, -128], [127, 127]]
    assert quantize(x, "uint8", ranges)[:2].tolist() == [[0, 0], [255, 255]]


def test_binary_packs_the_last_odd_bits() -> None:
    x = np.array([[1, -1, 1, 0, 0, 0, 0, 1, 1]], dtype=np.float32)
    assert quantize(x, "ubinary").tolist() == [[0b10100001, 0b10000000]]
    assert quantize(x, "binary").tolist() == [[0b10100001 - 128, 0]]


def test_float16_never_holds_infinity() -> None:
    x = np.array([[1.0, 65519.0], [2.0, 65520.0]], dtype=np.float32)
    assert overflows(x, "float16").tolist() == [False, True]
    assert np.isfinite(quantize(x[:1], "float16")).all()
    with pytest.raises(EncoderError, match="row 1: a number is too large for float16"):
        quantize(x, "float16")
    assert not overflows(x, "int8").any()


def test_ranges_leave_out_what_is_not_finite() -> None:
    x = np.array([[1, 5], [np.nan, 0], [3, 2], [np.inf, 9]], dtype=np.float32)
    assert calibrate(x).tolist() == [[1, 2], [3, 5]]
    with pytest.raises(EncoderError, match="at least 2 rows to find their ranges, got 1"):
        calibrate(x[:2])


def test_integers_without_ranges_are_refused() -> None:
    with pytest.raises(UsageError, match="--vector-type int8: no ranges were found"):
        quantize(VECTORS, "int8")
    with pytest.raises(UsageError, match=r"ranges have shape \(2, 3\), the vectors need \(2, 20\)"):
        quantize(VECTORS, "uint8", np.zeros((2, 3), dtype=np.float32))
