"""Every way to fail, in words: `error: what` and `  try: what next` on stderr, one object on stdout with `--json`.

An exception enters, an exit code leaves. A traceback is shown only with `EMBEDCTL_DEBUG=1`; that of an unexpected
error is otherwise written to a file, and the file is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from typer.exceptions import Abort, Exit, TyperException

from embedctl.errors import EmbedctlError, Interrupted
from embedctl.events import SUMMARY_VERSION

INTERRUPTED = 130
TERMINATED = 143
BROKEN_PIPE = 141
INTERNAL = 1
_KEPT = "_embedctl_traceback"


class Terminated(BaseException):
    """SIGTERM where no run obeys it. No `Exception`, so that nothing on the way takes it for a failure of its own."""


class Told(Exception):
    """A failure that stderr has told already, in its own format; `stdout`: and stdout, too."""

    def __init__(self, failure: BaseException, *, stdout: bool) -> None:
        super().__init__(str(failure))
        self.failure, self.stdout = failure, stdout


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within the block SIGTERM is told like any other end. A run has its own way to obey it."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def tell(exc: BaseException, args: Sequence[str]) -> int:
    """Say what went wrong; returns the exit code."""
    told = exc if isinstance(exc, Told) else None
    exc = told.failure if told else exc
    code, message, hint = words(exc, args)
    if "--json" in args and not (told and told.stdout):
        failure = {"version": SUMMARY_VERSION, "status": "error", "exit_code": code, "error": message, "hint": hint}
        _write(sys.stdout, json.dumps(failure))
    if message and not told:
        _write(sys.stderr, f"error: {message}")
    if hint and not told:
        _write(sys.stderr, f"  try: {hint}")
    if message and os.environ.get("EMBEDCTL_DEBUG"):
        traceback.print_exception(exc)
    return code


def words(exc: BaseException, args: Sequence[str]) -> tuple[int, str, str | None]:
    """Exit code, message, and what to try next."""
    if isinstance(exc, Interrupted):
        return 128 + exc.signum, str(exc), exc.hint
    if isinstance(exc, EmbedctlError):
        return exc.exit_code, str(exc), exc.hint
    if isinstance(exc, TyperException):
        return _usage(exc, args)
    if isinstance(exc, (Exit, SystemExit)):
        code = exc.exit_code if isinstance(exc, Exit) else exc.code
        return (code if isinstance(code, int) else INTERNAL), "", None
    if isinstance(exc, (KeyboardInterrupt, Abort, Terminated)):
        code = TERMINATED if isinstance(exc, Terminated) else INTERRUPTED
        return code, "interrupted; run the same command again to go on", None
    kept = vars(exc).get(_KEPT)  # asked twice, as for a log and for stderr, it is written once
    if kept is None and not os.environ.get("EMBEDCTL_DEBUG"):
        kept = vars(exc)[_KEPT] = _keep_traceback(exc)
    where = f"; the traceback is in {kept}" if kept else ""
    reason = " ".join(str(exc).split())
    return INTERNAL, f"internal error: {type(exc).__name__}: {reason}{where}", "report it with the traceback"


def _usage(exc: TyperException, args: Sequence[str]) -> tuple[int, str, str | None]:
    """A parser's complaint in our words, with the nearest option or command to type instead."""
    message = exc.message if getattr(exc, "possibilities", None) else exc.format_message()
    near = list(getattr(exc, "possibilities", None) or ())
    context = getattr(exc, "ctx", None)
    path = context.command_path if context is not None else " ".join(["embedctl", *args[:1]])
    if match := re.search(r"\.? Did you mean (.*)\?$", message, re.DOTALL):
        message, near = message[: match.start()], [f"{path} {match[1].split(', ')[0].strip(chr(39))}"]
    hint = near[0] if near else f"{path} --help"
    if match := re.match(r"No such command '(.*)'", message):
        hint = f"embedctl embed {match[1]}" if _is_input(match[1]) else hint
    message = message.strip().removesuffix(".")
    return exc.exit_code, message[:1].lower() + message[1:], hint if message else None


def _is_input(word: str) -> bool:
    return Path(word).exists() or "/" in word or "." in word


def _keep_traceback(exc: BaseException) -> str:
    try:
        handle, name = tempfile.mkstemp(prefix="embedctl-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            traceback.print_exception(exc, file=file)
    except OSError:
        return "nowhere, as no temporary file could be written; EMBEDCTL_DEBUG=1 shows it"
    return name


def _write(stream: object, line: str) -> None:
    """Errors come last: a stream that is closed or cannot encode the text must not hide the exit code."""
    with contextlib.suppress(OSError, ValueError):
        print(line.encode("utf-8", "backslashreplace").decode("utf-8"), file=stream, flush=True)  # type: ignore[call-overload]
