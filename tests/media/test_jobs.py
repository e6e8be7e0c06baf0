"""Jobs over pictures and sounds through the command: bad rows die alone; resume, sync, retry, verify, search hold."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import assert_same_after_resume, parts, run
from tests.conftest import Told
from tests.media.samples import PICTURES, SOUNDS, bomb, picture, sound

_GOOD = picture(1)
_WAV = sound(1)
BAD_PICTURES: dict[str, tuple[Any, str]] = {
    "null": (None, "the picture is null"),
    "both null": ({"bytes": None, "path": None}, "the picture is null"),
    "empty": ({"bytes": b"", "path": "x.png"}, "the picture is empty (0 bytes)"),
    "cut": ({"bytes": _GOOD[: len(_GOOD) // 2], "path": None}, "the picture (PNG, 70 x 50) cannot be decoded"),
    "cut jpeg": (
        {"bytes": picture(2, format="JPEG")[:900], "path": None}, "the picture (JPEG, 70 x 50) cannot be decoded",
    ),
    "header only": ({"bytes": _GOOD[:20], "path": None}, "picture"),
    "text": ({"bytes": b"<html>no</html>", "path": None}, "not a picture (15 bytes that begin with b'<html>no')"),
    "vector": ({"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "path": None}, "not a picture"),
    "bomb": ({"bytes": bomb(), "path": None}, "the picture has more than 89,478,485 pixels"),
    "thread": ({"bytes": picture(3, 1, 900), "path": None}, "the picture is 1 x 900: one side is more than 200 times"),
    "no file": ({"bytes": None, "path": "gone.png"}, "gone.png: cannot be read: No such file or directory"),
    "folder": ({"bytes": None, "path": "."}, ".: not a regular file"),
    "url": ({"bytes": None, "path": "https://example.org/a.png"}, "https://example.org/a.png: a URL"),
}  # fmt: skip


def rows_of(destination: Path) -> dict[str, Any]:
    return {row["id"]: row for row in ds.dataset(destination).to_table().to_pylist()}


def letters_of(told: Told, destination: Path) -> dict[str, str]:
    _, shown, _ = told("status", destination, "--dead", "--json")
    return {letter["id"]: letter["reason"] for letter in json.loads(shown)["dead_letters"]}


def write_pictures(path: Path) -> Path:
    """Good pictures, one of them by its path, with bad ones between them."""
    good = [{"id": name, "image": {"bytes": content, "path": None}} for name, content in PICTURES.items()]
    bad = [{"id": name, "image": cell} for name, (cell, _) in BAD_PICTURES.items()]
    rows = [row for pair in zip(good, bad, strict=False) for row in pair] + good[len(bad) :]
    (path.parent / "by path.png").write_bytes(_GOOD)
    rows.append({"id": "by path", "image": {"bytes": None, "path": "by path.png"}})
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    return path


def test_bad_pictures_die_alone(told: Told, clip_model: Path, tmp_path: Path) -> None:
    corpus, out, alone = write_pictures(tmp_path / "in.parquet"), tmp_path / "out", tmp_path / "alone"
    code, shown, _ = told("embed", corpus, "--image-column", "image", "--model", clip_model, "--to", out, "--json",
                          "-q", "--token-count", "--dtype", "float32")  # fmt: skip
    summary = json.loads(shown)
    assert code == summary["exit_code"] == 3
    assert (summary["rows"]["written"], summary["rows"]["dead"]) == (len(PICTURES) + 1, len(BAD_PICTURES))
    assert summary["tokens"] == 17 * (len(PICTURES) + 1)
    letters = letters_of(told, out)
    assert letters.keys() == BAD_PICTURES.keys()
    for name, (_, reason) in BAD_PICTURES.items():
        assert reason in letters[name]
    found = rows_of(out)
    assert found["by path"]["embedding"] == found["png"]["embedding"]
    assert found["png"]["token_count"] == 17
    good = [{"id": name, "image": content} for name, content in PICTURES.items()]
    pq.write_table(pa.Table.from_pylist(good), tmp_path / "good.parquet")
    assert told("embed", "good.parquet", "--image-column", "image", "--model", clip_model, "--to", alone, "-q",
                "--dtype", "float32")[0] == 0  # fmt: skip
    for name, row in rows_of(alone).items():
        np.testing.assert_allclose(row["embedding"], found[name]["embedding"], atol=1e-5)
    code, shown, _ = told("verify", out)
    assert code == 0, shown


def test_bad_sounds_die_alone(told: Told, clap_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bad = {
        "null": (None, "the sound is null"), "empty": (b"", "the sound is empty (0 bytes)"),
        "cut": (_WAV[:4000], "the sound is cut short"), "text": (b"no sound at all", "not a sound (15 bytes"),
        "cut flac": (sound(2, format="FLAC")[:3000], "the sound"),
        "silent": (sound(1, 0.0), "the sound has no samples"),
    }  # fmt: skip
    rows = [{"id": n, "audio": c} for n, c in SOUNDS.items()] + [{"id": n, "audio": c} for n, (c, _) in bad.items()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    code, shown, _ = told("embed", "in.parquet", "--audio-column", "audio", "--model", clap_model, "--to", out,
                          "--json", "-q", "--truncated")  # fmt: skip
    summary = json.loads(shown)
    assert (code, summary["rows"]["written"], summary["truncated"]) == (3, len(SOUNDS), 1)
    assert rows_of(out)["long"]["truncated"]
    letters = letters_of(told, out)
    assert letters.keys() == bad.keys()
    for name, (_, reason) in bad.items():
        assert reason in letters[name]
    code, shown, _ = told("search", out, "w1 w2 w3", "-k", "3", "--json")
    assert code == 0
    assert len(json.loads(shown)["queries"][0]["hits"]) == 3
    assert told("verify", out)[0] == 0


def test_too_long_a_sound_may_be_refused(told: Told, clap_model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "s": [SOUNDS["long"], SOUNDS["wav"]]}), tmp_path / "in.parquet")
    code, _, _ = told("embed", "in.parquet", "--audio-column", "s", "--model", clap_model, "--to", "out", "-q",
                      "--on-overlong", "dead-letter")  # fmt: skip
    assert code == 3
    assert letters_of(told, Path("out")).keys() == {"a"}


def test_every_way_to_hold_a_picture_gives_the_same(told: Told, clip_model: Path, tmp_path: Path) -> None:
    """Bytes, structs, paths relative and absolute, data: URIs, files that are rows; Parquet, Arrow, JSONL, CSV."""
    folder = tmp_path / "corpus"
    (folder / "pictures").mkdir(parents=True)
    names = ["png", "jpeg", "turned"]
    for name in names:
        (folder / "pictures" / name).with_suffix(".jpg").write_bytes(PICTURES[name])
    contents = [PICTURES[name] for name in names]
    relative = [f"pictures/{name}.jpg" for name in names]
    absolute = [str(folder / path) for path in relative]
    uris = ["data:image/png;base64," + base64.b64encode(c).decode() for c in contents]
    structs = [{"bytes": c, "path": "x"} for c in contents]
    pq.write_table(pa.table({"id": names, "image": contents}), folder / "bytes.parquet")
    pq.write_table(pa.table({"id": names, "image": structs}), folder / "structs.parquet")
    large = pa.table({"id": names, "image": pa.array(contents, pa.large_binary())})
    with pa.ipc.new_file(str(folder / "large.arrow"), large.schema) as writer:
        writer.write_table(large)
    (folder / "paths.csv").write_text(
        "id,image\n" + "".join(f"{n},{p}\n" for n, p in zip(names, relative, strict=True))
    )
    for kind, cells in (("absolute", absolute), ("uris", uris), ("objects", [{"path": p} for p in relative])):
        lines = [json.dumps({"id": n, "image": c}) for n, c in zip(names, cells, strict=True)]
        (folder / f"{kind}.jsonl").write_text("\n".join(lines))
    expected: list[list[float]] | None = None
    for corpus in ("bytes.parquet", "structs.parquet", "large.arrow", "paths.csv", "absolute.jsonl", "uris.jsonl",
                   "objects.jsonl", "pictures"):  # fmt: skip
        out = tmp_path / f"{corpus}.out"
        code, _, said = told(
            "embed", folder / corpus, "--image-column", "image", "--model", clip_model, "--to", out, "-q"
        )
        assert code == 0, said
        found = {id_.removesuffix(".jpg"): row["embedding"] for id_, row in rows_of(out).items()}
        vectors = [found[name] for name in names]
        expected = expected or vectors
        assert vectors == expected, corpus


def test_words_find_pictures(told: Told, clip_model: Path, tmp_path: Path) -> None:
    """The text tower's vectors of the same words, by cosine: held to both towers by hand."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    pq.write_table(pa.table({"id": list(PICTURES), "image": list(PICTURES.values())}), tmp_path / "in.parquet")
    told(
        "embed",
        "in.parquet",
        "--image-column",
        "image",
        "--model",
        clip_model,
        "--to",
        "out",
        "-q",
        "--dtype",
        "float32",
    )
    _, shown, _ = told("search", "out", "w1 w2 w3", "-k", "5", "--json")
    hits = json.loads(shown)["queries"][0]["hits"]
    with torch.inference_mode():
        inputs = AutoTokenizer.from_pretrained(clip_model)("w1 w2 w3", return_tensors="pt")
        model = AutoModel.from_pretrained(clip_model)
        query = model.get_text_features(inputs["input_ids"], inputs["attention_mask"]).pooler_output[0].numpy()
    found = rows_of(Path("out"))
    scores = {
        name: float(query @ row["embedding"] / np.linalg.norm(query) / np.linalg.norm(row["embedding"]))
        for name, row in found.items()
    }
    best = sorted(scores, key=lambda name: -scores[name])[:5]
    assert [hit["id"] for hit in hits] == best
    assert hits[0]["score"] == pytest.approx(scores[best[0]], abs=1e-5)


def test_words_find_pages(told: Told, page_model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(PICTURES), "page": list(PICTURES.values())}), tmp_path / "in.parquet")
    code, _, said = told("embed", "in.parquet", "--image-column", "page", "--model", page_model, "--to", "out", "-q")
    assert code == 0, said
    field = pq.read_schema(next(Path("out").glob("*.parquet"))).field("embedding")
    assert field.type.value_type.list_size == 16
    code, shown, said = told("search", "out", "w5 w6", "-k", "2", "--json")
    assert code == 0, said
    assert len(json.loads(shown)["queries"][0]["hits"]) == 2
    assert told("verify", "out")[0] == 0
    code, _, said = told("embed", "in.parquet", "--text-column", "id", "--model", page_model, "--to", "texts")
    assert code == 2
    assert "reads pages as pictures; its texts are queries" in said


def test_a_night_changes_one_picture(told: Told, clip_model: Path, tmp_path: Path) -> None:
    """Content hashes are of the bytes, wherever they lie."""
    (tmp_path / "p").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "p" / f"{name}.png").write_bytes(picture(ord(name)))
    common = ["p", "--image-column", "image", "--model", clip_model, "--to", "out"]
    assert told("sync", *common, "-q")[0] == 0
    before = rows_of(Path("out"))
    (tmp_path / "p" / "b.png").write_bytes(picture(77))
    os.utime(tmp_path / "p" / "c.png", ns=(1, 1))
    (tmp_path / "p" / "a.png").unlink()
    (tmp_path / "p" / "d.png").write_bytes(picture(5))
    code, shown, said = told("sync", *common, "--json", "--max-delete", "50%")
    assert code == 0, said
    changes = json.loads(shown)["changes"]
    assert {k: changes[k] for k in ("added", "changed", "deleted")} == {"added": 1, "changed": 1, "deleted": 1}
    after = rows_of(Path("out"))
    assert after.keys() == {"b.png", "c.png", "d.png"}
    assert after["c.png"] == before["c.png"]
    assert after["b.png"] != before["b.png"]
    assert told("verify", "out")[0] == 0


def test_a_file_that_came_back_is_tried_again(told: Told, clip_model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "p": "a.png"}\n{"id": "b", "p": "b.png"}\n')
    (tmp_path / "a.png").write_bytes(_GOOD)
    (tmp_path / "b.png").write_bytes(_GOOD[:500])
    assert told("embed", "in.jsonl", "--image-column", "p", "--model", clip_model, "--to", "out", "-q")[0] == 3
    (tmp_path / "b.png").write_bytes(PICTURES["jpeg"])
    assert told("retry", "out", "-q")[0] == 0
    assert rows_of(Path("out")).keys() == {"a", "b"}


def test_windows_close_by_bytes_of_pictures(told: Told, clip_model: Path, tmp_path: Path) -> None:
    contents = [picture(i, format="BMP") for i in range(12)]
    pq.write_table(pa.table({"id": [str(i) for i in range(12)], "image": contents}), tmp_path / "in.parquet")
    size = len(contents[0])
    told("embed", "in.parquet", "--image-column", "image", "--model", clip_model, "--to", "out", "-q",
         "--window-bytes", str(3 * size))  # fmt: skip
    assert [pq.read_metadata(p).num_rows for p in sorted(Path("out").glob("*.parquet"))] == [3, 3, 3, 3]
    assert told("embed", "in.parquet", "--image-column", "image", "--model", clip_model, "--to", "small", "-q",
                "--window-bytes", "1")[0] == 0  # fmt: skip
    assert len(list(Path("small").glob("*.parquet"))) == 12


def test_several_models_and_int8_over_pictures(told: Told, clip_model: Path, page_model: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "in.parquet")
    code, _, said = told("embed", "in.parquet", "--image-column", "image", "--model", f"clip={clip_model}", "--model",
                         f"page={page_model}", "--vector-type", "int8", "--to", "out", "-q")  # fmt: skip
    assert code == 3, said
    found = rows_of(Path("out"))
    assert len(found) == len(PICTURES) + 1
    assert {len(row["page"]) for row in found.values()} == {len(found["png"]["page"])}
    assert np.abs(found["png"]["clip"]).max() > 20
    assert told("verify", "out")[0] == 0


@pytest.mark.parametrize(
    ("more", "told_so"),
    [
        (["--text-column", "id"], "--image-column and --text-column: give one of them"),
        (["--audio-column", "image"], "--image-column and --audio-column: give one of them"),
        (["--chunk", "tokens:9"], "--chunk: it is for texts, and --image-column gives none"),
        (["--prompt", "x"], "--prompt: it is for texts"),
        (["--on-overlong", "chunk"], "--on-overlong: --image-column gives no text"),
        (["--model", "fake"], "--image-column: fake (fake) reads no pictures"),
    ],
)
def test_what_cannot_be_asked(told: Told, tmp_path: Path, more: list[str], told_so: str) -> None:
    pq.write_table(pa.table({"id": ["a"], "image": [_GOOD], "n": [1]}), tmp_path / "in.parquet")
    code, _, said = told("embed", "in.parquet", "--image-column", "image", "--to", "out", *more)
    assert code == 2
    assert told_so in said
    assert not Path("out").exists()


def test_columns_that_are_no_pictures(told: Told, clip_model: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "image": [_GOOD], "n": [1], "s": [{"x": 1}]}), tmp_path / "in.parquet")
    common = ["embed", "in.parquet", "--model", clip_model, "--to", "out"]
    for column, said_so in (("n", "is int64; allowed: bytes"), ("s", "without a field `bytes` or `path`"),
                            ("gone", "no column 'gone'")):  # fmt: skip
        code, _, said = told(*common, "--image-column", column)
        assert code == 2
        assert said_so in said
    code, _, said = told(*common)
    assert code == 2
    assert "try: --image-column image" in said


def test_killed_and_resumed_to_the_same_bytes(clip_model: Path, tmp_path: Path) -> None:
    corpus = write_pictures(tmp_path / "in.parquet")
    arguments = ["embed", str(corpus), "--image-column", "image", "--model", str(clip_model), "--window-rows", "6",
                 "--slice-bytes", "9000", "--threads", "1"]  # fmt: skip
    done = run([*arguments, "--to", str(tmp_path / "whole")])
    assert done.returncode == 3, done.stderr
    for point in ("after-part:2", "before-ledger:3"):
        killed = run([*arguments, "--to", str(tmp_path / "out")], failpoint=point)
        assert killed.returncode == -9, killed.stderr
    assert len(parts(tmp_path / "whole")) > 4
    assert_same_after_resume(arguments, tmp_path / "whole", tmp_path / "out")


@pytest.mark.slow
def test_two_workers_give_the_same_bytes(clip_model: Path, tmp_path: Path) -> None:
    corpus = write_pictures(tmp_path / "in.parquet")
    arguments = ["embed", str(corpus), "--image-column", "image", "--model", str(clip_model), "--window-rows", "6",
                 "--slice-bytes", "9000", "--threads", "1"]  # fmt: skip
    assert run([*arguments, "--to", str(tmp_path / "whole")]).returncode == 3
    assert run([*arguments, "--to", str(tmp_path / "two"), "--workers", "2"]).returncode == 3
    assert parts(tmp_path / "two") == parts(tmp_path / "whole")
