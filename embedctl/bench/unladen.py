"""The pipeline with nothing to carry: real reading, tokenizing, packing and committing; the encoder and the sink cost
nothing.

Run as `python -m embedctl.bench.unladen JSON`, in a process of its own since tokenizer threads are set once. Enters:
rows, model, max_length, rounds. Leaves: one JSON object on stdout. Measured in turns with the tokenizer library alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embedctl import pipeline
from embedctl.events import Silent, Summary
from embedctl.job import embed, limits, wiring
from embedctl.models.load import find_model
from embedctl.outputs import OutputKind, Outputs
from embedctl.records import Batch
from embedctl.sinks.memory import MemorySink
from embedctl.sinks.parquet import ParquetSink
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage
from embedctl.tokens.tokenize import set_threads


class NoSink(MemorySink):
    """In the place of a folder."""

    def __init__(self, _storage: LocalStorage) -> None:
        super().__init__()


class NoEncoder:
    """Implements `encoders.base.Encoder`: the same vector for all."""

    deterministic = True
    lanes = 1
    padded = False

    def __init__(self, dim: int) -> None:
        self.dims: Mapping[OutputKind, int] = {"dense": dim}

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        return {"dense": np.ones((len(batch.units), self.dims["dense"]), dtype=np.float32)}

    encode_float32 = encode

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {"engine": "none", "dtype": "float32", "device": "cpu", "attention": None}

    def close(self) -> None:
        pass


def main(request: Mapping[str, Any]) -> dict[str, Any]:
    """Rates in tokens/s: `pipeline`, `tokenizer` and their `ratio`, all medians."""
    folder = find_model(request["model"], offline=True)
    clock = Clock()
    wiring.open_planned_encoder = lambda *_: NoEncoder(folder.hidden_dim or 384)
    _exchange(ParquetSink, NoSink)
    _exchange(pipeline.run, clock.run)
    texts = _texts(request["rows"])
    ours, library = [], []
    for number in range(request["rounds"] + 1):
        summary = _job(request)
        rust_s = _library(Path(folder.path or ""), texts, request["max_length"])
        if number:
            ours.append(summary.tokens / clock.seconds)
            library.append(summary.tokens / rust_s)
    rates = {"pipeline": statistics.median(ours), "tokenizer": statistics.median(library)}
    ratio = statistics.median(p / t for p, t in zip(ours, library, strict=True))
    return {"rows": len(texts), "tokens_per_s": rates, "ratio": ratio}


class Clock:
    """Times the pipeline, from the first row read to the last window committed."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._run = pipeline.run

    def run(self, *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self._run(*args, **kwargs)
        finally:
            self.seconds = time.perf_counter() - begun


def _exchange(real: object, other: object) -> None:
    """Put `other` in the place of `real` wherever the job holds it by name."""
    held = [(m, name) for key, m in list(sys.modules.items()) if key.startswith("embedctl.job") for name in vars(m)]
    places = [(module, name) for module, name in held if vars(module)[name] is real]
    assert places, f"the job does not use {real!r}"
    for module, name in places:
        setattr(module, name, other)


def _job(request: Mapping[str, Any]) -> Summary:
    with tempfile.TemporaryDirectory() as to:
        spec = JobSpec(
            inputs=(request["rows"],), to=f"{to}/out", model=(request["model"],), max_length=request["max_length"],
            dtype="float32", offline=True,
        )  # fmt: skip
        return embed(spec, Silent())


def _library(folder: Path, texts: list[str], max_length: int) -> float:
    from tokenizers import Tokenizer

    rust = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rust.enable_truncation(max_length)
    rust.no_padding()
    begun = time.perf_counter()
    rust.encode_batch_fast(texts)
    return time.perf_counter() - begun


def _texts(rows: str) -> list[str]:
    import pyarrow.parquet as pq

    return [str(text) for text in pq.read_table(rows, columns=["text"])["text"].to_pylist()]


if __name__ == "__main__":
    set_threads(limits.available_cpus())
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
