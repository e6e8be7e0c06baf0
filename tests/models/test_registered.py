"""A user's own names for folders, and models carried in one file: whole, checked, or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedctl.errors import ModelError, UsageError
from embedctl.models import registered
from embedctl.models.bundle import MANIFEST, pack, unpack
from embedctl.models.load import find_model

STATIC = "static_model"


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A real model of 7 MB, in a folder of its own."""
    import static_model

    shutil.copytree(Path(static_model.__path__[0]) / "model", tmp_path / "ours")
    return tmp_path / "ours"


def test_a_name_stands_for_its_folder(folder: Path) -> None:
    registered.add("ours", folder)
    assert find_model("ours", offline=True).root == folder
    assert registered.registered() == {"ours": folder}
    assert registered.remove("ours") == folder
    with pytest.raises(ModelError, match="neither a folder nor a known model"):
        find_model("ours", offline=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", "fake", "all-MiniLM-L6-v2", "minilm", "-x"])
def test_what_cannot_be_a_name(name: str, folder: Path) -> None:
    with pytest.raises(UsageError):
        registered.add(name, folder)
    assert registered.registered() == {}


def test_a_name_changes_its_folder_only_when_told(folder: Path, tmp_path: Path) -> None:
    registered.add("ours", folder)
    registered.add("ours", folder)
    with pytest.raises(UsageError, match="already means") as caught:
        registered.add("ours", tmp_path)
    assert caught.value.hint == "--force gives the name to the new folder"
    registered.add("ours", tmp_path, replace=True)
    assert registered.registered() == {"ours": tmp_path}


def test_a_folder_that_went_away_is_told(folder: Path) -> None:
    registered.add("ours", folder)
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match="which is gone") as caught:
        find_model("ours", offline=True)
    assert caught.value.hint == "embedctl models remove ours"


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 9, "models": {}}', "\x00"])
def test_a_damaged_list_of_names_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "embedctl").mkdir(parents=True)
    (tmp_path / "data" / "embedctl" / "models.json").write_text(content)
    with pytest.raises(ModelError, match=r"models\.json"):
        find_model("ours", offline=True)


def test_a_model_survives_the_way_through_a_bundle(folder: Path, tmp_path: Path) -> None:
    before = find_model(str(folder), offline=True)
    told = pack(before, tmp_path / "a.tar")
    pack(before, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    found, where = unpack(tmp_path / "a.tar", tmp_path / "there")
    assert found == told
    assert find_model(str(where), offline=True).fingerprint() == before.fingerprint()
    assert unpack(tmp_path / "a.tar", tmp_path / "there") == (told, where)
    with pytest.raises(UsageError, match="exists already"):
        pack(before, tmp_path / "a.tar")


def changed(source: Path, target: Path, change: Callable[[str, bytes], Iterator[tuple[str, bytes]]]) -> Path:
    """The bundle with its members changed."""
    import io

    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for entry in old:
            file = old.extractfile(entry)
            assert file is not None
            for name, content in change(entry.name, file.read()):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return target


def _flipped(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, content if name == MANIFEST else content[:-1] + bytes([content[-1] ^ 1])


def _one_left_out(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if not name.endswith("config.json"):
        yield name, content


def _one_more(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, content
    if name == MANIFEST:
        yield "model/extra.py", b"import os"


def _outside(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if name == MANIFEST:
        obj = json.loads(content)
        obj["files"]["../outside"] = [1, "0" * 64]
        content = json.dumps(obj).encode()
    yield name, content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_flipped, "is damaged"),
        (_one_left_out, "is missing"),
        (_one_more, "its list of files does not"),
        (_outside, "outside its folder"),
    ],
)
def test_a_bundle_that_was_changed_leaves_nothing(
    change: Callable[[str, bytes], Iterator[tuple[str, bytes]]], message: str, folder: Path, tmp_path: Path
) -> None:
    pack(find_model(str(folder), offline=True), tmp_path / "a.tar")
    bad = changed(tmp_path / "a.tar", tmp_path / "bad.tar", change)
    with pytest.raises(ModelError, match=message):
        unpack(bad, tmp_path / "there")
    assert not (tmp_path / "there").exists() or not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize("keep", [0, 100, 5000, 1_000_000])
def test_a_bundle_that_was_cut_off_leaves_nothing(keep: int, folder: Path, tmp_path: Path) -> None:
    pack(find_model(str(folder), offline=True), tmp_path / "a.tar")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:keep])
    with pytest.raises(ModelError):
        unpack(tmp_path / "cut.tar", tmp_path / "there")
    assert not (tmp_path / "there").exists() or not list((tmp_path / "there").iterdir())


def test_from_the_command_line(embedctl: Callable[..., subprocess.CompletedProcess[str]], folder: Path) -> None:
    added = embedctl("models", "add", "ours", folder, "--json")
    assert added.returncode == 0, added.stderr
    assert json.loads(added.stdout)["gives"] == ["dense"]
    rows = json.loads(embedctl("models", "--json").stdout)["models"]
    assert [r["name"] for r in rows if r["from"] == str(folder)] == ["ours"]
    assert {"name", "gives", "dim", "max_length", "prompts", "licence", "size_mb", "similarity"} <= set(rows[0])
    assert embedctl("models", "pack", "ours", "--out", "o.tar").returncode == 0
    assert embedctl("models", "unpack", "o.tar", "--to", "site", "--name", "carried").returncode == 0
    (folder.parent / "c.jsonl").write_text('{"text": "a lighthouse keeper"}\n')
    for model in ("ours", "carried"):
        done = embedctl("embed", "c.jsonl", "--model", model, "--to", f"{model}.vectors")
        assert done.returncode == 0, done.stderr
    wrong = embedctl("models", "add", "minilm", folder)
    assert wrong.returncode == 2
    assert "'minilm' already names a known model" in wrong.stderr
    assert embedctl("models", "remove", "nobody").returncode == 2
