"""The fake encoder: exact, independent of neighbours, and failing on request."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from embedctl.encoders.fake import FakeEncoder
from embedctl.errors import ModelError, OutOfDeviceMemory
from embedctl.models.load import find_model
from embedctl.records import Batch


def batch_of(*sequences: list[int]) -> Batch:
    return Batch(
        input_ids_T=np.array([t for s in sequences for t in s], dtype=np.int32),
        cu_seqlens=np.concatenate(([0], np.cumsum([len(s) for s in sequences]))).astype(np.int32),
        units=np.arange(len(sequences)),
    )


def test_vectors_depend_on_tokens_and_order_alone() -> None:
    encoder = FakeEncoder("fake:dim=24")
    alone = encoder.encode(batch_of([5, 6, 7]))["dense"]
    among = encoder.encode(batch_of([9], [5, 6, 7], [7, 6, 5], [5, 6, 7, 8]))["dense"]
    assert among.dtype == np.float32
    assert among.shape == (4, 24)
    assert np.array_equal(among[1], alone[0])
    assert len({row.tobytes() for row in among}) == 4
    assert np.allclose(np.linalg.norm(among, axis=1), 1, atol=1e-6)


def test_the_same_bytes_for_ever() -> None:
    alone = FakeEncoder("fake:dim=4").encode(batch_of([1, 2, 3]))["dense"][0]
    among = FakeEncoder("fake:dim=4").encode(batch_of([4], [1, 2, 3]))["dense"][1]
    assert alone.tobytes().hex() == among.tobytes().hex()


def test_empty_sequences_and_batches() -> None:
    encoder = FakeEncoder()
    assert encoder.encode(batch_of([], [3]))["dense"].shape == (2, 16)
    assert encoder.encode(batch_of())["dense"].shape == (0, 16)


def test_failures_on_request() -> None:
    encoder = FakeEncoder("fake:dim=8,nan=7,zero=9,oom_over=6")
    vectors = encoder.encode(batch_of([1], [2, 7], [9, 3]))["dense"]
    assert np.isfinite(vectors[0]).all()
    assert np.isnan(vectors[1]).all()
    assert not vectors[2].any()
    with pytest.raises(OutOfDeviceMemory, match="7 tokens do not fit: this fake model holds 6"):
        encoder.encode(batch_of([1] * 7))


def test_dim_cuts_and_keeps_length_1() -> None:
    cut = FakeEncoder("fake:dim=16", dim=4).encode(batch_of([5, 6]))["dense"]
    full = FakeEncoder("fake:dim=16").encode(batch_of([5, 6]))["dense"][:, :4]
    assert np.allclose(cut, full / np.linalg.norm(full), atol=1e-6)


def test_unknown_option_is_named() -> None:
    with pytest.raises(ModelError, match="'dims=3' is not an option of the fake model; it has: dim, max_length, nan"):
        find_model("fake:dims=3")


def test_fake_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from embedctl.models.load import find_model; from embedctl.encoders.fake import FakeEncoder;"
        "f = find_model('fake:dim=384'); assert f.output_dim == 384; FakeEncoder(f.name); f.fingerprint();"
        "bad = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
