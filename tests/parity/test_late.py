"""Late interaction held to sentence-transformers' MultiVectorEncoder, one text at a time, documents and queries.

Tiny random weights in the real layouts: sentence-transformers' own, PyLate's, Stanford's.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
torch = pytest.importorskip("torch")
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from embedctl.encoders.open import open_encoder
from embedctl.errors import ModelError
from embedctl.models.load import find_model
from embedctl.outputs import Multivector
from embedctl.spec import JobSpec
from embedctl.tokens.tokenize import load_tokenizer
from tests.parity import families

WORDS = 96
TEXTS = [
    "w7", "w8 , w9 .", "w10 ! w11 w12 ; w13", "w9 w9 , , w9", " ".join(f"w{5 + i % 80}" for i in range(24)),
    " ".join(f"w{5 + (i * 7) % 80} ." for i in range(40)), "(w5) w6-w7 w8/w9",
]  # fmt: skip
ENCODERS = ("bert", "xlm-roberta", "modernbert", "distilbert", "mpnet")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def tokenizer(markers: tuple[str, ...] = ()) -> Any:
    """Words, punctuation apart, mask and markers. [unused0] and [unused1] are words like others, as in BERT's own."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    known = [*special, "[unused0]", "[unused1]", *(f"w{i}" for i in range(5, WORDS)), *string.punctuation]
    rust = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    rust.normalizer = normalizers.Lowercase()
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", mask_token="<mask>", model_max_length=64,
    )  # fmt: skip
    fast.add_tokens(list(markers))
    return fast


def transformer(family: str, folder: Path, markers: tuple[str, ...] = ()) -> Path:
    fast, config = tokenizer(markers), families.FAMILIES[family]()
    config.vocab_size = len(fast) + 2
    torch.manual_seed(5)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def dense(folder: Path, sizes: tuple[int, int] = (32, 12)) -> None:
    from sentence_transformers.base.modules.dense import Dense

    torch.manual_seed(sizes[1])
    folder.mkdir(parents=True)
    Dense(*sizes, bias=False, activation_function=torch.nn.Identity()).save(str(folder))
    families.write_json(folder / "config.json", {
        "in_features": sizes[0], "out_features": sizes[1], "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    })  # fmt: skip


def pylate(family: str, folder: Path, layers: tuple[tuple[int, int], ...] = ((32, 12),), **config: Any) -> Path:
    """As PyLate saves: a Transformer, Dense layers of its own, its settings at the top."""
    transformer(family, folder, ("[Q] ", "[D] "))
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for i, sizes in enumerate(layers, 1):
        dense(folder / f"{i}_Dense", sizes)
        listed.append({"idx": i, "name": str(i), "path": f"{i}_Dense", "type": "pylate.models.Dense.Dense"})
    families.write_json(folder / "modules.json", listed)
    families.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 47, "do_lower_case": False})
    settings = {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12, "document_length": 48,
        "attend_to_expansion_tokens": False, "skiplist_words": list(string.punctuation), "do_query_expansion": True,
    }  # fmt: skip
    kept = {key: value for key, value in {**settings, **config}.items() if value != "left out"}
    families.write_json(folder / "config_sentence_transformers.json", kept)
    return folder


def stanford(family: str, folder: Path, **metadata: Any) -> Path:
    """As ColBERT's own checkpoints lie: the projection among the weights, settings in artifact.metadata."""
    from safetensors.torch import load_file, save_file

    transformer(family, folder)
    torch.manual_seed(9)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(16, 32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = (folder / "config.json").read_text().replace('"BertModel"', '"HF_ColBERT"')
    (folder / "config.json").write_text(config)
    settings = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "doc_maxlen": 40, "query_maxlen": 10}
    families.write_json(folder / "artifact.metadata", {**settings, "dim": 16, **metadata})
    return folder


def reference(folder: Path, texts: list[str], *, query: bool, **kwargs: Any) -> list[np.ndarray]:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True).eval()
    run = model.encode_query if query else model.encode_document
    return [run(text, convert_to_numpy=True, show_progress_bar=False, **kwargs) for text in texts]


def sequences(folder: Path, texts: list[str], *, query: bool = False) -> list[list[int]]:
    """Token ids as a job makes them."""
    found = find_model(str(folder))
    found = found.as_query() if query else found
    assert found.path is not None
    spec = JobSpec()
    tokens = load_tokenizer(
        found.path, max_length=found.max_length(spec), prompt=found.prompt(spec), marker=found.marker
    )(texts)
    return [tokens.ids_T[b:e].tolist() for b, e in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]


def ours(folder: Path, texts: list[str], *, query: bool = False, **kwargs: Any) -> list[np.ndarray]:
    found = find_model(str(folder))
    encoder = open_encoder(
        found.as_query() if query else found, **{"dtype": "float32", "device": "cpu", "threads": 1, **kwargs}
    )
    return families.lists(families.outputs(encoder, sequences(folder, texts, query=query))["multivector"])


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [len(x) for x in found] == [len(x) for x in expected]
    families.assert_close(np.concatenate(found), np.concatenate(expected))


@pytest.mark.parametrize("query", [False, True])
@pytest.mark.parametrize("family", ENCODERS)
def test_pylate(family: str, query: bool, tmp_path: Path) -> None:
    folder = pylate(family, tmp_path / "m")
    assert find_model(str(folder)).kinds == ("multivector",)
    found = ours(folder, TEXTS, query=query)
    assert_same(found, reference(folder, TEXTS, query=query))
    assert_same(found, [x for text in TEXTS for x in ours(folder, [text], query=query)])
    assert all(len(x) == 12 for x in found) == query
    assert np.allclose(np.linalg.norm(np.concatenate(found), axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"attend_to_expansion_tokens": True}, {"do_query_expansion": False}, {"skiplist_words": []},
        {"skiplist_words": None}, {"document_length": None}, {"query_prefix": "", "document_prefix": ""},
        {"model_type": "left out"}, {"prompts": {"query": "w30 w31 ", "document": "w33 "}},
        {"query_prefix": "query: ", "document_prefix": "w50 w51 "},
    ],
)  # fmt: skip
@pytest.mark.parametrize("query", [False, True])
def test_settings_of_pylate(config: dict[str, Any], query: bool, tmp_path: Path) -> None:
    folder = pylate("bert", tmp_path / "m", **config)
    assert_same(ours(folder, TEXTS, query=query), reference(folder, TEXTS, query=query))


def test_two_layers_and_matryoshka(tmp_path: Path) -> None:
    folder = pylate("bert", tmp_path / "m", layers=((32, 24), (24, 8)))
    expected = reference(folder, TEXTS, query=False)
    assert_same(ours(folder, TEXTS), expected)
    cut = [x[:, :4] / np.linalg.norm(x[:, :4], axis=1, keepdims=True) for x in expected]
    assert_same(ours(folder, TEXTS, dim=4), cut)
    assert find_model(str(folder)).numbers("multivector", JobSpec(dim=4)) == 4


@pytest.mark.parametrize("query", [False, True])
@pytest.mark.parametrize("metadata", [{}, {"attend_to_mask_tokens": True}, {"mask_punctuation": False}])
def test_stanford(metadata: dict[str, Any], query: bool, tmp_path: Path) -> None:
    folder = stanford("bert", tmp_path / "m", **metadata)
    assert_same(ours(folder, TEXTS, query=query), reference(folder, TEXTS, query=query))


@pytest.mark.parametrize("strategy", ["fixed", "min"])
@pytest.mark.parametrize("query", [False, True])
def test_own_layout(strategy: str, query: bool, tmp_path: Path) -> None:
    """Saved by the library itself, with a mask, a normalisation, a pooling and lengths of its own."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask

    plain = transformer("bert", tmp_path / "plain", ("[Q] ", "[D] "))
    backbone = Transformer(
        str(plain), document_length=30, query_expansion={"strategy": strategy, "attend": False, "length": 9}
    )
    torch.manual_seed(2)
    projection = Dense(32, 8, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    modules = [
        backbone, projection, MultiVectorMask(skiplist_words=[",", "."]),
        Normalize(module_input_name="token_embeddings"), HierarchicalTokenPooling(2.0),
    ]  # fmt: skip
    prompts = {"query": "[Q] ", "document": "w60 "}
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts).save_pretrained(str(tmp_path / "m"))
    assert_same(ours(tmp_path / "m", TEXTS, query=query), reference(tmp_path / "m", TEXTS, query=query))


@pytest.mark.parametrize("factor", [1.5, 2, 5])
def test_pool_factor(factor: float, tmp_path: Path) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    folder = pylate("bert", tmp_path / "m")
    found = ours(folder, TEXTS, pool_factor=factor)
    pooling = HierarchicalTokenPooling(factor)
    assert_same(found, reference(folder, TEXTS, query=False, token_pooling=pooling))
    assert len(found[5]) < len(ours(folder, TEXTS)[5]) / factor + 2
    assert_same(ours(folder, TEXTS, query=True, pool_factor=factor), ours(folder, TEXTS, query=True))


def test_bfloat16(tmp_path: Path) -> None:
    folder = pylate("bert", tmp_path / "m")
    expected = np.concatenate(reference(folder, TEXTS, query=False))
    found = np.concatenate(ours(folder, TEXTS, dtype="bfloat16"))
    assert (found * expected).sum(axis=1).min() >= 0.995  # random weights are harsher than trained ones


def test_tokens_that_are_all_skipped(tmp_path: Path) -> None:
    folder = pylate("bert", tmp_path / "m")
    encoder = open_encoder(find_model(str(folder)), dtype="float32", device="cpu", threads=1)
    comma = tokenizer(("[Q] ", "[D] ")).convert_tokens_to_ids(",")
    found = families.outputs(encoder, [[comma, comma], [], [0, 20, 2]])["multivector"]
    assert isinstance(found, Multivector)
    assert np.diff(found.offsets).tolist() == [0, 0, 3]


def test_missing_projection_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = stanford("bert", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("linear.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no tensor linear\.weight, the projection of ColBERT"):
        find_model(str(folder))
