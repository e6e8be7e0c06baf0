"""Model folders, whole and broken: what is read from them, and the one line said when something is not understood."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from embedctl.errors import ModelError, UsageError
from embedctl.models.load import find_model
from embedctl.spec import JobSpec
from tests.parity import families


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return families.save_folder("bert", tmp_path / "m", settings={"prompts": {"query": "q: ", "document": ""}})


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (value | changes).items() if v is not ...}))


def refused(folder: Path, message: str, **kwargs: Any) -> str | None:
    with pytest.raises(ModelError, match=message) as caught:
        find_model(str(folder), **kwargs)
    assert "\n" not in str(caught.value)
    return caught.value.hint


def test_prompts(folder: Path) -> None:
    model = find_model(str(folder))
    assert model.prompt(JobSpec()) == ""
    assert model.prompt(JobSpec(prompt_name="query")) == "q: "
    assert model.prompt(JobSpec(prompt="other ")) == "other "
    with pytest.raises(UsageError, match="m has no prompt 'querry'; it has: query, document") as caught:
        model.prompt(JobSpec(prompt_name="querry"))
    assert caught.value.hint == "--prompt-name query"
    edit(folder / "config_sentence_transformers.json", default_prompt_name="query")
    model = find_model(str(folder))
    assert model.prompt(JobSpec()) == "q: "
    assert model.prompt(JobSpec(prompt="")) == ""
    edit(folder / "config_sentence_transformers.json", default_prompt_name="passage")
    refused(folder, r"default_prompt_name 'passage' is not among prompts \(query, document\)")


def test_lengths(folder: Path) -> None:
    assert find_model(str(folder)).max_length(JobSpec()) == 64
    assert find_model(str(folder)).max_length(JobSpec(max_length=80)) == 80
    with pytest.raises(UsageError, match="m has positions for 80 tokens, 81 asked"):
        find_model(str(folder)).max_length(JobSpec(max_length=81))
    edit(folder / "sentence_bert_config.json", max_seq_length=None)
    edit(folder / "tokenizer_config.json", model_max_length=40)
    assert find_model(str(folder)).max_seq_length == 40
    edit(folder / "tokenizer_config.json", model_max_length=10**30)
    assert find_model(str(folder)).max_seq_length == 80
    edit(folder / "sentence_bert_config.json", processing_kwargs={"text": {"max_length": 24}})
    assert find_model(str(folder)).max_seq_length == 24


def test_positions_after_the_padding_token(tmp_path: Path) -> None:
    folder = families.save_folder("roberta", tmp_path / "m", bert_config={"max_seq_length": 80})
    model = find_model(str(folder))
    assert (model.max_positions, model.max_seq_length) == (78, 78)
    assert "asks for 80 tokens but has positions for 78" in model.notes[0]


def test_dim(folder: Path) -> None:
    model = find_model(str(folder))
    assert model.dim(JobSpec()) == 32
    assert model.dim(JobSpec(dim=8)) == 8
    with pytest.raises(UsageError, match="m gives 32 numbers, 33 asked"):
        model.dim(JobSpec(dim=33))
    edit(folder / "config_sentence_transformers.json", truncate_dim=16, similarity_fn_name="dot")
    assert find_model(str(folder)).dim(JobSpec()) == 16
    assert find_model(str(folder)).dim(JobSpec(dim=20)) == 20
    assert find_model(str(folder)).similarity == "dot"


def test_lowercase_and_old_file_names(folder: Path) -> None:
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    edit(folder / "sentence_roberta_config.json", do_lower_case=True)
    assert find_model(str(folder)).lowercase
    assert find_model(str(folder)).max_seq_length == 64


def test_transformer_in_a_folder_of_its_own(tmp_path: Path) -> None:
    old = families.save_folder("bert", tmp_path / "m")
    inner = old / "0_Transformer"
    inner.mkdir()
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
    ):
        (old / name).rename(inner / name)
    listed = json.loads((old / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (old / "modules.json").write_text(json.dumps(listed))
    model = find_model(str(old))
    assert (model.path, model.root, model.max_seq_length) == (inner.resolve(), old.resolve(), 64)


def test_legacy_pooling_flags(folder: Path) -> None:
    families.write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    )
    model = find_model(str(folder))
    assert model.pooling is not None
    assert model.pooling.modes == ("cls", "mean")
    assert model.output_dim == 64
    edit(folder / "1_Pooling" / "config.json", pooling_mode_attention=True)
    refused(folder, "pooling_mode_attention is not understood")
    edit(folder / "1_Pooling" / "config.json", pooling_mode="median")
    refused(folder, "pooling mode 'median' is not one of cls, mean")


def _router(folder: Path, routes: dict[str, list[str]]) -> None:
    for name in ("a", "b"):
        if name in {m for members in routes.values() for m in members}:
            families.save_transformer("bert", folder / name)
    types = {m: "sentence_transformers.base.modules.transformer.Transformer" for ms in routes.values() for m in ms}
    families.write_json(folder / "router_config.json", {"types": types, "structure": routes, "parameters": {}})
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["type"] = "sentence_transformers.base.modules.router.Router"
    (folder / "modules.json").write_text(json.dumps(listed))


def test_router_with_one_way(folder: Path) -> None:
    _router(folder, {"query": ["a"], "document": ["a"]})
    model = find_model(str(folder))
    assert model.path == (folder / "a").resolve()
    assert model.output_dim == 32


def test_router_of_queries_and_documents(folder: Path) -> None:
    _router(folder, {"query": ["a"], "document": ["b"]})
    model = find_model(str(folder))
    assert model.path == (folder / "b").resolve()
    assert model.as_query().path == (folder / "a").resolve()
    assert model.as_query().for_queries


def test_router_without_a_way_for_documents_is_refused(folder: Path) -> None:
    _router(folder, {"left": ["a"], "right": ["b"]})
    refused(folder, "the Router has the routes left, right with different modules")


@pytest.mark.parametrize(
    "kind", ["sentence_transformers.models.WordEmbeddings", "sentence_transformers.models.CNN", "my_code.Pooling"]
)
def test_unknown_module_is_refused_by_name(folder: Path, kind: str) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    listed[1 if "Word" not in kind else 0]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(listed))
    refused(folder, f"module {kind} is not understood")


def test_module_outside_the_folder(folder: Path) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    listed[1]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(listed))
    refused(folder, r"module path '../elsewhere' leads out of the folder")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformer_task": "fill-mask"}, "Pooling is not understood"),
        ({"transformer_task": "translation"}, "transformer_task 'translation' is not understood"),
        ({"modality_config": {"message": {}, "text": {}}}, "chat template"),
        ({"modality_config": {"image": {}}}, "it takes image, not text"),
        (
            {"modality_config": {"text": {"method": "get_text_features", "method_output_name": None}}},
            "'get_text_features' and None, which is not understood",
        ),
    ],
)
def test_other_routes_than_token_embeddings(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "sentence_bert_config.json", **changes)
    refused(folder, message)


def test_rerankers_are_told_apart(folder: Path) -> None:
    edit(folder / "config_sentence_transformers.json", model_type="CrossEncoder")
    assert find_model(str(folder)).kinds == ("score",)


def test_pickle_needs_leave(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    hint = refused(folder, "its only weights are pytorch_model.bin, a pickle")
    assert hint is not None
    assert "--allow-pickle" in hint
    from embedctl.encoders.open import open_encoder

    model = find_model(str(folder), allow_pickle=True)
    encoder = open_encoder(model, dtype="float32", device="cpu", threads=1)
    sequences = families.tokens_of(families.TEXTS)
    families.assert_close(families.encode(encoder, sequences), families.reference(folder, sequences))


def test_code_in_allowed_pickles_is_not_run(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Path}))
    from embedctl.encoders.open import open_encoder

    model = find_model(str(folder), allow_pickle=True)
    with pytest.raises(ModelError, match=r"cannot open it: its pickle is damaged, or holds more than tensors$"):
        open_encoder(model, dtype="float32", device="cpu", threads=1)


def test_custom_code_needs_leave(folder: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModel": "acme/code--modeling.AcmeModel"})
    hint = refused(folder, r"this model runs its own code \(acme/code--modeling.AcmeModel\)")
    assert hint == "read that code, then add --trust-remote-code"
    assert find_model(str(folder), trust_remote_code=True).model_type == "bert"
    edit(folder / "config.json", model_type="nomic_bert")
    assert find_model(str(folder)).model_type == "nomic_bert"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json: missing"),
        ("config.json", "{", "config.json: not valid JSON"),
        ("config.json", "[]", "expected a JSON object, found list"),
        ("config.json", "{}", "no model_type"),
        ("modules.json", "{}", "not a list of modules"),
        ("modules.json", "[]", "not a list of modules"),
        ("model.safetensors", None, r"no weights \(model.safetensors is missing\)"),
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1", "cut short, or not safetensors"),
        ("1_Pooling/config.json", None, "config.json: missing"),
    ],
)
def test_broken_folders(folder: Path, name: str, content: str | None, message: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    refused(folder, message)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_weights_cut_short(folder: Path, keep: int) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:keep])
    refused(folder, "cut short, or not safetensors")


def test_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    families.write_json(
        folder / "model.safetensors.index.json", {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    )
    refused(folder, "model-00001-of-00002.safetensors: missing; model.safetensors.index.json names it")


def test_widths_must_meet(folder: Path) -> None:
    edit(folder / "config.json", hidden_size=48)
    listed = json.loads((folder / "modules.json").read_text())
    listed.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(listed))
    families.write_json(folder / "2_Dense" / "config.json", {"in_features": 32, "out_features": 8})
    (folder / "2_Dense" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    refused(folder, "takes 32 numbers, the module before gives 48")


def test_not_a_model_folder(tmp_path: Path) -> None:
    refused(tmp_path, "neither modules.json nor config.json; this is not a model folder")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sentence_bert_config.json", {"max_seq_length": "many"}),
        ("sentence_bert_config.json", {"processing_kwargs": [1]}),
        ("sentence_bert_config.json", {"modality_config": ["text"]}),
        ("config.json", {"architectures": 5}),
        ("config_sentence_transformers.json", {"truncate_dim": "small"}),
        ("1_Pooling/config.json", {"pooling_mode": 3}),
    ],
)
def test_settings_of_another_type(folder: Path, name: str, changes: dict[str, Any]) -> None:
    edit(folder / name, **changes)
    refused(folder, str(folder))
