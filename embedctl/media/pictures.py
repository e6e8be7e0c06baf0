"""Encoded pictures to pixels, with Pillow, within bounds that are checked before anything is decoded.

Enters: bytes. Leaves: width and height from the header, or an upright RGB picture, as transformers' `load_image` makes
it: turned as EXIF says, first frame, alpha dropped. Refused, as `Unreadable`: what is no picture, is cut short, has no
pixels, too many, or a side too long for the other.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from typing import TYPE_CHECKING, Any

from embedctl.errors import UsageError
from embedctl.media import Unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 89_478_485
"""Pillow's own mark of a decompression bomb: a quarter of a GiB at three bytes a pixel."""
MAX_ASPECT = 200
"""Longest side over shortest: processors scale the shortest, and a thin line would become a wall."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""What Pillow decodes itself, from the bytes alone: no interpreter (EPS), nothing that names other files."""
_BROKEN = (OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, struct.error, OverflowError,
           ZeroDivisionError, AttributeError, RuntimeError, NotImplementedError, MemoryError)  # fmt: skip
"""Pillow's plugins have no error of their own: a damaged file raises whatever its bytes lead to."""
_HUSHED: Any = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


def check_installed() -> None:
    """:raises UsageError: Pillow is not there."""
    try:
        import PIL  # noqa: F401
    except ImportError as exc:
        raise UsageError(
            "pictures are read with Pillow, which is not installed", hint="pip install 'embedctl[images]'"
        ) from exc


def size_of(content: bytes) -> tuple[int, int]:
    """(width, height) in pixels as they will be seen, from the header. :raises Unreadable: see the module."""
    with _opened(content) as picture:
        turned = _orientation(picture) >= 5
        return (picture.height, picture.width) if turned else (picture.width, picture.height)


def picture_of(content: bytes) -> Image:
    """The pixels: mode RGB. :raises Unreadable: see the module."""
    with _opened(content) as picture:
        try:
            picture.load()
            return _upright(picture).convert("RGB")
        except _BROKEN as exc:
            raise Unreadable(f"the picture ({_told(picture)}) cannot be decoded: {_words(exc)}") from exc


def _upright(picture: Image) -> Image:
    """As EXIF says; as it is where EXIF itself is damaged."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(picture)
    except _BROKEN:
        return picture


def _opened(content: bytes) -> Image:
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise Unreadable("the picture is empty (0 bytes)")
    if _HUSHED not in warnings.filters:  # Pillow's remarks on single files; what matters becomes a reason
        warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as exc:
        size = _words(exc).partition(" exceeds")[0]
        raise Unreadable(f"the picture has more than {MAX_PIXELS:,} pixels ({size})") from exc
    except UnidentifiedImageError as exc:
        raise Unreadable(f"not a picture ({len(content):,} bytes that begin with {content[:8]!r})") from exc
    except _BROKEN as exc:
        raise Unreadable(f"the picture's header cannot be read: {_words(exc)}") from exc
    width, height = picture.size
    if width < 1 or height < 1:
        raise Unreadable(f"the picture is {width} x {height}: it has no pixels")
    if width * height > MAX_PIXELS:
        raise Unreadable(f"the picture is {width} x {height}: more than {MAX_PIXELS:,} pixels")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise Unreadable(f"the picture is {width} x {height}: one side is more than {MAX_ASPECT} times the other")
    return picture


def _orientation(picture: Image) -> int:
    """How the picture is to be turned; 5 and more change width for height."""
    if picture.format == "PNG" and "exif" not in picture.info:  # to look behind the pixels would decode them
        return 1
    try:
        found: Any = picture.getexif().get(0x0112, 1)
    except _BROKEN:
        return 1
    return found if isinstance(found, int) else 1


def _told(picture: Image) -> str:
    return f"{picture.format}, {picture.width} x {picture.height}"


def _words(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0][:200] if lines else type(exc).__name__
