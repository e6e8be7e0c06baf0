"""The way to Elasticsearch or OpenSearch: plain HTTP, which both speak alike, with its troubles put in our words.

Enters: a method, a path, a body. Leaves: the answer, parsed. Tried again, with backoff and jitter or after the time the
server names: 429, what is unavailable or out of time, and connections that break. Not tried again: a bad request, a
missing key. Keys and passwords come from the environment and stand in no message.
"""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from embedctl.errors import SinkError, UsageError

if TYPE_CHECKING:
    import urllib3

FIRST_PATIENCE_S, PATIENCE_S = 10.0, 300.0
FIRST_S, LONGEST_S = 0.1, 15.0
CONNECT_S, TIMEOUT_S = 10.0, 120
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
LEAST = {"ELASTIC": (8, 11), "OPENSEARCH": (2, 9)}
_BAD = frozenset({400, 405, 409, 413, 422})


class BadRequest(SinkError):
    """The server will never take this request as it is. `status`: HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an index is. word: of the environment's variables, ELASTIC or OPENSEARCH."""

    base: str
    index: str
    name: str
    word: str

    @property
    def opensearch(self) -> bool:
        return self.word == "OPENSEARCH"


def place_of(target: str) -> Place:
    """:raises UsageError: not SCHEME://HOST[:PORT]/INDEX, or a password in it."""
    parts = urlsplit(target)
    scheme, _, tls = parts.scheme.partition("+")
    index = parts.path.strip("/")
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    word = {"elasticsearch": "ELASTIC", "opensearch": "OPENSEARCH"}[scheme]
    if "@" in parts.netloc:
        hint = f"set {word}_USER and {word}_PASSWORD"
        raise UsageError("--to: a password in the address would be seen by others", hint=hint)
    if not parts.hostname or not index or "/" in index or parts.query:
        raise UsageError(
            f"--to: {shown} is not {parts.scheme}://HOST[:PORT]/INDEX", hint=f"--to {scheme}://localhost:9200/docs"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{'https' if tls else 'http'}://{host}:{parts.port or 9200}"
    return Place(base=base, index=index, name=shown, word=word)


class Link:
    """One server's connections, for use on several threads."""

    def __init__(self, place: Place) -> None:
        """:raises UsageError: a setting in the environment is not what it should be."""
        self.place = place
        self._headers = {"Accept": "application/json", **_authorization(place.word)}
        self._timeout_s = _timeout_s(place.word)
        self._pool: urllib3.PoolManager | None = None

    def index(self, method: str, path: str = "", body: Any = None, **more: Any) -> Any:
        """`call` for a path below the index."""
        return self.call(method, f"/{quote(self.place.index, safe='')}{path}", body, **more)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        missing_ok: bool = False,
    ) -> Any:
        """The parsed answer; None for a 404 where `missing_ok`. body: JSON-like, or bytes of NDJSON.

        :raises BadRequest, SinkError: the server's last word.
        """
        url = f"{self.place.base}{path}{f'?{urlencode(params)}' if params else ''}"
        began, pause = time.monotonic(), FIRST_S
        while True:
            status, answer, after_s = self._once(method, url, body)
            if status < 300:
                return answer
            if status == 404 and missing_ok:
                return None
            if status not in AGAIN:
                raise self._final(status, answer)
            if time.monotonic() - began >= patience_s:
                raise SinkError(
                    f"{self.place.name}: {_reason(answer)}",
                    hint="see that the server is up, then run the same command again: it goes on where it stopped",
                )
            time.sleep((pause if after_s is None else after_s) + random.uniform(0, pause))
            pause = min(2 * pause, LONGEST_S)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _once(self, method: str, url: str, body: Any) -> tuple[int, Any, float | None]:
        """(HTTP status, answer, seconds the server asks to wait); 503 where there was no usable answer."""
        import orjson
        import urllib3

        if self._pool is None:
            self._pool = _pool(self.place.word)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        content = (
            body if body is None or isinstance(body, bytes) else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        )
        timeout = urllib3.Timeout(connect=min(CONNECT_S, self._timeout_s), read=self._timeout_s)
        try:
            reply = self._pool.request(method, url, body=content, headers=headers, timeout=timeout, retries=False)
            after = reply.headers.get("Retry-After", "")
            answer = orjson.loads(reply.data) if reply.data else None
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            return 503, f"no usable answer ({exc})", None
        except orjson.JSONDecodeError:
            if reply.status < 300:
                return 503, "no usable answer (not JSON)", None
            answer = reply.data[:300].decode("utf-8", "replace")
        return reply.status, answer, float(after) if after.isdecimal() else None

    def _final(self, status: int, answer: Any) -> SinkError:
        message = f"{self.place.name}: {status}: {_reason(answer)}"
        if status in _BAD:
            return BadRequest(message, status)
        word = self.place.word
        key = (
            f"set {word}_API_KEY, or {word}_USER and {word}_PASSWORD"
            if word == "ELASTIC"
            else f"set {word}_USER and {word}_PASSWORD"
        )
        hints = {401: key, 403: f"{key}, of one that may write there", 404: "it is gone; see who deleted it"}
        return SinkError(message, hint=hints.get(status))


def version_of(link: Link) -> tuple[int, ...]:
    """:raises UsageError: the other of the two servers answers, or one that is too old."""
    place, told = link.place, link.call("GET", "/", patience_s=FIRST_PATIENCE_S)["version"]
    is_open = told.get("distribution") == "opensearch"
    if is_open != place.opensearch:
        other, scheme = ("OpenSearch", "opensearch") if is_open else ("Elasticsearch", "elasticsearch")
        raise UsageError(f"{place.name}: that is {other}", hint=f"--to {scheme}://...")
    version = tuple(int(n) for n in str(told["number"]).split("-")[0].split("."))
    if version < LEAST[place.word]:
        least = ".".join(map(str, LEAST[place.word]))
        raise UsageError(f"{place.name}: version {told['number']}, at least {least} is needed")
    return version


def _reason(answer: Any) -> str:
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return reason_of(error)


def reason_of(error: Any) -> str:
    """Type and reason of an error object, its cause's too."""
    if not isinstance(error, dict):
        return str(error)[:500]
    text = f"{error.get('type')}: {error.get('reason')}"
    cause = error.get("caused_by")
    return (f"{text} ({reason_of(cause)})" if isinstance(cause, dict) else text)[:500]


def _authorization(word: str) -> dict[str, str]:
    key = os.environ.get("ELASTIC_API_KEY") if word == "ELASTIC" else None
    if key:
        return {"Authorization": f"ApiKey {key}"}
    user, password = os.environ.get(f"{word}_USER"), os.environ.get(f"{word}_PASSWORD")
    if user is None or password is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _timeout_s(word: str) -> int:
    text = os.environ.get(f"{word}_TIMEOUT_S", str(TIMEOUT_S))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{word}_TIMEOUT_S: {text!r} is not a whole number of seconds")
    return int(text)


def _pool(word: str) -> urllib3.PoolManager:
    """TLS is always verified; a certificate authority of one's own is named in `<word>_CA_CERTS`."""
    import urllib3

    return urllib3.PoolManager(maxsize=8, ca_certs=os.environ.get(f"{word}_CA_CERTS"))
