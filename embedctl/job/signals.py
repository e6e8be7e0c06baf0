"""SIGINT and SIGTERM: the first asks the run to stop within seconds, the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from embedctl.errors import Interrupted
from embedctl.stages.flow import Halt

GRACE_S = 3.5
LAST_WORDS_S = 1.0


@contextlib.contextmanager
def obeyed(halt: Halt, last_words: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the block a signal is put into `halt`. When the run has not ended `GRACE_S` later, the main thread is
    thrown out of whatever it waits for; when that does not help either, the process ends.

    Every commit can be killed at any point, so ending hard loses only the window in hand. `last_words` frees the locks.

    :raises Interrupted: a signal came, and nothing took notice of `halt` in time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    overdue, ended = threading.Event(), threading.Event()
    main_thread = threading.get_ident()

    def leave(signum: int) -> None:
        overdue.set()
        signal.pthread_kill(main_thread, signum)
        if ended.wait(LAST_WORDS_S):
            return
        with contextlib.suppress(Exception):
            last_words()
        os._exit(128 + signum)

    def handle(signum: int, _frame: FrameType | None) -> None:
        if overdue.is_set():
            overdue.clear()
            raise Interrupted(signum)
        if halt.signum is not None:
            os._exit(128 + signum)
        halt.signum = signum
        timer = threading.Timer(GRACE_S, leave, (signum,))
        timer.daemon = True
        timer.start()
        timers.append(timer)

    timers: list[threading.Timer] = []
    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        ended.set()
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
