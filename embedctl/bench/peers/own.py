"""embedctl's encoder as its pipeline feeds it: tokenizer, packer, and as many batches at once as the encoder has lanes.

settings: model, max_length, dtype, compile (None: as the default), batch_tokens, threads, device. The size is tokens
a batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from embedctl import __version__
from embedctl.encoders.base import Encoder
from embedctl.job import limits, wiring
from embedctl.models.load import find_model
from embedctl.outputs import dense
from embedctl.spec import JobSpec
from embedctl.tokens.base import Tokenizer
from embedctl.tokens.pack import make_batches


class Own:
    """See `worker.Peer`. `last` tells of the last call: seconds in the encoder alone, and tokens."""

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, info: Mapping[str, Any]) -> None:
        self._encoder, self._tokenizer = encoder, tokenizer
        self._pool = ThreadPoolExecutor(getattr(encoder, "lanes", 1))
        self.info = info
        self.last: dict[str, float] = {}

    def encode(self, texts: Sequence[str], size: int) -> np.ndarray:
        tokenized = self._tokenizer(texts)
        begun = time.perf_counter()
        vectors = np.empty((len(texts), self._encoder.dims["dense"]), dtype=np.float32)
        batches = make_batches(tokenized, size, padded=self._encoder.padded)
        if getattr(self._encoder, "lanes", 1) == 1:
            for batch in batches:
                vectors[batch.units] = dense(self._encoder.encode(batch))
        else:
            todo = list(batches)
            for batch, found in zip(todo, self._pool.map(self._encoder.encode, todo), strict=True):
                vectors[batch.units] = dense(found)
        self.last = {"encode_s": time.perf_counter() - begun, "tokens": int(tokenized.offsets[-1])}
        return vectors


def load(settings: Mapping[str, Any]) -> Own:
    """:raises EmbedctlError: the model or a setting is refused."""
    from embedctl.encoders.open import resolve_device, resolve_dtype

    device = resolve_device(settings.get("device"))
    spec = JobSpec(
        inputs=("-",), model=(settings["model"],), dtype=settings.get("dtype", "auto"), compile=settings.get("compile"),
        max_length=settings.get("max_length"), attention=settings.get("attention"),
    )  # fmt: skip
    folder = find_model(settings["model"], offline=True)
    resolved = {
        "device": device, "dtype": "float32" if folder.kind == "static" else resolve_dtype(spec.dtype, device),
        "threads": settings.get("threads") or limits.available_cpus(), "compile": spec.compile,
        "prompt": folder.prompt(spec), "max_length": folder.max_length(spec), "dim": folder.dim(spec),
    }  # fmt: skip
    fields = spec.of_kind("rows", "recipe", "tuning")
    tokenizer = wiring.open_tokenizer(folder, resolved, fields)
    resolved["num_prompt_tokens"] = tokenizer.num_prompt_tokens
    encoder = wiring.open_planned_encoder(folder, fields, resolved)
    return Own(encoder, tokenizer, {"version": __version__, **encoder.describe()})
