"""`scripts/gpu_check`: its checks on a device, and what it says where there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from embedctl.bench import gpu
from embedctl.errors import OutOfDeviceMemory
from embedctl.tokens.pack import make_batches


class SmallDevice:
    """Holds 300 tokens; a sequence's vector is its sum of ids and its length."""

    padded = False

    def __init__(self) -> None:
        self.dims = {"dense": 2}
        self.refused = 0

    def encode(self, batch):
        if batch.num_tokens > 300:
            self.refused += 1
            raise OutOfDeviceMemory("too many")
        sums = np.add.reduceat(batch.input_ids_T.astype(np.float64), batch.cu_seqlens[:-1])
        return {"dense": np.stack([sums, np.diff(batch.cu_seqlens)], axis=1).astype(np.float32)}


def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    tokens, device = gpu.sequences(50, 120), SmallDevice()
    found = gpu.encode_all(device, tokens, 5000)
    assert device.refused > 0
    assert found[:, 1].tolist() == tokens.lengths.tolist()
    assert np.array_equal(found, gpu.encode_all(SmallDevice(), tokens, 1))


def test_sequences_are_skewed_or_even():
    assert set(gpu.sequences(20, 64, skewed=False).lengths.tolist()) == {64}
    lengths = gpu.sequences(2000, 512).lengths
    assert lengths.min() >= 3
    assert lengths.max() <= 512
    assert np.median(lengths) < lengths.mean()
    assert sum(b.num_tokens for b in make_batches(gpu.sequences(30, 64), 500)) == gpu.sequences(30, 64).offsets[-1]


def test_without_a_device_nothing_is_claimed(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "not run: no CUDA device\n"
    assert gpu.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "device": None, "checks": []}


def test_a_check_that_raises_is_told_and_one_that_lacks_its_library_is_not_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def fails():
        raise RuntimeError("device-side assert\nand more")

    def lacks():
        raise ImportError("No module named 'flash_attn'")

    assert gpu._outcome("a", fails).ok is False
    assert gpu._outcome("a", fails).detail.startswith("device-side assert (")
    assert gpu._outcome("b", lacks).ok is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_every_check_passes_on_the_device():
    done = subprocess.run(
        [sys.executable, "-m", "embedctl.bench.gpu", "--json"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
