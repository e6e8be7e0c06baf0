"""Numbers to the device and back. On a GPU nothing here waits for more than it must; on a CPU these are plain casts.

Enters: numpy arrays of the caller's own, tensors of results. Leaves: tensors on the device; float32 arrays.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def staged(values: np.ndarray, device: str) -> Tensor:
    """The same numbers on the device; the array must not be changed afterwards.

    To a GPU through pinned memory, queued behind what runs there: a plain copy would wait until all of that is done.
    The allocator keeps the pinned block until the copy has been made.
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.to(device)


def as_ids(values: np.ndarray, device: str) -> Tensor:
    """int64 on the device; numpy's memory is never shared, so nothing of the caller's can be changed. Ids travel to a
    GPU as int32 and are widened there."""
    if device.startswith("cuda"):
        return staged(values.astype(np.int32), device).long()
    return staged(values.astype(np.int64), device)


def to_host(x: Tensor) -> np.ndarray:
    """float32 on the CPU. On a GPU it waits for `x` alone, not for batches that other threads have queued since."""
    x = x.float()
    if not x.is_cuda:
        plain: np.ndarray = x.cpu().numpy()
        return plain
    copied = x.to("cpu", non_blocking=True)  # torch makes this one in pinned memory
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(x.device))
    done.synchronize()
    found: np.ndarray = copied.numpy()
    return found
