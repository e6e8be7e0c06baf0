"""What stands around the pooling, held to sentence-transformers: modes, prompts left out, Dense, LayerNorm, dims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")

from embedctl.encoders.open import open_encoder
from embedctl.errors import ModelError
from embedctl.models.load import find_model
from embedctl.spec import POOLINGS
from tests.parity import families

SEQUENCES = families.tokens_of(families.TEXTS)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def _open(folder: Path, **kwargs):
    return open_encoder(find_model(str(folder)), dtype="float32", device="cpu", threads=1, **kwargs)


@pytest.mark.parametrize("modes", [(m,) for m in POOLINGS] + [("cls", "max"), ("lasttoken", "mean", "weightedmean")])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_pooling_modes(family: str, modes: tuple[str, ...], tmp_path: Path) -> None:
    folder = families.save_folder(family, tmp_path / "m", modes=modes, normalize=False)
    encoder = _open(folder)
    assert encoder.dims["dense"] == 32 * len(modes)
    families.assert_close(families.encode(encoder, SEQUENCES), families.reference(folder, SEQUENCES))


@pytest.mark.parametrize("modes", [(m,) for m in POOLINGS])
def test_prompt_left_out_of_the_pooling(modes: tuple[str, ...], tmp_path: Path) -> None:
    folder = families.save_folder("roberta", tmp_path / "m", modes=modes, include_prompt=False)
    sequences = families.tokens_of(families.TEXTS, prompt="w50 w51 w52 ")
    encoder = _open(folder, num_prompt_tokens=4)
    ours = families.encode(encoder, sequences)
    families.assert_close(ours, families.reference(folder, sequences, prompt_length=4))
    if modes[0] not in ("lasttoken", "max"):
        with_prompt = families.encode(_open(folder), sequences)
        assert np.abs(ours - with_prompt).max() > 1e-3


def test_prompt_counts_when_the_folder_says_so(tmp_path: Path) -> None:
    folder = families.save_folder("bert", tmp_path / "m", include_prompt=True)
    sequences = families.tokens_of(families.TEXTS, prompt="w50 ")
    families.assert_close(
        families.encode(_open(folder, num_prompt_tokens=2), sequences), families.reference(folder, sequences)
    )


@pytest.mark.parametrize("normalize", [True, False])
def test_dense_and_layer_norm(normalize: bool, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm

    torch.manual_seed(3)
    norm = LayerNorm(64)
    torch.nn.init.normal_(norm.norm.weight)
    dense = (
        Dense(64, 64, activation_function=torch.nn.GELU(), use_residual=True), norm,
        Dense(64, 24, bias=False, activation_function=torch.nn.Identity()), Dense(24, 48, use_residual=True),
    )  # fmt: skip
    folder = families.save_folder("bert", tmp_path / "m", modes=("mean", "cls"), dense=dense, normalize=normalize)
    encoder = _open(folder)
    assert encoder.dims["dense"] == find_model(str(folder)).output_dim == 48
    families.assert_close(families.encode(encoder, SEQUENCES), families.reference(folder, SEQUENCES))


def test_embedding_gemma_layout(tmp_path: Path) -> None:
    """Bidirectional Gemma3, mean, two Dense layers without bias and activation, Normalize."""
    from sentence_transformers.sentence_transformer.modules import Dense

    dense = [Dense(a, b, bias=False, activation_function=torch.nn.Identity()) for a, b in ((32, 64), (64, 32))]
    folder = families.save_folder("gemma3-bidirectional", tmp_path / "m", dense=tuple(dense))
    families.assert_close(families.encode(_open(folder), SEQUENCES), families.reference(folder, SEQUENCES))


def test_matryoshka_cuts_then_renormalises(tmp_path: Path) -> None:
    folder = families.save_folder("bert", tmp_path / "m")
    ours = families.encode(_open(folder, dim=8), SEQUENCES)
    cut = families.reference(folder, SEQUENCES)[:, :8]
    families.assert_close(ours, cut / np.linalg.norm(cut, axis=1, keepdims=True))


def test_truncate_dim_of_the_folder(tmp_path: Path) -> None:
    folder = families.save_folder("bert", tmp_path / "m", settings={"truncate_dim": 12}, normalize=False)
    encoder = _open(folder)
    assert encoder.dims == {"dense": 12}
    families.assert_close(families.encode(encoder, SEQUENCES), families.reference(folder, SEQUENCES, dim=12))


def test_pooling_flag_replaces_the_folders(tmp_path: Path) -> None:
    mean = families.save_folder("bert", tmp_path / "mean")
    cls = families.save_folder("bert", tmp_path / "cls", modes=("cls",))
    families.assert_close(families.encode(_open(mean, pooling="cls"), SEQUENCES), families.reference(cls, SEQUENCES))


@pytest.mark.parametrize(("family", "mode"), [("bert", "mean"), ("qwen3", "mean")])
def test_plain_transformers_folder(family: str, mode: str, tmp_path: Path) -> None:
    families.save_transformer(family, tmp_path / "plain")
    folder = find_model(str(tmp_path / "plain"))
    assert folder.pooling is not None
    assert folder.pooling.modes == (mode,)
    assert "no modules.json" in folder.notes[0]
    full = families.save_folder(family, tmp_path / "full", normalize=False)
    families.assert_close(families.encode(_open(tmp_path / "plain"), SEQUENCES), families.reference(full, SEQUENCES))


def test_causal_plain_folder_takes_the_last_token(tmp_path: Path) -> None:
    import transformers

    families.save_transformer("qwen3", tmp_path / "m")
    transformers.Qwen3ForCausalLM(families.FAMILIES["qwen3"]()).save_pretrained(tmp_path / "m")
    folder = find_model(str(tmp_path / "m"))
    assert folder.pooling is not None
    assert folder.pooling.modes == ("lasttoken",)
    full = families.save_folder("qwen3", tmp_path / "full", modes=("lasttoken",), normalize=False)
    transformers.Qwen3ForCausalLM.from_pretrained(tmp_path / "m").save_pretrained(full)
    families.assert_close(families.encode(_open(tmp_path / "m"), SEQUENCES), families.reference(full, SEQUENCES))


def test_literal_padding_token_in_a_text(tmp_path: Path) -> None:
    """RoBERTa gives the padding token no position of its own, even where a text holds it."""
    folder = families.save_folder("roberta", tmp_path / "m")
    sequences = [[0, 5, 1, 6, 2], [0, 1, 1, 2], [0, 9, 2]]
    families.assert_close(families.encode(_open(folder), sequences), families.reference(folder, sequences))


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", "mpnet", "gemma3-bidirectional"])
def test_bfloat16_bars(family: str, tmp_path: Path) -> None:
    """Random weights are harsher than trained ones: the float32 second chance must still be exact."""
    folder = families.save_folder(family, tmp_path / "m")
    encoder = open_encoder(find_model(str(folder)), dtype="bfloat16", device="cpu", threads=1)
    theirs = families.reference(folder, SEQUENCES)
    ours = families.encode(encoder, SEQUENCES)
    assert ours.dtype == np.float32
    assert (ours * theirs).sum(axis=1).min() > 0.99
    families.assert_close(families.encode(encoder, SEQUENCES, float32=True), theirs)


def test_missing_tensor_is_refused_not_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = families.save_folder("bert", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("encoder.layer.1.output.dense.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"1 tensors are missing from its weights \(first: encoder.layer.1.output.dense.weight\)"
    ):
        _open(folder)
