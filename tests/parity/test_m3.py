"""BGE-M3's three outputs of one forward pass, held to its authors' arithmetic written out over transformers.

Tiny random weights in the real layout: XLM-R, CLS pooling, sparse_linear.pt and colbert_linear.pt at the root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")
import transformers

from embedctl.encoders.open import open_encoder
from embedctl.errors import ModelError
from embedctl.models.load import find_model
from embedctl.spec import JobSpec
from tests.parity import families

SEQUENCES = [*families.tokens_of(families.TEXTS), [0, 9, 3, 9, 3, 40, 2]]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def m3(folder: Path, width: int = 32) -> Path:
    families.save_folder("xlm-roberta", folder, modes=("cls",))
    torch.manual_seed(13)
    for name, out in (("sparse_linear.pt", 1), ("colbert_linear.pt", width)):
        torch.save(torch.nn.Linear(32, out).state_dict(), folder / name)
    return folder


def reference(folder: Path, ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(dense, sparse, multivector) as FlagEmbedding's M3 computes them."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sparse, late = (torch.load(folder / f, weights_only=True) for f in ("sparse_linear.pt", "colbert_linear.pt"))
    with torch.inference_mode():
        hidden = model(torch.tensor([ids]), attention_mask=torch.ones((1, len(ids)))).last_hidden_state[0]
        dense = torch.nn.functional.normalize(hidden[:1], dim=-1)
        weights = torch.relu(hidden @ sparse["weight"].T + sparse["bias"])[:, 0]
        whole = torch.zeros(families.VOCAB).scatter_reduce(0, torch.tensor(ids), weights, reduce="amax")
        for special in (tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id):
            whole[special] = 0
        vectors = torch.nn.functional.normalize(hidden[1:] @ late["weight"].T + late["bias"], dim=-1)
    return dense.numpy(), whole.numpy(), vectors.numpy()


def _open(folder: Path, **kwargs: Any):
    return open_encoder(find_model(str(folder)), dtype="float32", device="cpu", threads=1, **kwargs)


@pytest.mark.parametrize("compiled", [False, None])
def test_three_outputs(compiled: bool | None, tmp_path: Path) -> None:
    folder = m3(tmp_path / "m", width=24)
    encoder = _open(folder, outputs=("multivector", "sparse", "dense"), compile=compiled)
    assert encoder.dims == {"dense": 32, "sparse": families.VOCAB, "multivector": 24}
    found = families.outputs(encoder, SEQUENCES)
    assert list(found) == ["dense", "sparse", "multivector"]
    expected = [reference(folder, ids) for ids in SEQUENCES]
    families.assert_close(found["dense"], np.concatenate([d for d, _, _ in expected]))
    sparse = families.full(found["sparse"], families.VOCAB)
    assert np.abs(sparse - np.stack([s for _, s, _ in expected])).max() <= 1e-5
    assert (sparse > 0).any()
    vectors = families.lists(found["multivector"])
    assert [len(v) for v in vectors] == [len(ids) - 1 for ids in SEQUENCES]
    families.assert_close(np.concatenate(vectors), np.concatenate([v for _, _, v in expected]))


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    folder = m3(tmp_path / "m")
    found = find_model(str(folder))
    assert found.kinds == ("dense", "sparse", "multivector")
    assert list(families.outputs(_open(folder), SEQUENCES)) == ["dense"]
    cut = families.outputs(_open(folder, outputs=("sparse",), sparse_top_k=3), SEQUENCES)
    whole = families.full(families.outputs(_open(folder, outputs=("sparse",)), SEQUENCES)["sparse"], families.VOCAB)
    for row, kept in zip(whole, families.full(cut["sparse"], families.VOCAB), strict=True):
        assert np.array_equal(np.sort(kept)[-3:], np.sort(row)[-3:])
    numbers = [found.numbers(kind, JobSpec(dim=8)) for kind in found.kinds]
    assert numbers == [8, families.VOCAB, 32]
    merged = families.outputs(_open(folder, outputs=("multivector",), pool_factor=2.0), SEQUENCES)["multivector"]
    assert [len(v) for v in families.lists(merged)] == [max((len(ids) - 1) // 2, 1) for ids in SEQUENCES]


def test_heads_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    folder = m3(tmp_path / "m")
    before = find_model(str(folder)).fingerprint()
    torch.save(torch.nn.Linear(32, 1).state_dict(), folder / "sparse_linear.pt")
    assert find_model(str(folder)).fingerprint() != before


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    folder = m3(tmp_path / "m")
    torch.save({"weight": Path}, folder / "colbert_linear.pt")
    with pytest.raises(
        ModelError, match=r"colbert_linear.pt: not a linear layer saved by torch: it holds more than tensors$"
    ):
        find_model(str(folder))


def test_output_that_is_not_there(tmp_path: Path) -> None:
    folder = families.save_folder("bert", tmp_path / "m")
    with pytest.raises(ModelError, match="m gives no sparse output; it gives: dense"):
        _open(folder, outputs=("sparse",))
