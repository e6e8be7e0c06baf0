"""Tiny rerankers and classifiers of every family, random weights in the real folder layouts, and what they are held to.

The weights are random because no real ones of these kinds may be redistributed; layout, config, code paths are the
real ones. The reference is sentence-transformers' CrossEncoder or transformers' pipeline, in float32, a text at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from embedctl import pairs
from embedctl.encoders.scores import open_scorer
from embedctl.models.score_format import read_scorer
from embedctl.tokens.pack import make_batches
from embedctl.tokens.pairs import load_chat_tokenizer, load_pair_tokenizer
from embedctl.tokens.tokenize import load_tokenizer
from tests.parity.families import FAMILIES

_PROSE = "the of a cat sat on mat what is good bad fox ran over lazy dog yes no query doc find here there 1 2 3 4 0"
WORDS = _PROSE.split()
QUERIES = ["what is a cat", "find the lazy dog", "good", "fox ran over there 1 2 3", "the " * 40]
PASSAGES = [
    "the cat sat on the mat",
    "a fox ran over the lazy dog",
    "bad",
    "here there query doc " * 14,
    "no no yes",
    "what is good is bad 4",
]
PAIRS = [(q, p) for q in QUERIES for p in PASSAGES]
MAX_LENGTH = 64
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}find {{ m.content }} {% elif m.role == 'query' %}query "
    "{{ m.content }} {% elif m.role == 'document' %}doc {{ m.content }} {% endif %}{% endfor %}is good yes no is here"
)


def tokenizer_of(kind: str) -> Any:
    """A fast tokenizer of one layout: bert (token types), roberta (two end tokens between), or decoder (no frame)."""
    if kind == "decoder":
        return _byte_level()
    special = {"bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "roberta": ["<s>", "<pad>", "</s>", "<unk>"]}[kind]
    vocab = {token: i for i, token in enumerate([*special, *WORDS])}
    unknown, pad = ("[UNK]", "[PAD]") if kind == "bert" else ("<unk>", "<pad>")
    rust = Tokenizer(models.WordLevel(vocab, unk_token=unknown))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "bert":
        rust.normalizer = normalizers.BertNormalizer(lowercase=True)
        rust.decoder = decoders.WordPiece()
        rust.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=rust, cls_token="[CLS]", sep_token="[SEP]", pad_token=pad, unk_token=unknown,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"], model_max_length=MAX_LENGTH,
        )  # fmt: skip
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", pad_token=pad,
        unk_token=unknown, model_input_names=["input_ids", "attention_mask"], model_max_length=MAX_LENGTH,
    )  # fmt: skip


def _byte_level() -> Any:
    """Qwen's own tokenizer class over merges learnt from the few words."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator([text for word in WORDS for text in (word, f" {word}") for _ in range(5)], trainer)
    model = json.loads(rust.to_str())["model"]
    return transformers.Qwen2Tokenizer(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], model_max_length=MAX_LENGTH,
        pad_token="<|endoftext|>",
    )  # fmt: skip


KINDS = {
    "bert": "bert",
    "electra": "bert",
    "albert": "bert",
    "deberta-v2": "bert",
    "ernie": "bert",
    "nomic_bert": "bert",
}
DECODERS = {"qwen2", "qwen3", "llama", "mistral", "gemma3", "gpt2"}
CLASSIFIERS = [
    "bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert", "deberta-v2", "modernbert",
    "modernbert-mean", "mpnet", "ernie", "gte", "qwen2", "qwen3", "llama", "mistral", "gemma3", "gpt2",
]  # fmt: skip
"""Families whose ForSequenceClassification transformers has."""


def config_of(family: str, **extra: Any) -> Any:
    name = family.removesuffix("-mean")
    config = FAMILIES[name]()
    if family == "modernbert-mean":
        config.classifier_pooling = "mean"
    if name in ("bert", "electra", "albert", "ernie"):
        config.type_vocab_size = 2
    for key, value in extra.items():
        setattr(config, key, value)
    return config


def kind_of(family: str) -> str:
    return "decoder" if family in DECODERS else KINDS.get(family, "roberta")


def save_classifier(
    family: str, folder: Path, *, labels: int = 1, names: list[str] | None = None, **extra: Any
) -> Path:
    """A plain transformers folder with a classification head."""
    torch.manual_seed(11)
    tokenizer = tokenizer_of(kind_of(family))
    config = config_of(family, **extra)
    config.vocab_size, config.pad_token_id = max(len(tokenizer), config.vocab_size), tokenizer.pad_token_id
    config.num_labels = labels
    if names:
        config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    shake(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_decoder(family: str, folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """A plain causal model that knows the words yes and no."""
    torch.manual_seed(12)
    tokenizer = tokenizer_of("decoder")
    config = config_of(family)
    config.vocab_size, config.pad_token_id = max(len(tokenizer), config.vocab_size), tokenizer.pad_token_id
    model = transformers.AutoModelForCausalLM.from_config(config)
    shake(model)
    model.save_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def shake(model: Any) -> None:
    """Biases and norms are 0 and 1 when new, which hides what leaves them out."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **changes}))


def ours(
    folder: Path, texts: list[Any], *, task: str = "rerank", asked: str | None = None, dtype: str = "float32",
    prompt: str | None = None, budget: int = 4096, max_length: int | None = None, compile: bool | None = None,
) -> np.ndarray:  # fmt: skip
    """float32 (n, labels), as a job would compute them."""
    found = read_scorer(folder, folder.name)
    scorer = found.scorer
    assert scorer is not None
    length = max_length or found.max_seq_length
    said = prompt if prompt is not None else found.prompts.get(found.default_prompt_name or "", "")
    if isinstance(texts[0], str):
        tokenizer: Any = load_tokenizer(folder, max_length=length, prompt=said)
    elif scorer.chat is not None:
        tokenizer = load_chat_tokenizer(
            folder, max_length=length, prompt=said, template=scorer.chat.template, structured=scorer.chat.structured,
            options=scorer.chat.options,
        )  # fmt: skip
    else:
        tokenizer = load_pair_tokenizer(folder, max_length=length, prompt=said)
    encoder = open_scorer(
        found, activation_name=scorer.activation_for(task, len(found.labels), asked), dtype=dtype, device="cpu",
        threads=1, compile=compile,
    )  # fmt: skip
    texts = [text if isinstance(text, str) else pairs.joined(text) for text in texts]
    scores = np.zeros((len(texts), encoder.dims["score"]), dtype=np.float32)
    for batch in make_batches(tokenizer(texts), budget, padded=encoder.padded):
        scores[batch.units] = encoder.encode(batch)["score"]
    encoder.close()
    return scores


def cross_encoder(folder: Path, texts: list[Any], **options: Any) -> np.ndarray:
    """The reference, one pair at a time, (n, labels)."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", local_files_only=True, **options)
    return np.stack([np.atleast_1d(model.predict([list(text)], show_progress_bar=False)[0]) for text in texts])


def pipeline(folder: Path, texts: list[Any]) -> tuple[list[str], np.ndarray]:
    """(labels in order, scores (n, labels)) of transformers' own pipeline."""
    run = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    names = [run.model.config.id2label[i] for i in range(run.model.config.num_labels)]
    rows = []
    for text in texts:
        asked = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        found = run([asked], top_k=None, truncation=True, max_length=MAX_LENGTH)[0]
        rows.append([next(f["score"] for f in found if f["label"] == name) for name in names])
    return names, np.array(rows)


def save_logit_score(folder: Path, *, false_id: bool, template: bool) -> Path:
    """A decoder reranker as CrossEncoder saves it: modules.json with LogitScore."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    plain = save_decoder("qwen3", folder.parent / "plain", template=TEMPLATE if template else None)
    transformer = Transformer(str(plain), transformer_task="text-generation")
    words = transformer.tokenizer.convert_tokens_to_ids(["yes", "no"])
    score = LogitScore(true_token_id=words[0], false_token_id=words[1] if false_id else None)
    CrossEncoder(modules=[transformer, score], device="cpu").save_pretrained(str(folder))
    return folder


def save_modules(folder: Path) -> Path:
    """An encoder whose scores come from pooling and a dense layer of sentence-transformers."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(5)
    plain = save_classifier("modernbert", folder.parent / "plain")
    transformer = Transformer(str(plain))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    dense = Dense(32, 1, activation_function=None, module_output_name="scores")
    CrossEncoder(modules=[transformer, pooling, dense], device="cpu").save_pretrained(str(folder))
    return folder
