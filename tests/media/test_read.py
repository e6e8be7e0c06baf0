"""Contents alone: headers, bounds, orientation, and what is refused, word for word."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.audio_utils import load_audio

from embedctl.media import Unreadable, as_bytes, as_failure, as_text, failure_of
from embedctl.media.pictures import picture_of, size_of
from embedctl.media.sounds import samples_of, seconds_of
from embedctl.records import SourceFile
from embedctl.text.media import MediaRule
from tests.media.samples import PICTURES, SOUNDS, bomb, picture, sound, turned


@given(st.binary())
def test_bytes_travel_as_text(content: bytes) -> None:
    text = as_text(content)
    assert as_bytes(text) == content
    assert len(text) == len(content)
    assert failure_of(text) is None


def test_a_reason_is_no_bytes() -> None:
    assert failure_of(as_failure("gone")) == "gone"


@pytest.mark.parametrize("name", PICTURES)
def test_headers_tell_the_size_that_is_seen(name: str) -> None:
    assert size_of(PICTURES[name]) == picture_of(PICTURES[name]).size


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright(orientation: int) -> None:
    assert size_of(turned(1, orientation)) == ((50, 70) if orientation >= 5 else (70, 50))
    found = np.asarray(picture_of(turned(1, orientation)), dtype=float)
    upright = np.asarray(picture_of(turned(1, 1)), dtype=float)
    moves = [lambda a: a, np.fliplr, lambda a: np.rot90(a, 2), np.flipud, lambda a: a.transpose(1, 0, 2),
             lambda a: np.rot90(a, -1), lambda a: np.rot90(a, 2).transpose(1, 0, 2), np.rot90]  # fmt: skip
    np.testing.assert_array_equal(found, moves[orientation - 1](upright))


def png(width: int, height: int) -> bytes:
    """A header that promises these pixels, with none behind it."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the picture is empty (0 bytes)"),
        (b"nothing at all", "not a picture (14 bytes that begin with b'nothing ')"),
        (bomb(), "the picture has more than 89,478,485 pixels (Image size (400000000 pixels))"),
        (png(10000, 9000), "the picture is 10000 x 9000: more than 89,478,485 pixels"),
        (png(2**31 - 1, 1), "more than"),
        (png(1, 201), "the picture is 1 x 201: one side is more than 200 times the other"),
        (png(0, 5), ""),
    ],
)
def test_refused_by_their_headers(content: bytes, reason: str) -> None:
    with pytest.raises(Unreadable) as refused:
        size_of(content)
    assert reason in str(refused.value)


def test_refused_when_decoded() -> None:
    with pytest.raises(Unreadable, match=r"the picture \(PNG, 30 x 20\) cannot be decoded"):
        picture_of(png(30, 20))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["png", "jpeg", "webp", "palette", "tiff", "turned", "bmp"]), st.data())
def test_damaged_pictures_are_read_or_refused_and_nothing_else(name: str, data: st.DataObject) -> None:
    content = bytearray(PICTURES[name])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, min(len(content), 400) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in (size_of, picture_of):
            with contextlib.suppress(Unreadable):
                read(cut)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["wav", "flac", "ogg", "stereo"]), st.data())
def test_damaged_sounds_are_read_or_refused_and_nothing_else(name: str, data: st.DataObject) -> None:
    content = bytearray(SOUNDS[name])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 99))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(Unreadable):
        assert np.isfinite(samples_of(cut, 8000, 2.0)).all()


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_as_transformers_loads_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(SOUNDS[name])
    whole = load_audio(str(tmp_path / "sound"), sampling_rate=8000)
    np.testing.assert_array_equal(samples_of(SOUNDS[name], 8000), whole)
    np.testing.assert_allclose(samples_of(SOUNDS[name], 8000, 0.5), whole[:4000], atol=1e-6)
    assert seconds_of(SOUNDS[name]) == pytest.approx(len(whole) / 8000, abs=1e-3)


def test_long_sounds_are_read_as_far_as_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = sound(1, 20.0)
    monkeypatch.setattr("embedctl.media.sounds.MAX_SAMPLES", 30_000)
    assert len(samples_of(content, 8000, 2.0)) == 16_000
    with pytest.raises(Unreadable, match=r"the sound is 20 s of 1 channels at 8000 Hz: more than 30,000 samples"):
        samples_of(content, 8000)


def test_streamed_wav_files_do_not_know_their_length() -> None:
    content = bytearray(sound(1))
    place = content.index(b"data")
    content[place + 4 : place + 8] = b"\xff\xff\xff\xff"
    assert len(samples_of(bytes(content), 8000)) == 8000


def test_samples_that_are_no_numbers() -> None:
    out = io.BytesIO()
    soundfile.write(out, np.array([0.1, np.nan, 0.2], dtype=np.float32), 8000, format="WAV", subtype="FLOAT")
    with pytest.raises(Unreadable, match="NaN or Inf"):
        samples_of(out.getvalue(), 8000)


def test_files_of_a_block_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(picture(i))
    read: list[str] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or whole(path))
    batch = pa.RecordBatch.from_pydict({"p": [f"{i}.png" for i in range(5)]})
    file = SourceFile(index=0, uri="c", path=str(tmp_path / "c.jsonl"), format="jsonl", compression=None, size_bytes=1,
                      version="")  # fmt: skip
    contents = MediaRule(column="p", kind="image").render(batch, file)
    assert read == []
    assert contents[3] is contents[3]
    assert as_bytes(str(contents[3])) == picture(3)
    assert read == ["3.png"]


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedctl.text.media.MAX_BYTES", 1000)
    (tmp_path / "a.png").write_bytes(b"x" * 1001)
    rule = MediaRule(column="p", kind="image")
    file = SourceFile(index=0, uri="c", path=str(tmp_path / "c.csv"), format="csv", compression=None, size_bytes=1,
                      version="")  # fmt: skip
    contents = rule.render(pa.RecordBatch.from_pydict({"p": ["a.png", "", "data:x", None, "data:,abc"]}), file)
    assert [rule.problem(text) for text in contents] == [
        "a.png: 1,001 bytes; at most 1,000",
        "the picture's path is empty",
        "the picture's data: URI cannot be read: it has no comma",
        "the picture is null",
        "not a picture (3 bytes that begin with b'abc')",
    ]
