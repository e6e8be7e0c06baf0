"""vLLM's offline engine as an embedder. It schedules tokens by itself and pads nothing.

settings: model (folder), max_length, dtype. The batch size is its token budget, fixed when the engine starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


class VLLM:
    """See `worker.Peer`."""

    def __init__(self, engine: Any, max_length: int, version: str) -> None:
        self._engine, self._max_length = engine, max_length
        self.info = {"version": version}

    def encode(self, texts: Sequence[str], size: int) -> Any:  # noqa: ARG002 - fixed at the start
        import numpy as np

        cut = {"truncation": True, "max_length": self._max_length}
        found = self._engine.embed(list(texts), use_tqdm=False, tokenization_kwargs=cut)
        return np.array([output.outputs.embedding for output in found], dtype=np.float32)


def load(settings: Mapping[str, Any]) -> VLLM:
    """:raises ImportError: not installed."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    from vllm import LLM, __version__  # type: ignore[import-not-found, unused-ignore]

    engine = LLM(
        model=settings["model"], runner="pooling", dtype=settings["dtype"], max_model_len=settings["max_length"],
        max_num_batched_tokens=settings.get("batch_tokens", 8192), max_num_seqs=256,
        disable_log_stats=True,
    )  # fmt: skip
    return VLLM(engine, settings["max_length"], __version__)
