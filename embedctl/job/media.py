"""What a job over pictures or sounds plans and wires differently from one over texts.

Enters: a `JobSpec` or a plan. Leaves: the same models as they read rows, rules, tokenizers. Refuses: models that read
no such rows, and page models over texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError, UsageError
from embedctl.media import WORDS, Kind
from embedctl.models.folder import ModelFolder
from embedctl.models.media_format import processor_settings
from embedctl.plan import Plan
from embedctl.spec import JobSpec
from embedctl.spec_media import flag_of, media_of
from embedctl.text.media import MediaRule
from embedctl.tokens.base import Tokenizer


def rule_of(plan: Plan) -> MediaRule | None:
    """How rows' contents are found; None where rows are texts."""
    for kind in _KINDS:
        if column := plan.spec.get(f"{kind}_column"):
            return MediaRule(column=column, kind=kind)
    return None


_KINDS: tuple[Kind, ...] = ("image", "audio")


def as_read(folders: Sequence[ModelFolder], spec: JobSpec) -> tuple[ModelFolder, ...]:
    """The models as they read the job's rows.

    :raises UsageError: a model reads no such rows, or what reads them is not installed.
    """
    found = media_of(spec)
    if found is None:
        return tuple(folders)
    if found[0] == "image":
        from embedctl.media.pictures import check_installed
    else:
        from embedctl.media.sounds import check_installed
    read = tuple(folder.reading(found[0]) for folder in folders)
    for folder in read:
        if folder.path is not None and not processor_settings(folder.path):
            raise ModelError(
                f"{folder.path}: neither processor_config.json nor preprocessor_config.json, so how its "
                f"{WORDS[found[0]]}s are prepared is unknown",
                hint="download the model again",
            )
    check_installed()
    return read


def check_texts(folders: Sequence[ModelFolder], spec: JobSpec, of_bytes: Sequence[str]) -> None:
    """of_bytes: text columns that the files declare as bytes.

    :raises UsageError: rows are texts, and a model reads only queries so, cannot be told where to cut them, or could
        have been meant for the pictures or sounds that the bytes are.
    """
    for folder in folders:
        if folder.media is None or folder.reads is not None:
            continue
        if of_bytes:
            flag = flag_of(folder.media.takes)
            raise UsageError(
                f"--text-column: {of_bytes[0]!r} is bytes, and {folder.name} ({folder.architecture}) reads "
                f"{WORDS[folder.media.takes]}s too",
                hint=f"{flag} {of_bytes[0]}",
            )
        if folder.media.filled and (spec.chunk is not None or spec.on_overlong == "chunk"):
            raise UsageError(
                f"--chunk: {folder.name} ({folder.architecture}) takes captions, and cannot cut longer texts",
                hint="leave out --chunk; --on-overlong truncate",
            )
        if folder.media.late:
            raise UsageError(
                f"--model: {folder.name} ({folder.architecture}) reads pages as pictures; its texts are queries",
                hint="--image-column NAME",
            )


def content_flag_of(plan: Plan) -> str | None:
    """The flag that named the rows' content; None where rows are texts."""
    rule = rule_of(plan)
    return None if rule is None else flag_of(rule.kind)


def open_media_tokenizer(folder: ModelFolder, resolved: Mapping[str, Any]) -> Tokenizer | None:
    """What counts the rows' tokens, or makes those of texts as only the model's own processor can; None: any other."""
    assert folder.media is not None
    assert folder.path is not None
    from embedctl.tokens import media as tokens

    path, length, prompt = Path(folder.path), resolved["max_length"], resolved["prompt"]
    if folder.reads is not None:
        return tokens.open_counter(
            path, folder.reads, folder.media.tokens, max_length=length, max_seconds=_max_seconds(path)
        )
    if folder.media.late:
        return tokens.open_queries(path, max_length=length, prompt=prompt)
    return tokens.open_filled(path, max_length=length, prompt=prompt) if folder.media.filled else None


def _max_seconds(path: Path) -> float:
    """Of a sound, before something of it is left out."""
    return float(processor_settings(path).get("max_length_s") or 10)
