"""Every family, packed, held to sentence-transformers one text at a time, and to itself one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")

from embedctl.encoders import native
from embedctl.encoders.fused_bert import MODEL_TYPES
from embedctl.encoders.open import open_encoder
from embedctl.models.load import find_model
from tests.parity import families


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


WAYS = [*((family, False) for family in sorted(families.FAMILIES)), *((family, None) for family in sorted(MODEL_TYPES))]
"""Every family without our kernels, and those that have them as they run by default."""


@pytest.mark.parametrize(("family", "compiled"), WAYS)
def test_family_equals_the_reference(family: str, compiled: bool | None, tmp_path: Path) -> None:
    folder = families.save_folder(family, tmp_path / family)
    encoder = open_encoder(find_model(str(folder)), dtype="float32", device="cpu", threads=1, compile=compiled)
    sequences = families.tokens_of(families.TEXTS)
    together = families.encode(encoder, sequences)
    packed = "torch_varlen" if compiled is False or native.load()[0] is None else "fused_bert"
    assert encoder.describe()["engine"] == (packed if family in families.PACKED else "padded"), encoder.describe()
    families.assert_close(together, families.one_by_one(encoder, sequences))
    families.assert_close(together, families.reference(folder, sequences))
    equal = [s for s in sequences if len(s) == len(sequences[-1])] * 3
    families.assert_close(families.encode(encoder, equal)[:1], together[-2:-1])
    assert np.isfinite(together).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("attention", ["auto", "sdpa"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", "gemma3-bidirectional", "mistral-window"])
def test_family_on_cuda(family: str, attention: str, tmp_path: Path) -> None:
    """The variable-length kernels and SDPA by length agree with float32 as far as half precision goes."""
    folder = families.save_folder(family, tmp_path / family)
    encoder = open_encoder(find_model(str(folder)), dtype="bfloat16", device="cuda", attention=attention)
    sequences = families.tokens_of(families.TEXTS)
    theirs = families.reference(folder, sequences)
    assert (families.encode(encoder, sequences) * theirs).sum(axis=1).min() > 0.99
    assert (families.encode(encoder, sequences, float32=True) * theirs).sum(axis=1).min() > 1 - 1e-5
