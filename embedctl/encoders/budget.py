"""Tokens a batch on a GPU: found by a short probe of its memory, and remembered.

Enters: an opener of the encoder, what tells the device's memory, what the budget belongs to. Leaves: tokens. The probe
runs growing batches of sequences as long as they come, until one takes more than its share of the free memory or does
not fit. Never run on a CPU, whose budget is a matter of caches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from embedctl import __version__
from embedctl.encoders.base import Encoder
from embedctl.errors import OutOfDeviceMemory
from embedctl.models.fingerprint import cache_folder, remember
from embedctl.records import Batch

LEAST_TOKENS = 1024
FIRST_TOKENS = 4096
MOST_TOKENS = 65536
"""Larger batches keep a large device no busier, and delay the first commit."""
SHARE = 0.8
"""Of the free memory, for all batches that run at once; the rest is for fragments and other lengths."""
LONGEST = 8192
QUIET = 0.9
"""A device of which less than this is free is shared: what was measured there holds for today."""
_IDS = 100
"""Token ids that every vocabulary has. Which ones a batch holds does not change its memory."""


class Memory(Protocol):
    """Of one device, in bytes."""

    name: str
    total: int

    def free(self) -> int:
        """What a new batch could get."""
        ...

    def peak(self, run: Callable[[], object]) -> int:
        """What `run` took at its highest, beside what was held before. :raises OutOfDeviceMemory: from `run`."""
        ...


class CudaMemory:
    """Implements `Memory` with torch's own counters; what its allocator caches counts as free."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        properties = torch.cuda.get_device_properties(self._device)
        self.name, self.total = str(properties.name), int(properties.total_memory)

    def free(self) -> int:
        """See `Memory`."""
        import torch

        cached = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(torch.cuda.mem_get_info(self._device)[0]) + int(cached)

    def peak(self, run: Callable[[], object]) -> int:
        """See `Memory`."""
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        held = torch.cuda.memory_allocated(self._device)
        try:
            run()
            torch.cuda.synchronize(self._device)
            return int(torch.cuda.max_memory_allocated(self._device)) - int(held)
        finally:
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """open: gives the encoder, only where nothing is remembered. made_of: what the budget depends on beside the device:
    the model's fingerprint, dtype, outputs, attention. max_length: of a sequence."""

    open: Callable[[], Encoder]
    memory: Memory
    made_of: Mapping[str, Any]
    max_length: int


def batch_tokens(probe: Probe) -> int:
    """The budget, remembered or measured. :raises EncoderError: the encoder does not open, or fails for another reason
    than memory."""
    place, key = _place(probe)
    known = _remembered(place, key)
    if known is not None:
        return known
    quiet = probe.memory.free() >= QUIET * probe.memory.total
    encoder = probe.open()
    try:
        found = measure(encoder, probe.memory, probe.max_length)
    finally:
        encoder.close()
    if quiet:
        remember(place, json.dumps({"batch_tokens": found, "of": key}))
    return found


def measure(encoder: Encoder, memory: Memory, max_length: int) -> int:
    """The largest batch, by doubling or halving, that stays within its lane's share of the free memory; LEAST_TOKENS
    where none does."""
    share = SHARE / max(1, encoder.lanes) * memory.free()
    tokens = FIRST_TOKENS
    if _fits(encoder, memory, _batch(tokens, max_length), share):
        while tokens < MOST_TOKENS and _fits(encoder, memory, _batch(2 * tokens, max_length), share):
            tokens *= 2
        return tokens
    while tokens > LEAST_TOKENS:
        tokens //= 2
        if _fits(encoder, memory, _batch(tokens, max_length), share):
            break
    return tokens


def _fits(encoder: Encoder, memory: Memory, batch: Batch, share: float) -> bool:
    try:
        return memory.peak(lambda: encoder.encode(batch)) <= share
    except OutOfDeviceMemory:
        return False


def _batch(tokens: int, max_length: int) -> Batch:
    """Sequences of the greatest length, which take the most memory."""
    length = max(1, min(max_length, LONGEST, tokens))
    count = max(1, tokens // length)
    chance = np.random.default_rng(0)
    ids = chance.integers(5, _IDS, size=count * length).astype(np.int32)
    cu_seqlens = (np.arange(count + 1) * length).astype(np.int32)
    return Batch(input_ids_T=ids, cu_seqlens=cu_seqlens, units=np.arange(count))


def _place(probe: Probe) -> tuple[Path, dict[str, Any]]:
    """(file, what it is about): another device, model, setting or release measures anew."""
    key = {
        **probe.made_of, "device": probe.memory.name, "memory": probe.memory.total, "embedctl": __version__,
        "max_length": probe.max_length,
    }  # fmt: skip
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "budgets" / f"{name}.json", key


def _remembered(place: Path, key: Mapping[str, Any]) -> int | None:
    """None where there is nothing, or nothing that can be believed."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        tokens = found["batch_tokens"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    believable = isinstance(tokens, int) and LEAST_TOKENS <= tokens <= MOST_TOKENS and found.get("of") == key
    return tokens if believable else None
