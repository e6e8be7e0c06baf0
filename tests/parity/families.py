"""Tiny models of every family, random weights in the real folder layout, and the reference they are held to.

The weights are random because none of these kinds has real ones that may be redistributed; layout, config and code
paths are the real ones. The reference is sentence-transformers in float32, one text at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from embedctl.outputs import Multivector, Sparse, Values, take
from embedctl.records import Batch

VOCAB = 120
CLS, PAD, SEP, UNK = 0, 1, 2, 3
TEXTS = [
    "w5",
    "w6 w7",
    "w8 w9",
    "w10 w11 w12",
    "w90 w4 w90 w4",
    "w13 w14 w15 w16 w17",
    " ".join(f"w{5 + i % 100}" for i in range(30)),
    " ".join(f"w{5 + (i * 7) % 100}" for i in range(45)),
    " ".join(f"w{5 + (i * 3) % 100}" for i in range(45)),
]


def _small(**extra: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 80,
        "pad_token_id": PAD,
        "initializer_range": 0.3,
        **extra,
    }


def _decoder(**extra: Any) -> dict[str, Any]:
    return _small(num_key_value_heads=2, bos_token_id=CLS, eos_token_id=SEP, **extra)


T = transformers
FAMILIES: dict[str, Callable[[], Any]] = {
    "bert": lambda: T.BertConfig(**_small()),
    "roberta": lambda: T.RobertaConfig(**_small()),
    "xlm-roberta": lambda: T.XLMRobertaConfig(**_small()),
    "xlm-roberta-xl": lambda: T.XLMRobertaXLConfig(**_small()),
    "camembert": lambda: T.CamembertConfig(**_small()),
    "electra": lambda: T.ElectraConfig(**_small(embedding_size=24)),
    "distilbert": lambda: T.DistilBertConfig(
        vocab_size=VOCAB,
        dim=32,
        n_layers=3,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=80,
        pad_token_id=PAD,
        initializer_range=0.3,
    ),
    "albert": lambda: T.AlbertConfig(**_small(embedding_size=16)),
    "nomic_bert": lambda: T.NomicBertConfig(**_small()),
    "gte": lambda: T.GteConfig(**_small()),
    "eurobert": lambda: T.EuroBertConfig(**_decoder()),
    "jina_embeddings_v3": lambda: T.JinaEmbeddingsV3Config(**_small()),
    "clip_text_model": lambda: T.CLIPTextConfig(**_small(bos_token_id=CLS, eos_token_id=SEP, projection_dim=32)),
    "modernbert": lambda: T.ModernBertConfig(
        **_small(
            local_attention=16,
            global_attn_every_n_layers=3,
            bos_token_id=CLS,
            eos_token_id=SEP,
            cls_token_id=CLS,
            sep_token_id=SEP,
        )
    ),
    "qwen2": lambda: T.Qwen2Config(**_decoder()),
    "qwen2-window": lambda: T.Qwen2Config(**_decoder(use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "qwen2-bidirectional": lambda: T.Qwen2Config(**_decoder(is_causal=False)),
    "qwen3": lambda: T.Qwen3Config(**_decoder(head_dim=8)),
    "llama": lambda: T.LlamaConfig(**_decoder()),
    "mistral": lambda: T.MistralConfig(**_decoder(sliding_window=None)),
    "mistral-window": lambda: T.MistralConfig(**_decoder(sliding_window=8)),
    "gemma3": lambda: T.Gemma3TextConfig(
        **_decoder(
            head_dim=8,
            sliding_window=16,
            query_pre_attn_scalar=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "gemma3-bidirectional": lambda: T.Gemma3TextConfig(
        **_decoder(
            head_dim=8,
            sliding_window=16,
            query_pre_attn_scalar=8,
            use_bidirectional_attention=True,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "mpnet": lambda: T.MPNetConfig(**_small()),
    "deberta-v2": lambda: T.DebertaV2Config(
        **_small(
            relative_attention=True,
            position_buckets=16,
            pos_att_type=["p2c", "c2p"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        )
    ),
    "deberta-v2-conv": lambda: T.DebertaV2Config(
        **_small(relative_attention=True, conv_kernel_size=3, pos_att_type=["p2c", "c2p"])
    ),
    "t5": lambda: T.T5Config(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=3,
        num_heads=4,
        pad_token_id=PAD,
        eos_token_id=SEP,
        decoder_start_token_id=PAD,
    ),
    "ernie": lambda: T.ErnieConfig(**_small()),
    "convbert": lambda: T.ConvBertConfig(**_small(embedding_size=32, head_ratio=2)),
    "gemma2": lambda: T.Gemma2Config(**_decoder(head_dim=8, sliding_window=8, query_pre_attn_scalar=8)),
    "lfm2": lambda: T.Lfm2Config(**_decoder(layer_types=["conv", "full_attention", "conv"])),
    "nystromformer": lambda: T.NystromformerConfig(**_small(num_landmarks=4, segment_means_seq_len=4)),
    "stablelm": lambda: T.StableLmConfig(**_decoder()),
    "roformer": lambda: T.RoFormerConfig(**_small(embedding_size=32)),
    "phi3": lambda: T.Phi3Config(**_decoder()),
    "gpt2": lambda: T.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=80, pad_token_id=PAD, initializer_range=0.3
    ),
}
PACKED = frozenset(FAMILIES) - {
    "clip_text_model",
    "gemma2",
    "lfm2",
    "nystromformer",
    "stablelm",
    "mpnet",
    "deberta-v2",
    "deberta-v2-conv",
    "t5",
    "convbert",
    "roformer",
}


def tiny_tokenizer() -> Tokenizer:
    """Whole words `w4` to `w119`, between a start and an end token; the padding token is 1, as in RoBERTa."""
    vocab = {"<s>": CLS, "<pad>": PAD, "</s>": SEP, "<unk>": UNK, **{f"w{i}": i for i in range(4, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", CLS), ("</s>", SEP)]
    )
    return tokenizer


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def save_transformer(family: str, folder: Path) -> None:
    """config.json, model.safetensors and tokenizer of one family, seeded."""
    torch.manual_seed(7)
    config = FAMILIES[family]()
    auto = transformers.AutoModelForTextEncoding if config.is_encoder_decoder else transformers.AutoModel
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", model_max_length=64,
    )  # fmt: skip
    fast.save_pretrained(folder)


def save_folder(
    family: str,
    folder: Path,
    *,
    modes: tuple[str, ...] = ("mean",),
    include_prompt: bool = True,
    normalize: bool = True,
    dense: tuple[Any, ...] = (),
    settings: dict[str, Any] | None = None,
    bert_config: dict[str, Any] | None = None,
) -> Path:
    """A whole sentence-transformers folder. `dense`: modules of theirs, each with `save`, put after the pooling."""
    save_transformer(family, folder)
    names = ["Transformer", "Pooling", *(type(d).__name__ for d in dense), *(["Normalize"] if normalize else [])]
    paths = ["", *(f"{i}_{n}" for i, n in enumerate(names[1:], 1))]
    listed = [
        {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{n}"}
        for i, (n, p) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder / "modules.json", listed)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False, **(bert_config or {})}
    )
    write_json(folder / "config_sentence_transformers.json", settings or {})
    pooling = {"embedding_dimension": 32, "pooling_mode": list(modes), "include_prompt": include_prompt}
    write_json(folder / paths[1] / "config.json", pooling)
    for module, path in zip(dense, paths[2:], strict=False):
        (folder / path).mkdir()
        module.save(str(folder / path))
    return folder


def tokens_of(texts: list[str], prompt: str = "", max_length: int = 64) -> list[list[int]]:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(max_length)
    return [tokenizer.encode(prompt + text).ids for text in texts]


def packed(sequences: list[list[int]]) -> tuple[Batch, np.ndarray]:
    """(one batch of all, sorted by length; where each sequence went)."""
    order = np.argsort([len(s) for s in sequences], kind="stable")
    lengths = [len(sequences[i]) for i in order]
    batch = Batch(
        input_ids_T=np.array([t for i in order for t in sequences[i]], dtype=np.int32),
        cu_seqlens=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        units=order.astype(np.int64),
    )
    return batch, np.argsort(order)


def outputs(encoder: Any, sequences: list[list[int]], *, float32: bool = False) -> dict[str, Values]:
    """Every output in the order of `sequences`, all in one batch. float32: by the second chance."""
    batch, place = packed(sequences)
    found = encoder.encode_float32(batch) if float32 else encoder.encode(batch)
    return {kind: take(values, place) for kind, values in found.items()}


def encode(encoder: Any, sequences: list[list[int]], *, float32: bool = False) -> np.ndarray:
    """The dense vectors of `outputs`."""
    vectors = outputs(encoder, sequences, float32=float32)["dense"]
    assert isinstance(vectors, np.ndarray)
    return vectors


def full(values: Values, size: int) -> np.ndarray:
    """Sparse vectors as float32 (n, size), their indices ascending and each once."""
    assert isinstance(values, Sparse)
    whole = np.zeros((len(values), size), dtype=np.float32)
    for i, (begin, end) in enumerate(zip(values.offsets[:-1], values.offsets[1:], strict=True)):
        indices = values.indices[begin:end]
        assert (np.diff(indices.astype(np.int64)) > 0).all()
        whole[i, indices] = values.values[begin:end]
    return whole


def lists(values: Values) -> list[np.ndarray]:
    """Multivectors as a list of float32 (t, C)."""
    assert isinstance(values, Multivector)
    return [values.vectors[b:e] for b, e in zip(values.offsets[:-1], values.offsets[1:], strict=True)]


def one_by_one(encoder: Any, sequences: list[list[int]]) -> np.ndarray:
    return np.concatenate([encode(encoder, [s]) for s in sequences])


def reference(
    folder: Path, sequences: list[list[int]], *, prompt_length: int | None = None, dim: int | None = None
) -> np.ndarray:
    """sentence-transformers in float32 on the same token ids, one sequence at a time."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).eval()
    vectors = []
    for ids in sequences:
        features: dict[str, Any] = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones((1, len(ids)), dtype=torch.long),
        }
        if prompt_length is not None:
            features["prompt_length"] = prompt_length
        with torch.inference_mode():
            vectors.append(model(features)["sentence_embedding"][0, :dim].float().numpy())
    return np.stack(vectors)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The bars of float32: cosine >= 1 - 1e-6 a row, and no number further off than 1e-5 of the vector's length."""
    norms = np.linalg.norm(ours.astype(np.float64), axis=1) * np.linalg.norm(theirs.astype(np.float64), axis=1)
    cosine = (ours.astype(np.float64) * theirs).sum(axis=1) / norms
    scale = np.maximum(np.linalg.norm(theirs, axis=1, keepdims=True), 1.0)
    assert cosine.min() >= 1 - 1e-6, f"cosine {cosine.min()}"
    assert (np.abs(ours - theirs) / scale).max() <= 1e-5
