"""Opening encoders: what auto means, why a model is not packed, and which errors leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from embedctl.encoders.open import open_encoder, resolve_device, resolve_dtype
from embedctl.encoders.torch_encoder import TorchEncoder
from embedctl.encoders.weights import is_out_of_memory
from embedctl.errors import EncoderError, ModelError, OutOfDeviceMemory, UsageError
from embedctl.models.load import find_model
from tests.parity import families

SEQUENCES = families.tokens_of(families.TEXTS)


def _open(folder: Path, **kwargs):
    return open_encoder(find_model(str(folder)), dtype="float32", device="cpu", threads=1, **kwargs)


def test_dtype_auto_follows_the_hardware() -> None:
    native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    assert resolve_dtype("auto", "cpu") == ("bfloat16" if native else "float32")
    assert resolve_dtype("float16", "cpu") == "float16"


def test_device() -> None:
    assert resolve_device("cpu") == "cpu"
    if not torch.cuda.is_available():
        assert resolve_device(None) == "cpu"
    with pytest.raises(UsageError, match="--device: cuda:99 is not here; there is: cpu"):
        resolve_device("cuda:99")
    with pytest.raises(UsageError, match="--device: 'gpu' is not a device"):
        resolve_device("gpu")


@pytest.mark.parametrize(
    ("family", "padded", "reason"),
    [
        ("distilbert", False, "groups of equal length"),
        ("mpnet", True, "MPNet has an attention of its own"),
        ("lfm2", True, "packed gives other numbers than one by one"),
        ("stablelm", True, "does not hand keywords down"),
        ("gemma2", True, "its attention uses softcap"),
        ("nystromformer", False, "sequences of one length run together"),
    ],
)
def test_the_reason_is_told(family: str, padded: bool, reason: str, tmp_path: Path) -> None:
    encoder = _open(families.save_folder(family, tmp_path / "m"))
    assert reason in encoder.describe()["attention_reason"]
    assert encoder.padded is padded
    assert encoder.deterministic


@pytest.mark.parametrize("family", ["bert", "mpnet", "nystromformer"])
def test_empty_sequences_and_batches(family: str, tmp_path: Path) -> None:
    encoder = _open(families.save_folder(family, tmp_path / "m"))
    vectors = families.encode(encoder, [SEQUENCES[3], [], SEQUENCES[4]])
    assert not vectors[1].any()
    families.assert_close(vectors[[0, 2]], families.encode(encoder, [SEQUENCES[3], SEQUENCES[4]]))
    assert families.encode(encoder, [[], []]).shape == (2, 32)
    assert families.encode(encoder, []).shape == (0, 32)


def test_encoder_decoder_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.BartConfig(
        vocab_size=families.VOCAB, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=80,
    )  # fmt: skip
    transformers.BartModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="BartModel is an encoder-decoder whose encoder cannot be used alone"):
        _open(tmp_path)


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    folder = families.save_folder("bert", tmp_path / "m")
    config = (folder / "config.json").read_text().replace('"model_type": "bert"', '"model_type": "tomorrow"')
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelError, match=r"model_type 'tomorrow' is not one that transformers .* opens"):
        _open(folder)


def test_activation_outside_torch_is_refused(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense

    folder = families.save_folder("bert", tmp_path / "m", dense=(Dense(32, 8),))
    path = folder / "2_Dense" / "config.json"
    path.write_text(path.read_text().replace("torch.nn.modules.activation.Tanh", "os.system"))
    with pytest.raises(ModelError, match=r"2_Dense: activation 'os.system' is not one of torch.nn"):
        _open(folder)


def test_real_lack_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))


def test_errors_leave_as_ours(tmp_path: Path) -> None:
    class Failing(TorchEncoder):
        error: Exception = ValueError()

        def _hidden(self, model, batch):
            raise self.error

    encoder = _open(families.save_folder("bert", tmp_path / "m"))
    failing = Failing(encoder._load, encoder._heads, dtype="float32", device="cpu", threads=1)
    batch, _ = families.packed(SEQUENCES)
    failing.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(OutOfDeviceMemory, match="tokens do not fit on cpu"):
        failing.encode(batch)
    failing.error = ValueError("bad shape")
    with pytest.raises(EncoderError, match=r"the encoder failed on \d+ tokens: bad shape"):
        failing.encode(batch)


def test_closed_encoder_says_so(tmp_path: Path) -> None:
    encoder = _open(families.save_folder("bert", tmp_path / "m"))
    encoder.close()
    with pytest.raises(EncoderError, match="the encoder was closed"):
        families.encode(encoder, SEQUENCES)


def test_token_outside_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    encoder = _open(families.save_folder("bert", tmp_path / "m"))
    with pytest.raises(EncoderError):
        families.encode(encoder, [[0, families.VOCAB + 5, 2]])
    assert np.isfinite(families.encode(encoder, SEQUENCES)).all()
