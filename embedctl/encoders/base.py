"""What turns a batch into vectors. One file and one registry line make a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from embedctl.records import Batch


class Encoder(Protocol):
    """A loaded model. `encode` may run on `lanes` threads at once, `encode_float32` on one."""

    dim: int
    deterministic: bool
    lanes: int
    padded: bool
    """True when the encoder pads sequences to the longest of a batch, so the packer must budget N * max length."""

    def encode(self, batch: Batch) -> np.ndarray:
        """float32 (N, dim), row i for sequence i. May hold NaN: the caller checks.

        :raises OutOfDeviceMemory: the batch does not fit; smaller ones may.
        :raises EncoderError: anything else the device or library refuses.
        """
        ...

    def encode_float32(self, batch: Batch) -> np.ndarray:
        """The same in float32 arithmetic: the second chance of a row that gave NaN in half precision."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What was resolved: device, dtype, attention kernel and why, threads. JSON values only."""
        ...

    def close(self) -> None: ...
