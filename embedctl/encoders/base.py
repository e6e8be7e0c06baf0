"""What turns a batch into outputs. One file and one registry line make a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from embedctl.outputs import OutputKind, Outputs
from embedctl.records import Batch


class Encoder(Protocol):
    """A loaded model. `encode` may run on `lanes` threads at once, `encode_float32` on one."""

    dims: Mapping[OutputKind, int]
    """The kinds of output that it gives, in order, with their numbers (see `OutputSpec.dim`)."""
    deterministic: bool
    lanes: int
    padded: bool
    """True when the encoder pads sequences to the longest of a batch, so the packer must budget N * max length."""

    def encode(self, batch: Batch) -> Outputs:
        """A value of each kind in `dims` for every sequence of the batch, in order, in float32. May hold NaN: the
        caller checks.

        :raises OutOfDeviceMemory: the batch does not fit; smaller ones may.
        :raises EncoderError: anything else the device or library refuses.
        """
        ...

    def encode_float32(self, batch: Batch) -> Outputs:
        """The same in float32 arithmetic: the second chance of a row that gave NaN in half precision."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What was resolved: device, dtype, attention kernel and why, threads. JSON values only."""
        ...

    def close(self) -> None: ...
