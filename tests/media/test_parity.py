"""Pictures, sounds and their texts: as transformers gives them, one at a time, in float32 and in bfloat16."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.audio_utils import load_audio
from transformers.image_utils import load_image

from embedctl.encoders.media import MediaEncoder, open_media
from embedctl.job.media import open_media_tokenizer
from embedctl.job.wiring import open_tokenizer
from embedctl.media import as_text
from embedctl.models.folder import ModelFolder
from embedctl.models.load import find_model
from embedctl.outputs import Multivector, Values, take
from embedctl.tokens.pack import make_batches
from tests.media.models import PAGE_KINDS, PICTURE_KINDS, build, clap
from tests.media.samples import PICTURES, SOUNDS

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7", "w9 w8 w1 w1 w3 w4", "w2 w2", "w1 w2 w3 w4 w5 w6 w7 w8 w9"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    known: dict[Any, Path] = {}

    def made(kind: Callable[[Path], Path]) -> Path:
        if kind not in known:
            known[kind] = build(kind, tmp_path_factory.mktemp("model"))
        return known[kind]

    return made


def fused(folder: Path) -> Path:
    return clap(folder, fusion=True)


def encoded(folder: ModelFolder, texts: Sequence[str], dtype: str = "float32", budget: int = 64) -> list[np.ndarray]:
    """Each text's value, from batches of several."""
    resolved = {"max_length": folder.max_seq_length, "prompt": "", "threads": 1}
    tokenizer = open_tokenizer(folder, resolved, {"trust_remote_code": False})
    encoder = open_media(folder, dtype=dtype, device="cpu", threads=1, dim=None)
    found: dict[int, np.ndarray] = {}
    for batch in make_batches(tokenizer(texts), budget):
        (values,) = encoder.encode(batch).values()
        found |= {int(unit): one(values, i) for i, unit in enumerate(batch.units)}
    encoder.close()
    return [found[i] for i in range(len(texts))]


def one(values: Values, i: int) -> np.ndarray:
    taken = take(values, np.array([i]))
    return taken.vectors if isinstance(taken, Multivector) else np.asarray(taken)


def hold(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], dtype: str) -> None:
    cosines = []
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        cosines += ((ours * theirs).sum(axis=1) / norms).tolist()
        if dtype == "float32":
            np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert min(cosines) >= (1 - 1e-6 if dtype == "float32" else 0.9995)


def pooled(found: Any) -> np.ndarray:
    vectors: Tensor = found if isinstance(found, torch.Tensor) else found.pooler_output
    return vectors.float().numpy()


Tensor = torch.Tensor


def load_image_of(content: bytes) -> Any:
    """What transformers makes of a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on damaged EXIF
        with Image.open(io.BytesIO(content)) as picture:
            return load_image(picture)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", PICTURE_KINDS)
def test_pictures(folder_of: Any, kind: str, dtype: str) -> None:
    path = folder_of(PICTURE_KINDS[kind])
    model, processor = (
        transformers.AutoModel.from_pretrained(path),
        transformers.AutoImageProcessor.from_pretrained(path),
    )
    expected = []
    for content in PICTURES.values():
        inputs = processor(images=load_image_of(content), return_tensors="pt")
        expected.append(pooled(model.get_image_features(**inputs)))
    folder = find_model(str(path)).reading("image")
    hold(encoded(folder, [as_text(c) for c in PICTURES.values()], dtype), expected, dtype)


@pytest.mark.parametrize("kind", PICTURE_KINDS)
def test_texts_of_picture_models(folder_of: Any, kind: str) -> None:
    path = folder_of(PICTURE_KINDS[kind])
    model, processor = transformers.AutoModel.from_pretrained(path), transformers.AutoProcessor.from_pretrained(path)
    filled = {"padding": "max_length", "max_length": 16, "truncation": True} if kind.startswith("siglip") else {}
    expected = []
    for text in TEXTS:
        inputs = processor.tokenizer(text, return_tensors="pt", **filled)
        if filled:
            inputs.pop("attention_mask")
        inputs.pop("token_type_ids", None)
        expected.append(pooled(model.get_text_features(**inputs)))
    hold(encoded(find_model(str(path)), TEXTS), expected, "float32")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [clap, fused])
def test_sounds(folder_of: Any, tmp_path: Path, kind: Any, dtype: str) -> None:
    path = folder_of(kind)
    model, extractor = (
        transformers.ClapModel.from_pretrained(path),
        transformers.ClapFeatureExtractor.from_pretrained(path),
    )
    expected = []
    for number, content in enumerate(SOUNDS.values()):
        file = tmp_path / f"{number}.wav"
        file.write_bytes(content)
        samples = load_audio(str(file), sampling_rate=8000)
        if extractor.truncation == "rand_trunc":
            samples = samples[: extractor.nb_max_samples]
        np.random.seed(0)
        expected.append(pooled(model.get_audio_features(**extractor(samples, sampling_rate=8000, return_tensors="pt"))))
    folder = find_model(str(path)).reading("audio")
    hold(encoded(folder, [as_text(c) for c in SOUNDS.values()], dtype), expected, dtype)


def test_texts_of_sound_models(folder_of: Any) -> None:
    path = folder_of(clap)
    model, processor = transformers.ClapModel.from_pretrained(path), transformers.ClapProcessor.from_pretrained(path)
    expected = []
    for text in TEXTS:
        inputs = processor.tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        expected.append(pooled(model.get_text_features(**inputs)))
    hold(encoded(find_model(str(path)), TEXTS), expected, "float32")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_pages(folder_of: Any, kind: str, dtype: str) -> None:
    path = folder_of(PAGE_KINDS[kind])
    folder = find_model(str(path)).reading("image")
    model = getattr(transformers, folder.architecture).from_pretrained(path)
    processor = transformers.AutoProcessor.from_pretrained(path)
    expected = []
    for content in PICTURES.values():
        inputs = processor.process_images(images=[load_image_of(content)])
        inputs.pop("labels", None)
        expected.append(model(**inputs).embeddings[0].numpy())
    hold(encoded(folder, [as_text(c) for c in PICTURES.values()], dtype, budget=200), expected, dtype)


@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_queries_of_page_models(folder_of: Any, kind: str) -> None:
    path = folder_of(PAGE_KINDS[kind])
    folder = find_model(str(path)).reading("image").as_query()
    model = getattr(transformers, folder.architecture).from_pretrained(path)
    processor = transformers.AutoProcessor.from_pretrained(path)
    expected = []
    for text in TEXTS:
        inputs = processor.process_queries(text=[text])
        inputs.pop("labels", None)
        expected.append(model(**inputs).embeddings[0].numpy())
    hold(encoded(folder, TEXTS), expected, "float32")


@pytest.mark.parametrize("kind", [*PICTURE_KINDS.values(), *PAGE_KINDS.values()])
def test_tokens_are_told_before_they_are_made(folder_of: Any, kind: Any) -> None:
    """Budgets and `token_count` count what the model will see."""
    folder = find_model(str(folder_of(kind))).reading("image")
    assert folder.media is not None
    tokenizer = open_media_tokenizer(folder, {"max_length": folder.max_seq_length, "prompt": "", "threads": 1})
    assert tokenizer is not None
    texts = [as_text(c) for c in PICTURES.values()]
    lengths = tokenizer(texts).lengths.tolist()
    if folder.media.late:
        assert lengths == [len(v) for v in encoded(folder, texts, budget=200)]
    else:
        assert set(lengths) == {64 if folder.model_type == "align" else 16 if folder.media.filled else 17}


def test_matryoshka_and_closed_encoders(folder_of: Any) -> None:
    folder = find_model(str(folder_of(PAGE_KINDS["colpali"]))).reading("image")
    cut = open_media(folder, dtype="float32", device="cpu", threads=1, dim=4)
    assert isinstance(cut, MediaEncoder)
    assert cut.dims == {"multivector": 4}
    tokenizer = open_media_tokenizer(folder, {"max_length": 9, "prompt": "", "threads": 1})
    assert tokenizer is not None
    (batch,) = make_batches(tokenizer([as_text(PICTURES["png"])]), 1000)
    (vectors,) = cut.encode(batch).values()
    assert isinstance(vectors, Multivector)
    np.testing.assert_allclose(np.linalg.norm(vectors.vectors, axis=1), 1.0, atol=1e-6)
    whole = open_media(replace(folder), dtype="float32", device="cpu", threads=1, dim=None)
    (full,) = whole.encode(batch).values()
    assert isinstance(full, Multivector)
    first = full.vectors[:, :4]
    np.testing.assert_allclose(vectors.vectors, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
