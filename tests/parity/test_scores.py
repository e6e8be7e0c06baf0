"""Rerankers and classifiers of every family against CrossEncoder and transformers' pipeline: float32, one by one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")

from embedctl.encoders import native
from embedctl.errors import ModelError
from embedctl.models.load import find_model
from embedctl.models.score_format import read_scorer
from tests.parity.scorers import (
    CLASSIFIERS,
    PAIRS,
    PASSAGES,
    cross_encoder,
    edit_json,
    ours,
    pipeline,
    save_classifier,
    save_decoder,
    save_logit_score,
    save_modules,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:sentence_transformers.*", "ignore::UserWarning:transformers.*"
)
SOME = PAIRS[::5] + PAIRS[-2:]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.ptp(expected) > 1e-3, "a test of constants shows nothing"
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_each_family_scores_pairs_as_cross_encoder_does(family: str, tmp_path: Path) -> None:
    folder = save_classifier(family, tmp_path / family)
    close(ours(folder, PAIRS), cross_encoder(folder, PAIRS))


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2", "modernbert", "distilbert"])
@pytest.mark.parametrize("problem", [None, "multi_label_classification", "regression"])
def test_each_problem_is_classified_as_the_pipeline_does(family: str, problem: str | None, tmp_path: Path) -> None:
    folder = save_classifier(family, tmp_path / family, labels=3, names=["sad", "glad", "mad"], problem_type=problem)
    names, expected = pipeline(folder, PASSAGES)
    found = read_scorer(folder, "x")
    assert list(found.labels) == names == ["sad", "glad", "mad"]
    assert found.scorer is not None
    assert found.scorer.multi_label == (problem == "multi_label_classification")
    close(ours(folder, PASSAGES, task="classify"), expected)


def test_pairs_are_classified_as_the_pipeline_does(tmp_path: Path) -> None:
    folder = save_classifier("bert", tmp_path / "nli", labels=3)
    _, expected = pipeline(folder, SOME)
    close(ours(folder, SOME, task="classify"), expected)


def test_several_labels_leave_rerank_as_raw_scores(tmp_path: Path) -> None:
    folder = save_classifier("bert", tmp_path / "nli", labels=3)
    close(ours(folder, SOME), cross_encoder(folder, SOME))


@pytest.mark.parametrize(
    ("where", "activation"),
    [
        ("config.json", "torch.nn.modules.linear.Identity"),
        ("config.json", "torch.nn.Tanh"),
        ("old", "torch.nn.modules.activation.Sigmoid"),
        ("old", "torch.nn.modules.linear.Identity"),
    ],
)
def test_the_saved_activation_is_obeyed(where: str, activation: str, tmp_path: Path) -> None:
    folder = save_classifier("bert", tmp_path / "m")
    key = {"config.json": "sentence_transformers", "old": "sbert_ce_default_activation_function"}[where]
    edit_json(folder / "config.json", **{key: {"activation_fn": activation} if where == "config.json" else activation})
    close(ours(folder, SOME), cross_encoder(folder, SOME))


def test_an_activation_that_is_not_torchs_is_refused(tmp_path: Path) -> None:
    folder = save_classifier("bert", tmp_path / "m")
    edit_json(folder / "config.json", sentence_transformers={"activation_fn": "mine.Special"})
    with pytest.raises(ModelError, match=r"its activation 'mine\.Special' is not one of torch\.nn"):
        read_scorer(folder, "m")


def test_a_saved_cross_encoder_with_prompts(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    plain = save_classifier("bert", tmp_path / "plain")
    model = CrossEncoder(str(plain), device="cpu", prompts={"q": "what is "}, default_prompt_name="q", max_length=30)
    model.save_pretrained(str(tmp_path / "saved"))
    found = read_scorer(tmp_path / "saved", "saved")
    assert (found.max_seq_length, found.default_prompt_name) == (30, "q")
    close(ours(tmp_path / "saved", PAIRS), cross_encoder(tmp_path / "saved", PAIRS))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "gemma2"])
def test_bare_decoders_answer_yes_or_no(family: str, tmp_path: Path) -> None:
    folder = save_decoder(family, tmp_path / family)
    close(ours(folder, SOME), cross_encoder(folder, SOME))
    prompted: dict[str, Any] = {"prompts": {"p": "the lazy dog"}, "default_prompt_name": "p"}
    close(ours(folder, SOME, prompt="the lazy dog"), cross_encoder(folder, SOME, **prompted))


@pytest.mark.parametrize("false_id", [True, False])
@pytest.mark.parametrize("template", [True, False])
def test_saved_logit_scores(false_id: bool, template: bool, tmp_path: Path) -> None:
    folder = save_logit_score(tmp_path / "m", false_id=false_id, template=template)
    close(ours(folder, SOME), cross_encoder(folder, SOME))


def test_qwen3_reranker_without_a_template_gets_its_authors_own(tmp_path: Path) -> None:
    folder = save_decoder("qwen3", tmp_path / "qwen3", template=None)
    scorer = read_scorer(folder, "qwen3").scorer
    assert scorer is not None
    assert scorer.chat is not None
    from embedctl.tokens.pairs import load_chat_tokenizer

    tokenizer = load_chat_tokenizer(folder, max_length=4096, template=scorer.chat.template)
    shown = tokenizer._rendered([f"1,2\n{'q'}{'dd'}"])[0]
    assert shown == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: q\n<Document>: dd<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_pooling_and_dense_that_give_scores(tmp_path: Path) -> None:
    folder = save_modules(tmp_path / "m")
    close(ours(folder, SOME), cross_encoder(folder, SOME))


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_the_fused_kernels_give_the_plain_ones_scores(family: str, tmp_path: Path) -> None:
    if native.load()[0] is None:
        pytest.skip("no kernels for this processor")
    folder = save_classifier(family, tmp_path / family)
    close(ours(folder, PAIRS), ours(folder, PAIRS, compile=False))


@pytest.mark.parametrize("family", ["bert", "modernbert-mean", "qwen3", "deberta-v2"])
def test_neighbours_do_not_matter(family: str, tmp_path: Path) -> None:
    folder = save_classifier(family, tmp_path / family)
    whole = ours(folder, PAIRS)
    np.testing.assert_allclose(ours(folder, PAIRS, budget=1), whole, atol=1e-5, rtol=0)
    np.testing.assert_allclose(ours(folder, PAIRS[::-1], budget=200)[::-1], whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "qwen3"])
def test_bfloat16_is_near(family: str, tmp_path: Path) -> None:
    folder = save_classifier(family, tmp_path / family)
    assert np.abs(ours(folder, PAIRS, dtype="bfloat16") - cross_encoder(folder, PAIRS)).max() < 0.1


def test_a_text_that_ends_in_padding_is_scored_at_its_last_real_token(tmp_path: Path) -> None:
    """Decoders' tokenizers may end every text with the token that also pads."""
    import torch

    from embedctl.encoders.scores import load_whole, open_scorer
    from embedctl.records import Batch

    found = read_scorer(save_classifier("qwen2", tmp_path / "qwen2"), "qwen2")
    whole = load_whole(found, dtype="float32", device="cpu", attention=None)
    pad = whole.config.pad_token_id
    sequences = [[7, 9, pad], [7, 9, 11], [pad, 8, pad, pad], [5, pad, 6, 8]]
    ids, ends = np.concatenate(sequences), np.cumsum([0, *map(len, sequences)])
    batch = Batch(input_ids_T=ids.astype(np.int32), cu_seqlens=ends.astype(np.int32), units=np.arange(4))
    encoder = open_scorer(found, activation_name="none", dtype="float32", device="cpu", threads=1)
    with torch.inference_mode():
        expected = np.concatenate([whole(input_ids=torch.tensor([s])).logits.numpy() for s in sequences])
    close(np.asarray(encoder.encode(batch)["score"]), expected)


def test_what_is_not_a_reranker_is_refused_by_name(tmp_path: Path) -> None:
    folder = save_classifier("bert", tmp_path / "bert")
    edit_json(folder / "config.json", architectures=["BertModel"])
    with pytest.raises(ModelError, match="BertModel has no head that scores texts"):
        find_model(str(folder), scorer=True)
    minilm = find_model("all-MiniLM-L6-v2").root
    with pytest.raises(ModelError, match="an embedder, whose modules give no scores"):
        find_model(str(minilm), scorer=True)


def test_a_head_without_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_classifier("bert", tmp_path / "bert")
    for lost in ("classifier.weight", "bert.pooler.dense.weight"):
        shutil.copytree(folder, tmp_path / lost)
        tensors = load_file(folder / "model.safetensors")
        del tensors[lost]
        save_file(tensors, tmp_path / lost / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=rf"1 tensors are missing from its weights \(first: {lost}\)"):
            ours(tmp_path / lost, SOME)


def test_a_decoder_whose_template_knows_no_pair_is_refused(tmp_path: Path) -> None:
    folder = save_decoder("qwen2", tmp_path / "qwen2", template="{{ messages[0].content }}")
    with pytest.raises(ModelError, match="chat template does not know a query and a document"):
        read_scorer(folder, "qwen2")
