"""SPLADE by three libraries, each opened the way its documentation has it: embedctl, sentence-transformers, fastembed.

settings: library, model (folder), max_length; dtype where there is a choice; embedctl: compile, threads; fastembed:
graph (folder with model.onnx). Sizes are texts a batch, for embedctl tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


class Wide:
    """What a library found, made into float32 (N, V) only when asked for."""

    def __init__(self, found: Any, vocabulary: int) -> None:
        self._found, self._vocabulary = found, vocabulary

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if hasattr(self._found, "to_dense"):
            wide: np.ndarray = self._found.to_dense().float().numpy()
            return wide
        wide = np.zeros((len(self._found), self._vocabulary), dtype=np.float32)
        for row, (indices, values) in zip(wide, self._found, strict=True):
            row[indices] = values
        return wide


class Embedctl:
    """See `worker.Peer`: the encoder as the pipeline feeds it. `last` tells seconds in the encoder alone."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from embedctl import __version__
        from embedctl.encoders.open import resolve_dtype
        from embedctl.job import limits, wiring
        from embedctl.models.load import find_model
        from embedctl.spec import JobSpec

        spec = JobSpec(
            inputs=("-",), model=(settings["model"],), dtype=settings.get("dtype", "auto"),
            compile=settings.get("compile"), max_length=settings["max_length"], output=("sparse",),
        )  # fmt: skip
        folder = find_model(settings["model"], offline=True)
        resolved = {
            "device": "cpu", "dtype": resolve_dtype(spec.dtype, "cpu"), "compile": spec.compile,
            "threads": settings.get("threads") or limits.available_cpus(), "prompt": folder.prompt(spec),
            "max_length": folder.max_length(spec), "dim": None,
        }  # fmt: skip
        fields = spec.of_kind("rows", "recipe", "tuning")
        self._tokenizer = wiring.open_tokenizer(folder, resolved, fields)
        resolved["num_prompt_tokens"] = self._tokenizer.num_prompt_tokens
        self._encoder = wiring.open_planned_encoder(folder, fields, resolved, ["sparse"])
        self.info = {"version": __version__, **self._encoder.describe()}

    def encode(self, texts: Sequence[str], size: int) -> Wide:
        from concurrent.futures import ThreadPoolExecutor

        from embedctl.outputs import Sparse
        from embedctl.tokens.pack import make_batches

        found: list[Any] = [None] * len(texts)
        tokenized = self._tokenizer(texts)
        batches = list(make_batches(tokenized, size, padded=self._encoder.padded))
        with ThreadPoolExecutor(max(1, self._encoder.lanes)) as pool:
            for batch, outputs in zip(batches, pool.map(self._encoder.encode, batches), strict=True):
                sparse = outputs["sparse"]
                assert isinstance(sparse, Sparse)
                for unit, (a, b) in zip(batch.units.tolist(), itertools.pairwise(sparse.offsets.tolist()), strict=True):
                    found[unit] = (sparse.indices[a:b], sparse.values[a:b])
        return Wide(found, self._encoder.dims["sparse"])


class SentenceTransformers:
    """See `worker.Peer`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import sentence_transformers
        import torch
        from sentence_transformers import SparseEncoder

        self._model = SparseEncoder(
            settings["model"], device="cpu", local_files_only=True,
            model_kwargs={"dtype": getattr(torch, settings["dtype"])},
        )  # fmt: skip
        self._model.max_seq_length = settings["max_length"]
        self.info = {"version": sentence_transformers.__version__}

    def encode(self, texts: Sequence[str], size: int) -> Wide:
        return Wide(self._model.encode(list(texts), batch_size=size, show_progress_bar=False), 0)


class FastEmbed:
    """See `worker.Peer`: its SPLADE on the model's own graph, texts sorted by length first, which it does not do."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import fastembed
        from fastembed import SparseTextEmbedding

        self._model = SparseTextEmbedding(
            "prithivida/Splade_PP_en_v1", specific_model_path=settings["graph"], local_files_only=True,
            providers=["CPUExecutionProvider"],
        )  # fmt: skip
        inner: Any = self._model.model
        inner.tokenizer.enable_truncation(max_length=settings["max_length"])
        self._vocabulary = settings["vocabulary"]
        self.info = {"version": fastembed.__version__}

    def encode(self, texts: Sequence[str], size: int) -> Wide:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found: list[Any] = [None] * len(texts)
        for i, one in zip(order, self._model.embed([texts[i] for i in order], batch_size=size), strict=True):
            found[i] = (one.indices, one.values)
        return Wide(found, self._vocabulary)


LIBRARIES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "embedctl": Embedctl,
    "sentence-transformers": SentenceTransformers,
    "fastembed": FastEmbed,
}


def load(settings: Mapping[str, Any]) -> Any:
    """:raises ImportError: the library is not installed. :raises EmbedctlError: the model is refused."""
    return LIBRARIES[settings["library"]](settings)
