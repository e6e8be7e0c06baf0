"""Pictures and sounds drawn by rule, as bytes of the formats that corpora hold."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import soundfile
from PIL import Image

RED_BOAT = "w1 w2 w3"


def pixels(seed: int, width: int = 70, height: int = 50) -> Image.Image:
    """Smooth colours with noise, so that every way of scaling shows."""
    chance = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 6, width), np.linspace(0, 4, height))
    planes = [127 + 90 * np.sin(x * (1 + seed % 3) + p) * np.cos(y + seed) for p in range(3)]
    noisy = np.stack(planes, axis=-1) + chance.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def picture(seed: int, width: int = 70, height: int = 50, format: str = "PNG", mode: str = "RGB", **more: Any) -> bytes:
    """Encoded in `format`."""
    out = io.BytesIO()
    pixels(seed, width, height).convert(mode).save(out, format, **more)
    return out.getvalue()


def turned(seed: int, orientation: int) -> bytes:
    """A JPEG that EXIF says to turn."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(seed, format="JPEG", exif=exif)


def bomb() -> bytes:
    """Four hundred million pixels in some fifty kilobytes."""
    out = io.BytesIO()
    Image.new("1", (20000, 20000)).save(out, "PNG")
    return out.getvalue()


def sound(seed: int, seconds: float = 1.0, rate: int = 8000, format: str = "WAV", channels: int = 1) -> bytes:
    """Two tones and noise."""
    chance = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    wave = 0.3 * np.sin(2 * np.pi * (200 + 90 * seed) * time) + 0.2 * np.sin(2 * np.pi * 700 * time)
    wave = wave[:, None] + chance.normal(0, 0.05, (len(time), channels))
    out = io.BytesIO()
    soundfile.write(out, np.clip(wave, -1, 1), rate, format=format)
    return out.getvalue()


PICTURES: dict[str, bytes] = {
    "png": picture(1), "jpeg": picture(2, 90, 61, "JPEG"), "same size": picture(3), "tall": picture(4, 33, 120),
    "webp": picture(5, format="WEBP"), "grey": picture(6, mode="L"), "palette": picture(7, mode="P", format="GIF"),
    "alpha": picture(8, mode="RGBA"), "cmyk": picture(9, mode="CMYK", format="JPEG"), "turned": turned(10, 6),
    "mirrored": turned(11, 5), "tiff": picture(12, format="TIFF"), "bmp": picture(13, format="BMP"),
    "bad exif": picture(17, format="JPEG", exif=b"Exif\0\0II*\0\xff\xff\0\0"),
    "one pixel": picture(14, 1, 1), "16 bits": picture(15, mode="I;16"), "one bit": picture(16, mode="1"),
}  # fmt: skip
"""What must be embedded."""

SOUNDS: dict[str, bytes] = {
    "wav": sound(1), "flac": sound(2, format="FLAC"), "ogg": sound(3, format="OGG"), "stereo": sound(4, channels=2),
    "other rate": sound(5, rate=11025), "high rate": sound(6, rate=44100, format="FLAC"), "short": sound(7, 0.05),
    "exact": sound(8, 2.0), "long": sound(9, 5.0),
}  # fmt: skip
