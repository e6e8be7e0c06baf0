"""Infinity's engine in this process: no server, no HTTP. It sorts by length and batches by itself.

settings: model (folder), max_length, dtype. The batch size is part of the engine, so a new one starts it anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any


class Infinity:
    """See `worker.Peer`."""

    def __init__(self, settings: Mapping[str, Any], version: str) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._engine: Any = None
        self._size = 0
        self.info = {"version": version}

    def encode(self, texts: Sequence[str], size: int) -> Any:
        import numpy as np

        if size != self._size:
            self._loop.run_until_complete(self._restart(size))
        vectors, _ = self._loop.run_until_complete(self._engine.embed(sentences=list(texts)))
        return np.stack(vectors)

    async def _restart(self, size: int) -> None:
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs  # type: ignore[import-not-found, unused-ignore]

        if self._engine is not None:
            await self._engine.astop()
        self._engine = AsyncEmbeddingEngine.from_args(
            EngineArgs(
                model_name_or_path=self._settings["model"],
                engine="torch",
                device=self._settings.get("device", "cpu"),
                dtype=self._settings["dtype"],
                batch_size=size,
                compile=False,
                bettertransformer=False,
                model_warmup=False,
            )
        )
        await self._engine.astart()
        self._size = size


def load(settings: Mapping[str, Any]) -> Infinity:
    """:raises ImportError: not installed."""
    os.environ.setdefault("INFINITY_ANONYMOUS_USAGE_STATS", "0")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    from importlib.metadata import version

    peer = Infinity(settings, version("infinity-emb"))
    peer.encode(["a first text"], settings.get("size", 32))
    return peer
