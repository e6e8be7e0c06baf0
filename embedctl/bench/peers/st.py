"""sentence-transformers: torch, ONNX Runtime and OpenVINO backends, as its documentation has them.

settings: model (folder), max_length, backend, dtype, cache (folder for exported graphs), device. Sorted by length by
itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class SentenceTransformers:
    """See `worker.Peer`."""

    def __init__(self, model: Any, info: Mapping[str, Any]) -> None:
        self._model = model
        self.info = info

    def encode(self, texts: Sequence[str], size: int) -> Any:
        vectors = self._model.encode(
            list(texts), batch_size=size, convert_to_numpy=False, convert_to_tensor=True, show_progress_bar=False
        )
        return vectors.float().cpu().numpy()


def load(settings: Mapping[str, Any]) -> SentenceTransformers:
    """:raises ImportError: the backend is not installed."""
    import sentence_transformers
    from sentence_transformers import SentenceTransformer

    backend, dtype = settings.get("backend", "torch"), settings.get("dtype", "float32")
    folder, kwargs = settings["model"], {}
    if backend == "torch":
        import torch

        kwargs = {"dtype": getattr(torch, dtype), **settings.get("model_kwargs", {})}
    elif backend == "onnx":
        folder, file = exported(settings, int8=dtype == "int8")
        kwargs = {"file_name": file, "provider": "CPUExecutionProvider", "export": False}
    else:
        kwargs = {"ov_config": {"INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32"}, "export": True}
    model = SentenceTransformer(
        folder, backend=backend, device=settings.get("device", "cpu"), model_kwargs=kwargs, local_files_only=True
    )
    model.max_seq_length = settings["max_length"]
    return SentenceTransformers(model, {"version": sentence_transformers.__version__, "backend": backend})


def exported(settings: Mapping[str, Any], *, int8: bool) -> tuple[str, str]:
    """(folder, file in it) of the model's ONNX graph, exported once into the cache."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    folder = Path(settings["cache"]) / "onnx" / Path(settings["model"]).name
    if not (folder / "onnx" / "model.onnx").is_file():
        model = SentenceTransformer(settings["model"], backend="onnx", device="cpu", local_files_only=True,
                                    model_kwargs={"export": True, "provider": "CPUExecutionProvider"})  # fmt: skip
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        model.save_pretrained(str(making))
        making.rename(folder)
    if not int8:
        return str(folder), "onnx/model.onnx"
    name = "onnx/model_qint8_avx512_vnni.onnx"
    if not (folder / name).is_file():
        graph = {"file_name": "onnx/model.onnx", "provider": "CPUExecutionProvider"}
        model = SentenceTransformer(
            str(folder), backend="onnx", device="cpu", local_files_only=True, model_kwargs=graph
        )
        export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))
    return str(folder), name
