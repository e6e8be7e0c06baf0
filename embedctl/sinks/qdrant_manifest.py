"""What a collection says of the job that made it, in its metadata, and of where the job's state is.

Enters: a plan, or a text to keep (packed as zstd and base64). Leaves: metadata of text values, and the same read back.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import zstandard

from embedctl.errors import SinkError
from embedctl.plan import Plan
from embedctl.storage import LocalStorage

TAG, STATE_AT, MANIFEST = "embedctl_job", "embedctl_state", "embedctl_manifest"


def of(plan: Plan, storage: LocalStorage) -> dict[str, str]:
    return {TAG: plan.job, STATE_AT: str(storage.root)}


def job(metadata: Mapping[str, Any]) -> str | None:
    """The job's tag; None: the collection is not of embedctl's making."""
    tag = metadata.get(TAG)
    return None if tag is None else str(tag)


def packed(text: str) -> dict[str, str]:
    return {MANIFEST: base64.b64encode(zstandard.compress(text.encode("utf-8", "surrogatepass"))).decode()}


def unpacked(metadata: Mapping[str, Any], name: str) -> str | None:
    """The text; None: there is none. :raises SinkError: what is there is not readable."""
    found = metadata.get(MANIFEST)
    if not found:
        return None
    try:
        return zstandard.decompress(base64.b64decode(str(found))).decode("utf-8", "surrogatepass")
    except (ValueError, zstandard.ZstdError) as exc:
        raise SinkError(f"{name}: what it says of its job is not readable ({exc})") from exc
