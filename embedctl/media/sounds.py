"""Encoded sounds to samples, with soundfile and soxr, as transformers' `load_audio` does it.

Enters: bytes (WAV, FLAC, OGG, MP3, AIFF). Leaves: the length from the header, or one channel of float32 samples at the
rate a model wants: the mean of all channels, resampled. Refused, as `Unreadable`: what is no sound, has no samples, or
more than fit the memory that one sound may take.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np

from embedctl.errors import UsageError
from embedctl.media import Unreadable

if TYPE_CHECKING:
    import soundfile

MAX_SAMPLES = 1 << 27
"""Of one sound, over all channels and at either rate: half a GiB of float32, 46 minutes of one channel at 48 kHz."""
_MARGIN_S = 0.25
_UNTOLD = 1 << 40
_STREAMED = 0x7FFF0000
"""Where the length is not known when the header is written, writers put about this or more."""


def check_installed() -> None:
    """:raises UsageError: soundfile or soxr is not there."""
    try:
        import soundfile  # noqa: F401
        import soxr  # noqa: F401
    except (ImportError, OSError) as exc:  # OSError: the C library under it
        raise UsageError(
            "sounds are read with soundfile and soxr, which are not installed", hint="pip install 'embedctl[audio]'"
        ) from exc


def seconds_of(content: bytes) -> float:
    """Length, from the header. :raises Unreadable: see the module."""
    with _opened(content) as sound:
        return float(sound.frames / sound.samplerate)


def samples_of(content: bytes, rate: int, max_seconds: float | None = None) -> np.ndarray:
    """float32 (s,): at `rate` samples a second; only the first `max_seconds` of it where that is given.

    :raises Unreadable: see the module.
    """
    import soxr

    with _opened(content) as sound:
        own = sound.samplerate
        # A little more than is wanted, so that the filter that resamples sees no end where there is none.
        frames = sound.frames if max_seconds is None else min(sound.frames, int((max_seconds + _MARGIN_S) * own))
        mono = _decoded(sound, frames, rate)
    if own != rate:
        wanted = math.ceil(len(mono) * rate / own)
        mono = soxr.resample(mono, own, rate, quality="HQ")
        mono = np.pad(mono, (0, max(0, wanted - len(mono))))[:wanted]
    if max_seconds is not None:
        mono = mono[: int(max_seconds * rate)]
    found: np.ndarray = np.ascontiguousarray(mono, dtype=np.float32)
    return found


def _decoded(sound: soundfile.SoundFile, frames: int, rate: int) -> np.ndarray:
    """float32 (frames,): the mean of the channels, at the sound's own rate."""
    if max(frames * sound.channels, frames * rate // sound.samplerate) > MAX_SAMPLES:
        raise Unreadable(
            f"the sound is {frames / sound.samplerate:,.0f} s of {sound.channels} channels at "
            f"{sound.samplerate} Hz: more than {MAX_SAMPLES:,} samples"
        )
    try:
        samples: np.ndarray = sound.read(frames, dtype="float32", always_2d=True)
    except (RuntimeError, ValueError, OSError, MemoryError) as exc:
        raise Unreadable(f"the sound cannot be decoded: {exc}") from exc
    if len(samples) < frames:
        raise Unreadable(f"the sound is cut short: {len(samples):,} of {frames:,} samples are there")
    if not np.isfinite(samples).all():
        raise Unreadable("the sound has NaN or Inf among its samples")
    mono: np.ndarray = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    return mono


def _opened(content: bytes) -> soundfile.SoundFile:
    import soundfile

    if not content:
        raise Unreadable("the sound is empty (0 bytes)")
    try:
        sound = soundfile.SoundFile(io.BytesIO(content))
    except (RuntimeError, ValueError, TypeError, OSError) as exc:
        raise Unreadable(f"not a sound ({len(content):,} bytes that begin with {content[:8]!r})") from exc
    if sound.frames < 1 or sound.samplerate < 1 or sound.channels < 1:
        raise Unreadable("the sound has no samples")
    if sound.frames > _UNTOLD:
        raise Unreadable("the sound's header does not say how long it is")
    missing = _missing_bytes(content)
    if missing:
        raise Unreadable(f"the sound is cut short: {missing:,} bytes are missing")
    return sound


def _missing_bytes(content: bytes) -> int:
    """Of a WAV file's samples, which libsndfile reads as far as they go. Streamed ones do not know their length."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return 0
    place = 12
    while place + 8 <= len(content):
        size = int.from_bytes(content[place + 4 : place + 8], "little")
        if content[place : place + 4] == b"data":
            return 0 if size >= _STREAMED else max(0, place + 8 + size - len(content))
        place += 8 + size + size % 2
    return 0
