"""Pictures and sounds as rows' texts: how bytes travel through a job that knows strings.

Enters: the bytes of one encoded picture or sound, or why there are none. Leaves: a string, one character a byte, or one
that says the reason. Refuses nothing.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["image", "audio"]
WORDS: dict[Kind, str] = {"image": "picture", "audio": "sound"}
"""What people call a row's content."""

MAX_BYTES = 64 << 20
"""Of one encoded picture or sound: as large as a cell of a table may be."""

_FAILED = "\ue000"  # no byte is this character


class Unreadable(ValueError):
    """Why one picture or sound cannot be read; goes to the dead letter as it stands."""


def as_text(content: bytes) -> str:
    """The string that stands for these bytes."""
    return content.decode("latin-1")


def as_bytes(text: str) -> bytes:
    """The bytes that `as_text` was given."""
    return text.encode("latin-1")


def as_failure(reason: str) -> str:
    """The string of a row that has no bytes."""
    return _FAILED + reason


def failure_of(text: str) -> str | None:
    """The reason that `as_failure` was given; None for bytes."""
    return text[1:] if text.startswith(_FAILED) else None
