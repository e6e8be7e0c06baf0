"""Models of pictures, sounds and texts: CLIP and SigLIP kinds and CLAP, a vector each; ColPali kinds, a vector a token.

Enters: a batch of contents, or of tokens. Leaves: what the model's own methods give for each alone: inputs of one
shape run together and nothing is ever padded, so neighbours cannot count. Where a vision tower takes pictures of any
shape end to end (Qwen2-VL's does), those of as many patches are one pass. Contents are prepared on one lane while the
other computes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedctl.encoders.attention import groups_of
from embedctl.encoders.contents import Contents, Inputs
from embedctl.encoders.staging import as_ids
from embedctl.encoders.tail import Tail
from embedctl.encoders.torch_encoder import TorchEncoder
from embedctl.encoders.weights import is_out_of_memory, load_transformer
from embedctl.errors import EmbedctlError, EncoderError, OutOfDeviceMemory
from embedctl.heads.projection import normalize
from embedctl.models.folder import ModelFolder
from embedctl.outputs import Multivector, OutputKind, Outputs, Values, join, take
from embedctl.records import Batch

_FEATURES = {None: "get_text_features", "image": "get_image_features", "audio": "get_audio_features"}


def open_media(folder: ModelFolder, *, dtype: str, device: str, threads: int | None, dim: int | None) -> MediaEncoder:
    """:raises ModelError: weights or processor cannot be opened."""
    return MediaEncoder(folder, dtype=dtype, device=device, threads=threads, dim=dim)


class MediaEncoder(TorchEncoder):
    """See the module. Reads what `folder.reads` says, texts for None."""

    engine = "torch_media"

    def __init__(
        self, folder: ModelFolder, *, dtype: str, device: str, threads: int | None, dim: int | None
    ) -> None:  # fmt: skip
        assert folder.media is not None
        auto = folder.architecture if folder.media.late else None

        def load(dtype: str) -> nn.Module:
            return load_transformer(folder, dtype=dtype, device=device, attention=None, auto_class=auto)

        super().__init__(load, {}, dtype=dtype, device=device, threads=threads, notes=folder.notes)
        self._folder, self._late = folder, folder.media.late
        self._dim = dim or min(folder.truncate_dim or folder.width(), folder.width())
        kind: OutputKind = "multivector" if self._late else "dense"
        self.dims: Mapping[OutputKind, int] = {kind: self._dim}
        self._tail = Tail(folder, device=device, pooling=None, dim=self._dim, num_prompt_tokens=0)
        self._contents = Contents(folder, threads=self._threads) if folder.reads else None
        self.lanes = 2 if self._contents else 1
        self._device_lock = threading.Lock()

    def _run(self, model: nn.Module, batch: Batch) -> Outputs:
        ready = self._inputs(batch)
        try:
            with self._device_lock, torch.inference_mode():
                if torch.get_num_threads() != self._threads:
                    torch.set_num_threads(self._threads)
                return {next(iter(self.dims)): self._values(model, ready)}
        except EmbedctlError:
            raise
        except Exception as exc:
            if is_out_of_memory(exc):
                raise OutOfDeviceMemory(f"{len(ready)} rows do not fit on {self._device}") from exc
            raise EncoderError(f"the encoder failed on {len(ready)} rows: {exc}") from exc

    def _inputs(self, batch: Batch) -> list[Inputs]:
        """What the model takes for each sequence. :raises UnreadableInput: contents that cannot be decoded."""
        if self._contents is not None:
            assert batch.contents is not None
            return self._contents(batch.contents)
        found: list[Inputs] = []
        types = batch.token_type_ids_T
        for begin, count, length in groups_of(batch.cu_seqlens):
            for start in range(begin, begin + count * length, length):
                tokens = slice(start, start + length)
                one = {"input_ids": as_ids(batch.input_ids_T[tokens], "cpu")[None]}
                if not (self._folder.media and self._folder.media.filled):
                    one["attention_mask"] = torch.ones_like(one["input_ids"])
                if types is not None:
                    one["token_type_ids"] = as_ids(types[tokens], "cpu")[None]
                found.append(one)
        return found

    def _values(self, model: nn.Module, ready: Sequence[Inputs]) -> Values:
        """Of all sequences in their order, a forward for each shape of inputs."""
        shapes: dict[tuple[Any, ...], list[int]] = {}
        for i, inputs in enumerate(ready):
            shapes.setdefault(tuple((k, v.shape, v.dtype) for k, v in sorted(inputs.items())), []).append(i)
        parts, order = [], []
        for rows in shapes.values():
            whole = {k: torch.cat([ready[i][k] for i in rows]) for k in ready[rows[0]]}
            parts.append(self._forward(model, whole, len(rows)))
            order += rows
        return take(join(parts), np.argsort(np.array(order, dtype=np.int64)))

    def _forward(self, model: nn.Module, inputs: Inputs, count: int) -> Values:
        dtype = next(model.parameters()).dtype
        placed = {k: v.to(self._device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()}
        if self._late:
            vectors_NLC: Tensor = model(**placed).embeddings.float()
            length = vectors_NLC.shape[1]
            flat = vectors_NLC.flatten(0, 1)
            flat = normalize(flat[:, : self._dim]) if self._dim < flat.shape[1] else flat
            offsets = np.arange(count + 1, dtype=np.int64) * length
            return Multivector(offsets=offsets, vectors=flat.to("cpu").numpy())
        found = getattr(model, _FEATURES[self._folder.reads])(**placed)
        pooled: Tensor = found if isinstance(found, Tensor) else found.pooler_output
        vectors: np.ndarray = self._tail.finish(pooled.float()).to("cpu").numpy()
        return vectors

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        attention = getattr(getattr(self._model, "config", None), "_attn_implementation", None) or "own"
        why = "inputs of one shape run together" if self._folder.reads else "texts of one length run together"
        return {**super().describe(), "attention": attention, "attention_reason": why}

    def close(self) -> None:
        """See `Encoder.close`."""
        super().close()
        if self._contents is not None:
            self._contents.close()
