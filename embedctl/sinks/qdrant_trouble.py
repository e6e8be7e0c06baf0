"""What a Qdrant server's refusals mean: try again, stop, or look for the row that it is.

Enters: a call. Leaves: its result, or a `SinkError`. Tried again, with backoff and jitter or after the time the server
names: 429 and what is overloaded, out of time, unreachable or cut off. Not tried again: a quota that is full, a bad
request, a missing key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from embedctl.errors import SinkError

FIRST_S, LONGEST_S = 0.1, 15.0
_T = TypeVar("_T")
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_LATE = frozenset({408, 504})
_BAD = frozenset({400, 413, 422})
_GRPC = {
    "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 408, "ABORTED": 503, "INTERNAL": 500, "CANCELLED": 503, "UNKNOWN": 520,
    "RESOURCE_EXHAUSTED": 507, "UNIMPLEMENTED": 501, "INVALID_ARGUMENT": 400, "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "ALREADY_EXISTS": 409,
}  # fmt: skip


class BadRequest(SinkError):
    """The server will never take this request as it is."""


class TooSlow(SinkError):
    """The server did not end in time, twice; less at once may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """status: HTTP's, or gRPC's nearest. after_s: when the server asks to be tried again."""

    status: int
    text: str
    after_s: float | None = None


def patiently(name: str, call: Callable[[], _T], patience_s: float, *, divisible: bool = False) -> _T:
    """The call's result, tried again while it is worth it and at most `patience_s` long.

    :raises TooSlow: out of time twice, where the caller can ask for less at once (`divisible`).
    :raises BadRequest, SinkError: the server's last word.
    """
    began, pause, late = time.monotonic(), FIRST_S, 0
    while True:
        try:
            return call()
        except Exception as exc:
            trouble = _trouble(exc)
            if trouble is None:
                raise
            if trouble.status not in _AGAIN:
                raise _final(name, trouble) from exc
            late += trouble.status in _LATE
            if divisible and late == 2:
                raise TooSlow(f"{name}: {trouble.text}") from exc
            if time.monotonic() - began >= patience_s:
                raise SinkError(
                    f"{name}: {trouble.text}",
                    hint="see that the server is up, then run the same command again: it goes on where it stopped",
                ) from exc
        asked = trouble.after_s if trouble.after_s is not None else pause
        time.sleep(asked + random.uniform(0, pause))
        pause = min(2 * pause, LONGEST_S)


def _final(name: str, trouble: Trouble) -> SinkError:
    if trouble.status in _BAD:
        return BadRequest(f"{name}: {trouble.text}")
    hints = {
        401: "set QDRANT_API_KEY", 403: "set QDRANT_API_KEY to a key that may write",
        507: "make room on the server, then run the same command again: it goes on where it stopped",
    }  # fmt: skip
    return SinkError(f"{name}: {trouble.text}", hint=hints.get(trouble.status))


def _trouble(exc: Exception) -> Trouble | None:
    """None: not the server's doing."""
    import grpc  # type: ignore[import-untyped]
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

    if isinstance(exc, ResourceExhaustedResponse):
        return Trouble(status=429, text=str(exc), after_s=float(exc.retry_after_s))
    if isinstance(exc, grpc.RpcError):
        code = getattr(exc, "code", lambda: None)()
        details = getattr(exc, "details", lambda: None)() or str(exc)
        word = code.name if code is not None else "UNKNOWN"
        return Trouble(status=_GRPC.get(word, 400), text=f"{word}: {details}"[:500])
    if isinstance(exc, UnexpectedResponse):
        body = exc.content.decode("utf-8", "replace")
        return Trouble(status=exc.status_code or 500, text=f"{exc.status_code} {exc.reason_phrase}: {body}"[:500])
    if isinstance(exc, ResponseHandlingException):
        return Trouble(status=503, text=f"no usable answer ({exc.source})"[:500])
    if isinstance(exc, (TimeoutError, ConnectionError)):
        return Trouble(status=408, text=str(exc))
    return None
