"""Numbers to the device and back: the same on a CPU, where nothing is staged, as on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embedctl.encoders.staging import as_ids, staged, to_host

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_])
def test_ids_are_int64_and_of_their_own(device: str, dtype: type) -> None:
    values = np.array([0, 1, 1, 0, 1], dtype=dtype)
    ids = as_ids(values, device)
    values[:] = 1
    assert ids.dtype == torch.int64
    assert ids.tolist() == [0, 1, 1, 0, 1]
    assert ids.device.type == device


def test_staged_keeps_numbers_and_type(device: str) -> None:
    found = staged(np.arange(7, dtype=np.int32), device)
    assert found.dtype == torch.int32
    assert found.tolist() == list(range(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_come_back_in_float32(device: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 12, dtype=dtype, device=device).view(3, 4)
    found = to_host(x.t())
    assert found.dtype == np.float32
    assert found.tolist() == x.t().float().cpu().tolist()
