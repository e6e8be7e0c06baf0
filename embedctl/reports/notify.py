"""A webhook: the outcome of a run as one JSON object, POSTed. Tried a few times within a bound, then given up.

Enters: the address, which may hold secrets (user and password become Basic authentication), and an `Outcome`. Leaves:
None, or why it was not taken, with no more of the address than its host. Redirects are not followed: a POST would
become a GET on the way.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from embedctl import __version__
from embedctl.reports.outcome import Outcome

TIMEOUT_S = 10.0
TRIES = 3
PAUSE_S = 1.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


def post(url: str, outcome: Outcome, *, tries: int = TRIES, timeout_s: float = TIMEOUT_S) -> str | None:
    """Send it; None when a 2xx came back, else the reason. Never raises for what the network or the host does.

    `text` in the object is one line, which chat services show.
    """
    body = json.dumps({**outcome.to_json(), "text": outcome.sentence()}).encode()
    try:
        request, host = _request(url, body)
    except ValueError:
        return "the address given with --notify-url is not a valid one"
    opener = urllib.request.build_opener(_NoRedirect)
    reason = ""
    for left in reversed(range(tries)):
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                answer.read(1024)
            return None
        except urllib.error.HTTPError as exc:
            reason, again = f"{host} answered {exc.code}", exc.code in _AGAIN
            exc.close()
        except (OSError, http.client.HTTPException) as exc:
            reason, again = f"{host}: {_cause(exc)}", True
        if not again:
            break
        if left:
            time.sleep(PAUSE_S * 2 ** (tries - 1 - left))
    return f"the summary was not delivered: {reason}"


def _request(url: str, body: bytes) -> tuple[urllib.request.Request, str]:
    """The request, and the host to name in messages. :raises ValueError: no valid address."""
    parts = urlsplit(url)
    host = parts.hostname
    if not host:
        raise ValueError(url)
    place = f"[{host}]" if ":" in host else host
    netloc = f"{place}:{parts.port}" if parts.port else place
    clean = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
    headers = {"Content-Type": "application/json", "User-Agent": f"embedctl/{__version__}"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
    return urllib.request.Request(clean, data=body, headers=headers, method="POST"), netloc


def _cause(exc: BaseException) -> str:
    """A library's message may quote the address; the kind of failure is enough."""
    inner = exc.reason if isinstance(exc, urllib.error.URLError) and isinstance(exc.reason, BaseException) else exc
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__
