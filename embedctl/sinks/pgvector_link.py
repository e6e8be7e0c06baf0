"""Where a table is, and work done there again and again until the server takes it.

Enters: `postgresql://[USER@]HOST[:PORT]/DB?table=[SCHEMA.]TABLE`, or `.../DB/[SCHEMA.]TABLE`; libpq's other parameters
(sslmode, host of a socket, ...) may follow. The password comes from PGPASSWORD or ~/.pgpass, or stands in the URI, and
is stored nowhere. Leaves: a `Link`, whose work is one transaction each. Tried again: a server that is away, starting,
stopping or out of connections, deadlocks. Not tried again: a wrong password, a full disk, what is not allowed.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from embedctl.errors import SinkError, UsageError

if TYPE_CHECKING:
    import psycopg

FIRST_PATIENCE_S, PATIENCE_S = 10.0, 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
MAX_NAME_BYTES = 63
_EXAMPLE = "--to 'postgresql://localhost:5432/mydb?table=docs'"
_AGAIN = re.compile(r"08|40|57P0[1-5]|53300|55P03|25006")
_NEVER = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba|not permitted|SSL is not enabled"
)
_DEFAULTS = {
    "connect_timeout": "10", "application_name": "embedctl", "keepalives_idle": "30", "keepalives_interval": "10",
    "keepalives_count": "3", "tcp_user_timeout": "60000",
}  # fmt: skip
_T = TypeVar("_T")
Connection = Any
"""A psycopg connection, in a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """name: for messages, without secrets. conninfo: for libpq. schema: None where the server's search path says."""

    name: str
    conninfo: str
    schema: str | None
    table: str

    def of(self, table: str) -> Place:
        """Another table of the same schema."""
        full = table if self.schema is None else f"{self.schema}.{table}"
        return replace(self, table=table, name=f"{self.name.partition('?')[0]}?table={full}")


def place_of(target: str) -> Place:
    """:raises UsageError: not such a URI, or a password among its parameters."""
    parts = urlsplit(target)
    if parts.netloc.count("@") > 1:
        raise UsageError("--to: more than one @ before the host", hint="write @ in a user or password as %40")
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "password" in asked:
        raise UsageError("--to: a password among the parameters would be seen by others", hint="export PGPASSWORD=...")
    database, _, rest = parts.path.strip("/").partition("/")
    named = asked.pop("table", None) or unquote(rest)
    schema, _, table = named.rpartition(".")
    if not table or not database or (rest and "/" in rest):
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise UsageError(f"--to: {shown} is not postgresql://HOST[:PORT]/DB?table=TABLE", hint=_EXAMPLE)
    for part in filter(None, (schema, table)):
        if len(part.encode()) > MAX_NAME_BYTES or "\x00" in part:
            raise UsageError(f"--to: {part!r} is longer than the {MAX_NAME_BYTES} bytes PostgreSQL keeps of a name")
    query = urlencode({**_DEFAULTS, **asked})
    host = parts.netloc.rpartition("@")[2]
    return Place(
        name=f"postgresql://{host}/{database}?table={named}",
        conninfo=f"postgresql://{parts.netloc}/{database}?{query}",
        schema=schema or None,
        table=table,
    )


class Link:
    """One connection, opened when first needed and again when it breaks."""

    def __init__(self, place: Place) -> None:
        """:raises UsageError: the client is not installed."""
        try:
            import psycopg  # noqa: F401
        except ImportError as exc:
            raise UsageError("the PostgreSQL client is not installed", hint="pip install 'embedctl[pgvector]'") from exc
        self.place = place
        self._connection: psycopg.Connection[Any] | None = None
        self._seen = False

    def run(self, work: Callable[[Connection], _T], *, patience_s: float | None = None) -> _T:
        """What `work` returns, its transaction committed. It may be called again, so it must be the same twice.

        :raises SinkError: the server's last word, after `patience_s` of trying where that is worth it.
        """
        import psycopg

        limit = patience_s or (PATIENCE_S if self._seen else FIRST_PATIENCE_S)
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                connection = self.opened()
                with connection.transaction():
                    done = work(connection)
                self._seen = True
                return done
            except psycopg.Error as exc:
                self._drop_broken()
                if not _worth_it(exc) or time.monotonic() - began >= limit:
                    raise self._told(exc) from exc
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def outside(self, statement: Any) -> None:
        """A statement that takes no transaction, such as VACUUM. :raises SinkError: it failed."""
        import psycopg

        try:
            self.opened().execute(statement)
        except psycopg.Error as exc:
            self._drop_broken()
            raise self._told(exc) from exc

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def opened(self) -> psycopg.Connection[Any]:
        import psycopg

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.place.conninfo, autocommit=True)
            self._connection.execute("SET synchronous_commit = on")  # what the ledger says must survive a crash
            self._connection.execute("SET client_min_messages = error")
            self._connection.execute("SET lock_timeout = '60s'")  # tried again, then told, rather than waited for
        return self._connection

    def _drop_broken(self) -> None:
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self._connection.close()
            self._connection = None

    def _told(self, exc: psycopg.Error) -> SinkError:
        state, text = exc.sqlstate or "", " ".join(str(exc).split())[:500]
        hints = {
            "28P01": "set PGPASSWORD, or put the password into ~/.pgpass",
            "42501": "GRANT what it asks for, or name another user in the URI",
            "53100": "free some space on the server, then run the same command again: it goes on where it stopped",
        }  # fmt: skip
        hint = hints.get(state)
        if "password" in text:
            hint = hints["28P01"]
        elif hint is None and _worth_it(exc):
            hint = "see that the server is up, then run the same command again: it goes on where it stopped"
        return SinkError(f"{self.place.name}: {text}", hint=hint)


def _worth_it(exc: psycopg.Error) -> bool:
    import psycopg

    if exc.sqlstate:
        return _AGAIN.match(exc.sqlstate) is not None
    if not isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    return _NEVER.search(str(exc)) is None
