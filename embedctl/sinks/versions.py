"""Versions: from the second generation on, each complete state is a folder of hard links, and `current` names one.

A reader that resolves `.embedctl/current` once sees one version, whatever happens meanwhile. The top folder follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.storage import STATE, LocalStorage

FOLDER = f"{STATE}/versions"
CURRENT = f"{STATE}/current"


def version_name(plan: Plan, generation: int, destination: str) -> str:
    """`<name>__<recipe8>_<generation>`."""
    return f"{Path(destination).resolve().name.removesuffix('.embeddings')}__{plan.recipe[:8]}_{generation}"


def publish_version(plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord]) -> None:
    """Link the parts of `records` as this generation's version and point `current` at it."""
    name = version_name(plan, plan.generation, storage.uri)
    storage.link_tree([r.part for r in records if r.part], f"{FOLDER}/{name}")
    storage.point(CURRENT, f"versions/{name}")
