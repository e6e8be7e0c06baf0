"""fastembed on the model's own ONNX graph, its tokenizer cut where the others cut.

settings: model (folder), max_length, cache, dim, sort (longest first; its default is the order given).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class FastEmbed:
    """See `worker.Peer`."""

    def __init__(self, model: Any, *, sort: bool, info: Mapping[str, Any]) -> None:
        self._model, self._sort = model, sort
        self.info = info

    def encode(self, texts: Sequence[str], size: int) -> Any:
        import numpy as np

        order = sorted(range(len(texts)), key=lambda i: -len(texts[i])) if self._sort else list(range(len(texts)))
        found = np.stack(list(self._model.embed([texts[i] for i in order], batch_size=size)))
        vectors = np.empty_like(found)
        vectors[order] = found
        return vectors


def load(settings: Mapping[str, Any]) -> FastEmbed:
    """:raises FileNotFoundError: the graph was not exported."""
    import fastembed  # type: ignore[import-not-found, unused-ignore]
    from fastembed import TextEmbedding
    from fastembed.common.model_description import (  # type: ignore[import-not-found, unused-ignore]
        ModelSource,
        PoolingType,
    )

    name = f"bench/{Path(settings['model']).name}"
    folder = _folder(settings)
    TextEmbedding.add_custom_model(
        model=name, pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf=name), dim=settings["dim"],
        model_file="model.onnx",
    )  # fmt: skip
    model = TextEmbedding(model_name=name, specific_model_path=str(folder), providers=["CPUExecutionProvider"])
    tokenizer = model.model.tokenizer  # type: ignore[attr-defined]
    tokenizer.enable_truncation(max_length=settings["max_length"])
    return FastEmbed(model, sort=settings.get("sort", False), info={"version": fastembed.__version__})


def _folder(settings: Mapping[str, Any]) -> Path:
    """Graph and tokenizer side by side, as fastembed wants them."""
    source = Path(settings["model"])
    graph = Path(settings["cache"]) / "onnx" / source.name / "onnx" / "model.onnx"
    folder = Path(settings["cache"]) / "fastembed" / source.name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(graph, folder / "model.onnx")
    for file in ("config.json", "tokenizer.json", "special_tokens_map.json"):
        if (source / file).is_file():
            shutil.copyfile(source / file, folder / file)
    told = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    told |= {"model_max_length": settings["max_length"], "max_length": settings["max_length"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    if not (folder / "special_tokens_map.json").is_file():
        tokens = {k: v for k, v in told.items() if k.endswith("_token") and isinstance(v, str)}
        (folder / "special_tokens_map.json").write_text(json.dumps(tokens), encoding="utf-8")
    return folder
