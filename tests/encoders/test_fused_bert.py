"""The fused CPU encoder against its plain twin, and against neighbours, lanes and packings."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedctl.encoders import native
from embedctl.encoders.fused_bert import FusedBertEncoder
from embedctl.encoders.open import open_encoder
from embedctl.encoders.torch_varlen import TorchVarlenEncoder
from embedctl.models.load import find_model
from embedctl.records import Batch

pytestmark = pytest.mark.skipif(native.load()[0] is None, reason=native.load()[1])
COSINE = {"float32": 1 - 1e-6, "bfloat16": 0.9995}


def tiny(folder: Path, kind: str, head_width: int) -> Path:
    import transformers

    config = transformers.AutoConfig.for_model(
        kind, vocab_size=200, hidden_size=4 * head_width, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=9 * head_width, max_position_embeddings=300, pad_token_id=1,
    )  # fmt: skip
    transformers.set_seed(7)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    chance = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = chance.integers(5, 200, size=int(offsets[-1])).astype(np.int32)
    return Batch(input_ids_T=ids, cu_seqlens=offsets, units=np.arange(len(lengths)))


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_width", [16, 32, 64])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_equals_the_plain_twin(kind: str, head_width: int, dtype: str, tmp_path: Path) -> None:
    folder = find_model(str(tiny(tmp_path, kind, head_width)))
    fused = open_encoder(folder, dtype=dtype, device="cpu", threads=1)
    plain = open_encoder(folder, dtype="float32", device="cpu", threads=1, compile=False)
    assert isinstance(fused, FusedBertEncoder)
    assert isinstance(plain, TorchVarlenEncoder)
    batch = batch_of([1, 2, 2, 2, 17, 33, 33, 64, 100, 255])
    expected = plain.encode(batch)["dense"]
    assert cosines(fused.encode(batch)["dense"], expected).min() >= COSINE[dtype]
    if dtype == "float32":
        assert np.abs(fused.encode(batch)["dense"] - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
    assert cosines(fused.encode_float32(batch)["dense"], expected).min() >= COSINE["float32"]


def test_many_blocks_and_lanes_give_the_same_bytes() -> None:
    folder = find_model("minilm")
    encoder = open_encoder(folder, dtype="bfloat16", device="cpu", threads=2)
    batches = [batch_of([40 + i] * 30 + [90] * 40, seed=i) for i in range(4)]
    alone = [encoder.encode(b)["dense"] for b in batches]
    assert encoder.lanes == 2
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(encoder.encode, batches))
    for one, other in zip(alone, together, strict=True):
        assert one.tobytes() == other["dense"].tobytes()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    encoder = open_encoder(find_model("minilm"), dtype="bfloat16", device="cpu", threads=1)
    batch = batch_of([7] * 20 + [31] * 10)
    together = encoder.encode(batch)["dense"]
    for i in (0, 19, 20, 29):
        begin, end = batch.cu_seqlens[i], batch.cu_seqlens[i + 1]
        single = Batch(
            input_ids_T=batch.input_ids_T[begin:end],
            cu_seqlens=np.array([0, end - begin], dtype=np.int32),
            units=np.zeros(1, dtype=np.int64),
        )
        assert cosines(encoder.encode(single)["dense"], together[i : i + 1]).min() >= 0.9999


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX2 is x86's")
def test_kept_to_avx2_it_still_equals_its_plain_twin() -> None:
    """What machines without AVX512 get: the kernels compiled for AVX2, float32 as `auto`."""
    code = (
        "import numpy as np\n"
        "from embedctl.encoders import native\n"
        "from embedctl.encoders.open import open_encoder, resolve_dtype\n"
        "from embedctl.models.load import find_model\n"
        "from embedctl.records import Batch\n"
        "ends = np.array([0, 3, 40, 77, 177], np.int32)\n"
        "ids = np.random.default_rng(0).integers(1000, 30000, 177).astype(np.int32)\n"
        "batch = Batch(input_ids_T=ids, cu_seqlens=ends, units=np.arange(4))\n"
        "assert resolve_dtype('auto', 'cpu') == 'float32'\n"
        "assert not native.load()[0].has_tiles\n"
        "fused, plain = (open_encoder(find_model('minilm'), dtype='float32', device='cpu', threads=1, compile=c)\n"
        "    for c in (None, False))\n"
        "assert fused.engine == 'fused_bert'\n"
        "assert np.abs(fused.encode(batch)['dense'] - plain.encode(batch)['dense']).max() <= 1e-5\n"
    )
    kept = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
