"""Folders of sentence-transformers, today's and the old CLIP layout; what is not understood is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from embedctl.errors import ModelError, UsageError
from embedctl.media import as_text
from embedctl.models.load import find_model
from tests.media.models import build, clap, clip, colpali
from tests.media.samples import PICTURES
from tests.media.test_parity import TEXTS, encoded, hold, load_image_of


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clip, tmp_path_factory.mktemp("clip"))


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "copy"))


def pictures() -> list[Any]:
    return [load_image_of(content) for content in PICTURES.values()]


def hold_to(model: SentenceTransformer, path: Path) -> None:
    folder = find_model(str(path))
    expected = [model.encode([picture]) for picture in pictures()]
    hold(encoded(folder.reading("image"), [as_text(c) for c in PICTURES.values()]), expected, "float32")
    hold(encoded(folder, TEXTS), [model.encode([text]) for text in TEXTS], "float32")


def test_as_sentence_transformers_saves_it(plain: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(plain), device="cpu")
    model.save(str(tmp_path / "saved"))
    hold_to(model, tmp_path / "saved")


def test_with_modules_behind(plain: Path, tmp_path: Path) -> None:
    first = SentenceTransformer(str(plain), device="cpu")[0]
    model = SentenceTransformer(modules=[first, Dense(24, 12), Normalize()], device="cpu")
    model.save(str(tmp_path / "saved"))
    folder = find_model(str(tmp_path / "saved"))
    assert (folder.output_dim, folder.normalize) == (12, True)
    hold_to(model, tmp_path / "saved")


def test_the_old_clip_layout(plain: Path, tmp_path: Path) -> None:
    root = tmp_path / "old"
    shutil.copytree(plain, root / "0_CLIPModel")
    modules = [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    (root / "modules.json").write_text(json.dumps(modules))
    (root / "config_sentence_transformers.json").write_text(json.dumps({"__version__": {}}))
    hold_to(SentenceTransformer(str(root), device="cpu"), root)


def test_pages_as_sentence_transformers_saves_them(tmp_path: Path) -> None:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(build(colpali, tmp_path / "plain")), device="cpu")
    model.save(str(tmp_path / "saved"))
    folder = find_model(str(tmp_path / "saved")).reading("image")
    expected = [np.asarray(model.encode_document([picture])[0]) for picture in pictures()]
    hold(encoded(folder, [as_text(c) for c in PICTURES.values()], budget=200), expected, "float32")
    asked = [np.asarray(model.encode_query([text])[0]) for text in TEXTS]
    hold(encoded(folder.as_query(), TEXTS), asked, "float32")


def test_fingerprints_hold_what_prepares_pictures(plain: Path, copy: Path) -> None:
    before = find_model(str(copy)).fingerprint()
    assert before == find_model(str(plain)).fingerprint()
    settings = json.loads((copy / "processor_config.json").read_text())
    settings["image_processor"]["do_center_crop"] = False
    (copy / "processor_config.json").write_text(json.dumps(settings))
    assert find_model(str(copy)).fingerprint() != before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"modality_config": {"message": {}}}, "chat template"),
        ({"modality_config": {"image": {"method": "forward", "method_output_name": "pooler_output"}}}, "'forward'"),
        ({"processing_kwargs": {"image": {"size": 3}}}, "processing_kwargs for 'image'"),
        ({"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
    ],
)
def test_other_ways_into_the_model(copy: Path, settings: dict[str, Any], told: str) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    ]
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=f"{told}.* not understood"):
        find_model(str(copy))


def test_models_that_read_other_things(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--audio-column: .* \(CLIPModel\) reads no sounds; CLAP do"):
        find_model(str(plain)).reading("audio")
    with pytest.raises(UsageError, match=r"--image-column: .* \(ClapModel\) reads no pictures"):
        find_model(str(build(clap, tmp_path / "clap"))).reading("image")
    with pytest.raises(UsageError, match="reads no pictures"):
        find_model("fake").reading("image")
