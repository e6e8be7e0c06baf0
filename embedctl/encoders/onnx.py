"""An ONNX file through ONNX Runtime on the CPU, in place of the transformer; what follows it is ours.

Enters: packed batches. Leaves: outputs of the folder's heads. Sequences of one length run together and nothing is
padded; where a graph scales over whatever it is given, each runs alone, so that no row depends on its neighbours. One
thread a batch, several batches at once: the number of threads changes no result. Memory goes back after each run, for
the runtime's own arena grows with every new shape. Refuses: graphs whose outputs are not of the shape they must be.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.attention import groups_of
from embedctl.encoders.expansion import unseen_of
from embedctl.encoders.tail import Heads, Tokens
from embedctl.encoders.torch_encoder import TorchEncoder
from embedctl.encoders.weights import is_out_of_memory
from embedctl.errors import EncoderError, ModelError, OutOfDeviceMemory, UsageError
from embedctl.heads.projection import normalize
from embedctl.models.folder import ModelFolder
from embedctl.models.onnx_format import INT32, OnnxGraph
from embedctl.records import Batch

GROUP_TOKENS = 4096
"""Tokens of one run at most, unless one sequence has more."""
_TRIAL_LENGTHS = (3, 5, 5, 17)
_NO_MEMORY = ("Failed to allocate memory", "bad_alloc", "bad allocation")


def resolve_onnx(folder: ModelFolder, *, device: str | None, dtype: str, pooling: str | None) -> tuple[str, str]:
    """(device, dtype) of a job with this graph. :raises UsageError: something else was asked for, or no runtime."""
    assert folder.onnx is not None
    graph = folder.onnx
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError("--engine onnx: onnxruntime is not installed", hint="pip install 'embedctl[onnx]'")
    if device not in (None, "auto", "cpu"):
        raise UsageError(f"--device: ONNX files run on the CPU, {device} asked", hint="--engine torch")
    if dtype not in ("auto", graph.dtype):
        raise UsageError(
            f"--dtype: {graph.path.name} computes in {graph.dtype}, {dtype} asked", hint="leave out --dtype"
        )
    if pooling is not None and graph.finished:
        raise UsageError(
            f"--pooling: {graph.path.name} gives {graph.output}, which is pooled already", hint="leave out --pooling"
        )
    return "cpu", graph.dtype


def open_onnx(
    folder: ModelFolder, heads: Heads, *, threads: int | None, expand: Callable[[Batch], Batch] | None
) -> OnnxEncoder:
    """`heads` as for torch; a graph that gives finished vectors gets its own in the place of the dense one.

    :raises ModelError: the runtime cannot open the file, or it gives something else than it must.
    """
    assert folder.onnx is not None
    graph = Graph(folder.onnx, width=folder.width() if folder.onnx.finished else folder.hidden_dim)
    if folder.onnx.finished:
        heads = {"dense": FinishedHead(heads["dense"].dim, folder.width(), normalized=folder.normalize)}
    return OnnxEncoder(graph, heads, threads=threads, notes=folder.notes, expand=expand)


class Graph(nn.Module):
    """An opened file. `width`: numbers a token, or a text where the graph gives finished vectors."""

    def __init__(self, graph: OnnxGraph, *, width: int) -> None:
        """:raises ModelError: see `open_onnx`."""
        super().__init__()
        self.graph = graph
        batch_dims = {port.dims[0] for port in graph.inputs if port.dims}
        self.alone = graph.by_batch or 1 in batch_dims
        self._session = _session(graph)
        self._check(width)

    def forward(self, batch: Batch) -> Tensor:
        """float32 (T, E), or (N, C) of finished vectors. :raises OutOfDeviceMemory: the batch does not fit."""
        parts = [self._run(batch, begin, count, length) for begin, count, length in self._runs(batch)]
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def _runs(self, batch: Batch) -> Iterator[tuple[int, int, int]]:
        """(first token, sequences, length) of each run, in order."""
        for begin, count, length in groups_of(batch.cu_seqlens):
            step = 1 if self.alone else max(1, GROUP_TOKENS // length)
            for first in range(0, count, step):
                yield begin + first * length, min(step, count - first), length

    def _run(self, batch: Batch, begin: int, count: int, length: int) -> np.ndarray:
        tokens, unseen = slice(begin, begin + count * length), unseen_of(batch)
        types = batch.token_type_ids_T
        made: dict[str, Callable[[], np.ndarray]] = {
            "input_ids": lambda: batch.input_ids_T[tokens],
            "attention_mask": lambda: np.ones(count * length) if unseen is None else ~unseen[tokens],
            "token_type_ids": lambda: np.zeros(count * length) if types is None else types[tokens],
            "position_ids": lambda: np.tile(np.arange(length), count),
        }
        feeds = {
            port.name: made[port.name]().astype(np.int32 if port.type == INT32 else np.int64).reshape(count, length)
            for port in self.graph.inputs
        }
        try:
            (found,) = self._session.run([self.graph.output], feeds)
        except Exception as exc:
            if is_out_of_memory(exc) or any(words in str(exc) for words in _NO_MEMORY):
                raise OutOfDeviceMemory(f"{count * length} tokens do not fit in memory") from exc
            raise EncoderError(f"{self.graph.path.name} failed on {count} texts of {length} tokens: {exc}") from exc
        shape = (count,) if self.graph.finished else (count, length)
        if found.shape[:-1] != shape:
            raise EncoderError(f"{self.graph.path.name}: {self.graph.output} has shape {found.shape} for {shape} texts")
        flat: np.ndarray = found.reshape(-1, found.shape[-1]).astype(np.float32, copy=False)
        return flat

    def _check(self, width: int) -> None:
        """A trial run: a graph whose lengths were fixed when it was made fails here, before the first row."""
        cu_seqlens = np.concatenate(([0], np.cumsum(_TRIAL_LENGTHS))).astype(np.int32)
        ids = (5 + np.arange(cu_seqlens[-1]) % 20).astype(np.int32)
        batch = Batch(input_ids_T=ids, cu_seqlens=cu_seqlens, units=np.arange(len(_TRIAL_LENGTHS)))
        try:
            found = self.forward(batch)
        except EncoderError as exc:
            raise ModelError(f"{self.graph.path}: a trial run failed: {exc}") from exc
        if found.shape[1] != width:
            raise ModelError(
                f"{self.graph.path}: {self.graph.output} has {found.shape[1]} numbers, its settings say {width}"
            )


def _session(graph: OnnxGraph) -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as exc:
        raise UsageError("--engine onnx: onnxruntime is not installed", hint="pip install 'embedctl[onnx]'") from exc
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])
    except Exception as exc:
        first = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:300]
        raise ModelError(f"{graph.path}: ONNX Runtime {onnxruntime.__version__} cannot open it: {first}") from exc


class FinishedHead:
    """Implements `encoders.tail.Head` for vectors that the graph has pooled and projected: only the cut is left."""

    def __init__(self, dim: int, full: int, *, normalized: bool) -> None:
        self.dim = dim
        self._full, self._normalized = full, normalized

    def __call__(self, hidden_TE: Tensor, tokens: Tokens) -> np.ndarray:
        """See `Head`; `hidden_TE` is (N, full), without the sequences that have no token, which give zeros."""
        out = torch.zeros(len(tokens.batch.cu_seqlens) - 1, self._full)
        out[torch.from_numpy(np.diff(tokens.batch.cu_seqlens) > 0)] = hidden_TE
        out = out[:, : self.dim]
        vectors: np.ndarray = (normalize(out) if self._normalized else out).numpy()
        return vectors


class OnnxEncoder(TorchEncoder):
    """See the module. There is no second arithmetic: a row that gives NaN is tried once more as it is, alone."""

    engine = "onnx"

    def __init__(
        self, graph: Graph, heads: Heads, *, threads: int | None, notes: tuple[str, ...] = (),
        expand: Callable[[Batch], Batch] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            lambda _: graph, heads, dtype=graph.graph.dtype, device="cpu", threads=1, model=graph, notes=notes,
            expand=expand,
        )  # fmt: skip
        self._graph = graph.graph
        self._alone = graph.alone
        self.lanes = threads or torch.get_num_threads()

    def _hidden(self, model: nn.Module, batch: Batch) -> Tensor:
        hidden: Tensor = model(batch)
        return hidden

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        how = "each text alone, since it scales over all it is given" if self._alone else "texts of one length together"
        reason = f"{self._graph.path.name}, {self._graph.output}; {how}"
        return {**super().describe(), "threads": self.lanes, "attention": "own", "attention_reason": reason}

    def close(self) -> None:
        """See `Encoder.close`."""
        super().close()
        self._load = _closed


def _closed(_dtype: str) -> nn.Module:
    raise EncoderError("the encoder was closed")
