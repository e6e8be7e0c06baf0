"""Static tables: model2vec's real one, and sentence-transformers' StaticEmbedding, held to their makers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedctl.encoders.open import open_encoder
from embedctl.encoders.static import StaticEncoder, _spans
from embedctl.encoders.tables import read_tables
from embedctl.errors import ModelError
from embedctl.models.load import find_model
from tests.parity import families


def test_static_embedding_of_sentence_transformers(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding

    weights = np.random.default_rng(1).normal(size=(families.VOCAB, 24)).astype(np.float32)
    table = StaticEmbedding(families.tiny_tokenizer(), embedding_weights=weights)
    for number, extra in enumerate(([], [Normalize()], [Dense(24, 12), Normalize()])):
        folder = tmp_path / str(number)
        model = st.SentenceTransformer(modules=[table, *extra], device="cpu")
        model.save_pretrained(str(folder))
        found = find_model(str(folder))
        assert (found.kind, found.add_special_tokens) == ("static", False)
        encoder = open_encoder(found, dtype="float32", device="cpu")
        tokens = [t.ids for t in families.tiny_tokenizer().encode_batch(families.TEXTS, add_special_tokens=False)]
        ours = families.encode(encoder, [*tokens, []])
        families.assert_close(ours[:-1], model.encode(families.TEXTS, show_progress_bar=False))
        assert encoder.dims["dense"] == ours.shape[1] == (12 if number == 2 else 24)


def test_model2vec_folder() -> None:
    model2vec = pytest.importorskip("model2vec")
    spec = pytest.importorskip("importlib.util").find_spec("static_model")
    if spec is None:
        pytest.skip("the static model's package is not installed")
    root = Path(spec.submodule_search_locations[0]) / "model"
    theirs = model2vec.StaticModel.from_pretrained(str(root), force_download=False)
    folder = find_model(str(root))
    assert (folder.kind, folder.architecture, folder.normalize) == ("static", "model2vec", True)
    encoder = StaticEncoder(folder)
    texts = ["a fox", "the quick brown fox jumps over the lazy dog", "naïve café 北京", "\x07 zzzz"]
    tokens = [e.ids for e in theirs.tokenizer.encode_batch(texts, add_special_tokens=False)]
    families.assert_close(families.encode(encoder, tokens), theirs.encode(texts))
    cut = families.encode(StaticEncoder(folder, dim=16), tokens)
    assert np.allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("kind", ["BF16", "F16", "F64"])
def test_tables_of_other_types(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}[kind]
    table = torch.randn(families.VOCAB, 24, generator=torch.Generator().manual_seed(2)).to(dtype)
    ids = torch.arange(3, dtype=torch.int64)
    save_file({"mapping": ids, "embeddings": table, "none": table[:0]}, tmp_path / "model.safetensors")
    found = read_tables(tmp_path / "model.safetensors")
    assert np.array_equal(found["embeddings"].astype(np.float64), table.double().numpy())
    assert (found["none"].shape, found["mapping"].tolist()) == ((0, 24), [0, 1, 2])


def test_numbers_that_numpy_has_not_are_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file({"embeddings": torch.zeros(4, 2).to(torch.float8_e4m3fn)}, path)
    with pytest.raises(ModelError, match="cannot be opened"):
        read_tables(path)


def test_spans_cover_every_sequence_once() -> None:
    offsets = np.concatenate(([0], np.cumsum([0, 70000, 3, 0, 65536, 65537, 1])))
    spans = _spans(offsets)
    assert [i for a, b in spans for i in range(a, b)] == list(range(7))
