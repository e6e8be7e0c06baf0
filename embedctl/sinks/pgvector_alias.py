"""Names that readers of a PostgreSQL database use: a table that bears an alias, and gives it up, by renaming.

Enters: the URI of any table. Leaves: what an alias serves; an alias moved in one transaction: the table that served it
takes back the name it was made by, the next one takes the alias. The sink of either finds it under both. Refused: an
alias that is a table of its own, dropping what an alias serves.
"""

from __future__ import annotations

from embedctl.errors import SinkError, UsageError
from embedctl.sinks.pgvector_link import Connection, Link, place_of
from embedctl.sinks.pgvector_table import Found, find, forget_text, made_tables, named, own_name

LOCK = "10s"


class TableAliases:
    """The tables of one schema. Connects at the first question; close it."""

    def __init__(self, target: str) -> None:
        """:raises UsageError: not the URI of a table."""
        self._link = Link(place_of(target))

    def resolve(self, alias: str) -> str | None:
        found = self._link.run(lambda c: self._bearing(c, alias))
        return None if found is None or own_name(found) == alias else own_name(found)

    def collections(self, prefix: str = "") -> list[str]:
        names = self._link.run(lambda c: made_tables(c, self._link.place))
        return sorted(name for name in names if name.startswith(prefix))

    def check(self, alias: str) -> None:
        """:raises UsageError: there is a table of this name that was not given it by `switch`."""
        self._link.run(lambda c: self._check(c, alias))

    def switch(self, alias: str, collection: str) -> str | None:
        return self._link.run(lambda c: self._switch(c, alias, collection))

    def drop(self, collection: str) -> None:
        """:raises UsageError: an alias serves it."""
        self._link.run(lambda c: self._drop(c, collection))

    def close(self) -> None:
        self._link.close()

    def _bearing(self, c: Connection, name: str) -> Found | None:
        """The table that is called so now."""
        found = find(c, self._link.place.of(name))
        return found if found is not None and found.table == name else None

    def _check(self, c: Connection, alias: str) -> Found | None:
        found = self._bearing(c, alias)
        if found is not None and own_name(found) == alias:
            raise UsageError(
                f"{self._link.place.of(alias).name}: is a table of its own, so it cannot be an alias",
                hint=f"choose another alias, or rename it first: ALTER TABLE {alias} RENAME TO {alias}_old",
            )
        return found

    def _switch(self, c: Connection, alias: str, collection: str) -> str | None:
        c.execute(f"SET LOCAL lock_timeout = '{LOCK}'")
        before, after = self._check(c, alias), find(c, self._link.place.of(collection))
        if after is None:
            raise SinkError(f"{self._link.place.of(collection).name}: no such table")
        if after.table == alias:
            return collection
        if before is not None:
            self._rename(c, before, own_name(before))
        self._rename(c, after, alias)
        return None if before is None else own_name(before)

    def _rename(self, c: Connection, found: Found, name: str) -> None:
        from psycopg import sql

        c.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(named(found.schema, found.table), sql.Identifier(name)))

    def _drop(self, c: Connection, collection: str) -> None:
        from psycopg import sql

        c.execute(f"SET LOCAL lock_timeout = '{LOCK}'")
        found = find(c, self._link.place.of(collection))
        if found is None:
            return
        if found.table != own_name(found):
            raise UsageError(f"{self._link.place.of(collection).name}: is served as {found.table}, so it is kept")
        c.execute(sql.SQL("DROP TABLE {}").format(named(found.schema, found.table)))
        forget_text(c, found)
