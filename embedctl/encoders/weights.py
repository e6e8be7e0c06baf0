"""Opens a transformer's weights with transformers, and the small weights of the modules that follow it.

Enters: a `ModelFolder`, a dtype, a device, an attention name. Leaves: a model in eval mode. Refuses, in one line:
kinds that transformers does not know, weights that do not fit the config, tensors that are missing (which would
otherwise be random numbers), decoders whose encoder cannot stand alone.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterator
from logging import CRITICAL
from pathlib import Path

import torch
from torch import Tensor, nn

from embedctl.errors import EmbedctlError, EncoderError, ModelError, OutOfDeviceMemory
from embedctl.models.files import find_weights
from embedctl.models.folder import ModelFolder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SPARE = ("pooler", "position_ids")
"""Parts of a checkpoint that an embedding never reads: they may be missing. A head may read all but the last."""
_ENCODER_ALONE = frozenset({"t5", "mt5", "umt5"})
"""Encoder-decoders whose encoder is the embedder; the decoder is not loaded."""


def load_transformer(
    folder: ModelFolder, *, dtype: str, device: str, attention: str | None, auto_class: str | None = None
) -> nn.Module:
    """The encoder alone, or what a class of transformers makes of the folder, head and all; `attention` its
    implementation. :raises ModelError: see the module."""
    import transformers

    assert folder.path is not None
    with quiet():
        config = _config(folder, folder.path)
        alone = folder.model_type in _ENCODER_ALONE
        auto = getattr(transformers, auto_class or ("AutoModelForTextEncoding" if alone else "AutoModel"))
        try:
            model, info = auto.from_pretrained(
                str(folder.path), config=config, dtype=DTYPES[dtype], attn_implementation=attention,
                local_files_only=True, trust_remote_code=folder.trust_remote_code, output_loading_info=True,
                use_safetensors=None if folder.allow_pickle else True,
            )  # fmt: skip
        except EmbedctlError:  # a signal came
            raise
        except Exception as exc:
            if is_out_of_memory(exc):
                raise OutOfDeviceMemory(f"{folder.name}: its weights do not fit in memory") from exc
            raise ModelError(f"{folder.path}: transformers cannot open it: {_first_line(exc)}") from exc
    spare = _SPARE if auto_class is None else _SPARE[1:]
    missing = [key for key in info["missing_keys"] if not any(part in key for part in spare)]
    if missing:
        raise ModelError(
            f"{folder.path}: {len(missing)} tensors are missing from its weights (first: {min(missing)})",
            hint="download the model again; if it runs its own code, --trust-remote-code",
        )
    loaded: nn.Module = model.eval()
    return _to(loaded, device, folder.name)


def _config(folder: ModelFolder, path: Path) -> object:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=folder.trust_remote_code
        )
    except Exception as exc:
        raise ModelError(
            f"{path / 'config.json'}: model_type {folder.model_type!r} is not one that transformers "
            f"{transformers.__version__} opens: {_first_line(exc)}"
        ) from exc
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    if getattr(config, "is_encoder_decoder", False) and folder.model_type not in _ENCODER_ALONE:
        raise ModelError(f"{path}: {folder.architecture} is an encoder-decoder whose encoder cannot be used alone")
    return config


def _to(model: nn.Module, device: str, name: str) -> nn.Module:
    try:
        return model.to(device)
    except Exception as exc:
        if is_out_of_memory(exc):
            raise OutOfDeviceMemory(f"{name}: its weights do not fit on {device}", hint="--device cpu") from exc
        raise EncoderError(f"{name}: cannot be moved to {device}: {_first_line(exc)}") from exc


def load_tensors(path: Path, *, allow_pickle: bool) -> dict[str, Tensor]:
    """All tensors of one module's folder; or of one file the linear layer in it, as `linear.weight` and `linear.bias`.

    In float32. :raises ModelError: broken.
    """
    tensors: dict[str, Tensor] = {}
    for file in (path,) if path.is_file() else find_weights(path, allow_pickle=allow_pickle):
        try:
            tensors |= _linear_of(file) if path.is_file() else _all_of(file)
        except Exception as exc:
            raise ModelError(f"{file}: cannot be opened: {_first_line(exc)}") from exc
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _all_of(file: Path) -> dict[str, Tensor]:
    """Pickles give nothing but tensors here, whatever is in them."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        loaded: dict[str, Tensor] = load_file(file)
        return loaded
    pickled: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return pickled


def _linear_of(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys() if name.startswith("linear.")}  # noqa: SIM118
    tensors = _all_of(file)
    if "weight" in tensors:
        return {f"linear.{name}": tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in tensors.items() if name.startswith("linear.")}


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether a smaller batch might have fitted: CUDA's own error, or the allocator's words on CPU."""
    if isinstance(exc, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(exc)
    return isinstance(exc, RuntimeError) and ("not enough memory" in text or "can't allocate memory" in text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice on stderr: what matters becomes an error of ours."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _first_line(exc: BaseException) -> str:
    if isinstance(exc, pickle.UnpicklingError):  # torch's words advise to open it all the same
        return "its pickle is damaged, or holds more than tensors"
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(exc).__name__
