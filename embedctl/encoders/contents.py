"""Encoded pictures and sounds -> what a model takes, with transformers' own processors, in parallel threads.

Enters: contents of a batch, as `media` makes them. Leaves: for each the processor's tensors as of a batch of one, on
the CPU. What decodes and scales lets go of the GIL, so threads do. Refused, as `UnreadableInput`: those that cannot be
decoded or prepared, each with its reason; the others' work is kept for the next try.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embedctl.encoders.weights import quiet
from embedctl.errors import EmbedctlError, ModelError, UnreadableInput
from embedctl.media import Unreadable, as_bytes
from embedctl.media.pictures import picture_of
from embedctl.media.sounds import samples_of
from embedctl.models.folder import ModelFolder

Inputs = Mapping[str, Tensor]
"""Keyword arguments of the model, first axis 1."""
_NOT_INPUTS = frozenset({"labels"})
_CHANCE = threading.Lock()
"""numpy's global chance, which one processor draws from."""


class Contents:
    """Prepares a model's contents in `threads` threads. One instance may be asked from several threads."""

    def __init__(self, folder: ModelFolder, *, threads: int) -> None:
        """:raises ModelError: the processor cannot be loaded."""
        self._prepare = _preparer(folder)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="contents")
        self._kept = threading.local()

    def __call__(self, contents: Sequence[str]) -> list[Inputs]:
        """In order. :raises UnreadableInput: see the module."""
        kept: dict[str, Inputs] = getattr(self._kept, "ready", {})
        self._kept.ready = {}
        found = list(self._pool.map(lambda text: kept.get(text) or self._one(text), contents))
        bad = {i: str(one) for i, one in enumerate(found) if isinstance(one, Unreadable)}
        if bad:
            self._kept.ready = {t: f for t, f in zip(contents, found, strict=True) if not isinstance(f, Unreadable)}
            raise UnreadableInput(bad)
        return [one for one in found if not isinstance(one, Unreadable)]

    def _one(self, text: str) -> Inputs | Unreadable:
        try:
            return self._prepare(as_bytes(text))
        except Unreadable as exc:
            return exc

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _preparer(folder: ModelFolder) -> Callable[[bytes], Inputs]:
    assert folder.media is not None
    assert folder.path is not None
    if folder.media.late:
        processor = _load("AutoProcessor", folder)
        return lambda content: _pages(processor, content)
    if folder.media.takes == "image":
        processor = _load("AutoImageProcessor", folder)
        return lambda content: _picture(processor, content)
    processor = _load("AutoFeatureExtractor", folder)
    return lambda content: _sound(processor, content)


def max_seconds_of(extractor: Any) -> float | None:
    """Of a sound, where the extractor takes a stretch of it; None where it looks at all of it."""
    return None if extractor.truncation == "fusion" else float(extractor.max_length_s)


def _picture(processor: Any, content: bytes) -> Inputs:
    picture = picture_of(content)
    try:
        return _tensors(processor(images=picture, return_tensors="pt"))
    except (ValueError, TypeError, RuntimeError, MemoryError) as exc:
        raise Unreadable(f"the picture ({picture.width} x {picture.height}) cannot be prepared: {exc}") from exc


def _pages(processor: Any, content: bytes) -> Inputs:
    picture = picture_of(content)
    try:
        return _tensors(processor.process_images(images=[picture]))
    except (ValueError, TypeError, RuntimeError, MemoryError) as exc:
        raise Unreadable(f"the page ({picture.width} x {picture.height}) cannot be prepared: {exc}") from exc


def _sound(extractor: Any, content: bytes) -> Inputs:
    """A stretch is the first one, not one by chance; where three are drawn from a long sound, the draw is always the
    same."""
    rate, most = int(extractor.sampling_rate), max_seconds_of(extractor)
    samples = samples_of(content, rate, most)
    drawn = most is None and len(samples) > extractor.nb_max_samples
    try:
        with _fixed_chance() if drawn else contextlib.nullcontext():
            return _tensors(extractor(samples, sampling_rate=rate, return_tensors="pt"))
    except (ValueError, TypeError, RuntimeError, MemoryError) as exc:
        raise Unreadable(f"the sound of {len(samples) / rate:,.2f} s cannot be prepared: {exc}") from exc


@contextlib.contextmanager
def _fixed_chance() -> Iterator[None]:
    """numpy's global chance begins anew, for one thread at a time, and goes on afterwards where it was."""
    with _CHANCE:
        state = np.random.get_state()
        np.random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(state)


def _tensors(found: Mapping[str, Any]) -> Inputs:
    return {k: torch.as_tensor(v) for k, v in found.items() if k not in _NOT_INPUTS}


def _load(auto: str, folder: ModelFolder) -> Any:
    import transformers

    try:
        with quiet():
            return getattr(transformers, auto).from_pretrained(str(folder.path), local_files_only=True)
    except EmbedctlError:  # a signal came
        raise
    except Exception as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ModelError(
            f"{folder.path}: transformers cannot load what prepares its inputs: {lines[0][:300]}",
            hint="is the folder complete? it needs preprocessor_config.json or processor_config.json",
        ) from exc
