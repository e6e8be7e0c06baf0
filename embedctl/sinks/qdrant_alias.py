"""Names of a Qdrant server's collections, and the aliases that readers use: what blue and green need.

Enters: the URI of any collection of the server. Leaves: what an alias serves, an alias moved in one call, old
collections dropped. Refused: an alias that is the name of a collection, dropping what an alias serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

from embedctl.errors import SinkError, UsageError
from embedctl.sinks.qdrant_address import connect, parse
from embedctl.sinks.qdrant_trouble import patiently

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

PATIENCE_S = 60.0
_T = TypeVar("_T")


def has_aliases(target: str) -> bool:
    """Whether the URI is of a store that knows aliases."""
    return urlsplit(target).scheme in ("qdrant", "qdrant+http", "qdrant+https")


def with_collection(target: str, collection: str) -> str:
    """The URI of another collection of the same server."""
    parts = urlsplit(target)
    folder = parts.path.rstrip("/").rpartition("/")[0]
    return parts._replace(path=f"{folder}/{quote(collection, safe='')}").geturl()


class Aliases:
    """One server. Connects at the first question; close it."""

    def __init__(self, target: str) -> None:
        """:raises UsageError: not the URI of a Qdrant server."""
        if not has_aliases(target):
            raise UsageError(
                f"{target}: this kind of store has no aliases", hint="--to qdrant://HOST:6334/NAME, a Qdrant server"
            )
        self._address = parse(target)
        self._connected: QdrantClient | None = None

    def serving(self) -> Mapping[str, str]:
        """Alias -> the collection that it names, all of the server."""
        found = self._try(lambda c: c.get_aliases()).aliases
        return {a.alias_name: a.collection_name for a in found}

    def resolve(self, alias: str) -> str | None:
        """The collection that the alias names; None: no such alias."""
        return self.serving().get(alias)

    def collections(self, prefix: str = "") -> list[str]:
        """Collections whose names begin so, sorted."""
        found = self._try(lambda c: c.get_collections()).collections
        return sorted(c.name for c in found if c.name.startswith(prefix))

    def check(self, alias: str) -> None:
        """:raises UsageError: a collection has this name, so that it can be no alias."""
        if alias in self.collections(alias):
            raise UsageError(
                f"{self._address.of(alias).name}: is a collection, so it cannot be an alias",
                hint="choose another alias, or rename by loading into a new collection and deleting this one",
            )

    def switch(self, alias: str, collection: str) -> str | None:
        """Readers of `alias` see `collection` from now on, never nothing between. Returns what they saw before.

        :raises UsageError: `alias` is a collection. :raises SinkError: there is no such collection; the server refuses.
        """
        from qdrant_client import models

        self.check(alias)
        before = self.resolve(alias)
        if before == collection:
            return before
        create = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=collection, alias_name=alias)
        )
        gone = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))
        self._try(lambda c: c.update_collection_aliases([create] if before is None else [gone, create]))
        if self.resolve(alias) != collection:
            raise SinkError(f"{self._address.of(alias).name}: the server did not move the alias to {collection}")
        return before

    def remove(self, alias: str) -> None:
        """The alias is gone, its collection is not. Nothing where there is none."""
        from qdrant_client import models

        if self.resolve(alias) is not None:
            gone = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))
            self._try(lambda c: c.update_collection_aliases([gone]))

    def drop(self, collection: str) -> None:
        """Delete a collection and all in it; nothing where it is gone. :raises UsageError: an alias serves it."""
        names = sorted(a for a, c in self.serving().items() if c == collection)
        if names:
            raise UsageError(f"{self._address.of(collection).name}: is served as {', '.join(names)}, so it is kept")
        if collection in self.collections(collection):
            self._try(lambda c: c.delete_collection(collection))

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _try(self, call: Callable[[QdrantClient], _T]) -> _T:
        if self._connected is None:
            self._connected = connect(self._address)
        client = self._connected
        return patiently(self._address.name, lambda: call(client), PATIENCE_S)
