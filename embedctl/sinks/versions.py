"""Versions: from the second generation on, each complete state is a folder of hard links, and `current` names one.

A reader that resolves `.embedctl/current` once sees one version, whatever happens meanwhile. The top folder follows.
"""

from __future__ import annotations

import os
import shutil
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


def names(storage: LocalStorage) -> list[str]:
    """Versions that stand whole, oldest first."""
    folder = storage.root / FOLDER
    found = [p.name for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []
    return sorted(found, key=lambda name: (generation_of(name), name))


def generation_of(name: str) -> int:
    """The generation that a version's name ends in."""
    number = name.rpartition("_")[2]
    return int(number) if number.isdecimal() else 0


def current(storage: LocalStorage) -> str | None:
    """The version that readers are led to; None before the second generation."""
    link = storage.root / CURRENT
    return Path(os.readlink(link)).name if link.is_symlink() else None


def prune(storage: LocalStorage, keep: int) -> list[str]:
    """Delete all but the newest `keep` versions, never the current one; returns what went."""
    standing = current(storage)
    gone = [name for name in names(storage)[: -keep or None] if name != standing]
    for name in gone:
        shutil.rmtree(storage.root / FOLDER / name, ignore_errors=True)
    return gone
