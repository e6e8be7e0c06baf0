"""Aliases of the embedded engine: a symbolic link beside the collections' folders, moved in one step.

Enters: `qdrant-edge:///folder/NAME`, of any collection or alias in `/folder`. Leaves: what a name serves, a name moved,
old collections removed. Refused: a name that is a folder of its own, removing what a name serves.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from embedctl.errors import UsageError
from embedctl.storage import sink_error


class FolderAliases:
    """The collections of one folder."""

    def __init__(self, target: str) -> None:
        """:raises UsageError: the URI names no folder."""
        place = target.partition("://")[2]
        if not place.strip("/."):
            raise UsageError(f"--to: {target} names no folder", hint="--to qdrant-edge://./stores/docs")
        self._folder = Path(os.path.abspath(place)).parent

    def resolve(self, alias: str) -> str | None:
        link = self._folder / alias
        return Path(os.readlink(link)).name if link.is_symlink() else None

    def collections(self, prefix: str = "") -> list[str]:
        if not self._folder.is_dir():
            return []
        here = [p for p in self._folder.iterdir() if p.is_dir() and not p.is_symlink()]
        return sorted(p.name for p in here if p.name.startswith(prefix) and not p.name.startswith("."))

    def check(self, alias: str) -> None:
        """:raises UsageError: there is a folder or a file of this name."""
        place = self._folder / alias
        if os.path.lexists(place) and not place.is_symlink():
            raise UsageError(
                f"{place}: is a collection of its own, so it cannot be an alias", hint="choose another alias"
            )

    def switch(self, alias: str, collection: str) -> str | None:
        self.check(alias)
        before = self.resolve(alias)
        if not (self._folder / collection).is_dir():
            raise UsageError(f"{self._folder / collection}: no such collection")
        if before != collection:
            staged = self._folder / f".{alias}.{os.urandom(4).hex()}"
            try:
                staged.symlink_to(collection)
                staged.replace(self._folder / alias)
                self._sync()
            except OSError as exc:
                raise sink_error(self._folder / alias, exc) from exc
        return before

    def drop(self, collection: str) -> None:
        """:raises UsageError: a link serves it."""
        names = [p.name for p in self._folder.iterdir() if p.is_symlink() and self.resolve(p.name) == collection]
        if names:
            raise UsageError(f"{self._folder / collection}: is served as {', '.join(sorted(names))}, so it is kept")
        going = self._folder / f".{collection}.{os.urandom(4).hex()}"
        try:
            if (self._folder / collection).is_dir():
                (self._folder / collection).rename(going)  # gone whole, or not at all
                shutil.rmtree(going)
        except OSError as exc:
            raise sink_error(self._folder / collection, exc) from exc

    def close(self) -> None:
        """Nothing is held."""

    def _sync(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
