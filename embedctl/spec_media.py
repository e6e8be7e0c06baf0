"""What may be asked of a job whose rows are pictures or sounds, and not texts.

Enters: a `JobSpec`. Refuses, naming the flag: two sources of a row's content, settings that are for texts only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedctl.errors import UsageError
from embedctl.media import Kind

if TYPE_CHECKING:
    from embedctl.spec import JobSpec

_FLAGS: dict[Kind, str] = {"image": "--image-column", "audio": "--audio-column"}
_ONLY_TEXT = ("chunk", "prompt", "prompt_name", "max_length", "pooling")


def media_of(spec: JobSpec) -> tuple[Kind, str] | None:
    """(what the rows are, the column that holds it); None for texts."""
    if spec.image_column is not None:
        return "image", spec.image_column
    return ("audio", spec.audio_column) if spec.audio_column is not None else None


def flag_of(kind: Kind) -> str:
    return _FLAGS[kind]


def check_media(spec: JobSpec) -> None:
    """:raises UsageError: see the module."""
    found = media_of(spec)
    if found is None:
        return
    flag = flag_of(found[0])
    if spec.image_column is not None and spec.audio_column is not None:
        raise UsageError("--image-column and --audio-column: give one of them; a row is embedded from one content")
    if spec.task != "embed":
        raise UsageError(f"{flag}: only embedctl embed can take it; {spec.task} reads texts")
    for name in ("text_column", "text_template"):
        if getattr(spec, name) is not None:
            raise UsageError(
                f"{flag} and --{name.replace('_', '-')}: give one of them; a row is embedded from one content",
                hint="embed the texts with the same model into a second destination",
            )
    for name in _ONLY_TEXT:
        if getattr(spec, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: it is for texts, and {flag} gives none")
    if spec.on_overlong == "chunk":
        raise UsageError(f"--on-overlong: {flag} gives no text to cut into chunks", hint="--on-overlong truncate")
