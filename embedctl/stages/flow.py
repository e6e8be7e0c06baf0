"""Bounded channels between the stages' threads, and the word to stop.

A channel is bounded by cost (bytes), never by items alone; one item always fits. Every wait ends: with an item, with
the other side's end, with its failure, or with a request to stop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from embedctl.errors import Interrupted

Item = TypeVar("Item")
_WAIT_S = 0.2


class Halt:
    """Shared by all stages of a run: a signal to obey, or the first failure of any of them."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def fail(self, failure: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or failure

    def check(self) -> None:
        """:raises Interrupted: a signal came. Or raises the first failure of another stage."""
        if self._failure is not None:
            raise self._failure
        if self.signum is not None:
            raise Interrupted(self.signum)


class Channel(Generic[Item]):
    """One writer thread, one reader thread."""

    def __init__(self, halt: Halt, max_cost: int) -> None:
        self._halt, self._max_cost = halt, max_cost
        self._items: deque[tuple[Item, int]] = deque()
        self._cost = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: Item, cost: int) -> None:
        with self._changed:
            while self._items and self._cost + cost > self._max_cost:
                self._halt.check()
                self._changed.wait(_WAIT_S)
            self._halt.check()
            self._items.append((item, cost))
            self._cost += cost
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def has_item(self) -> bool:
        """Whether the next item is there already."""
        with self._changed:
            return bool(self._items)

    def __iter__(self) -> Iterator[Item]:
        while True:
            with self._changed:
                while not self._items:
                    self._halt.check()
                    if self._closed:
                        return
                    self._changed.wait(_WAIT_S)
                self._halt.check()
                item, cost = self._items.popleft()
                self._cost -= cost
                self._changed.notify_all()
            yield item


class Meter:
    """Busy seconds of each stage. Every stage adds to its own name only."""

    STAGES = ("read", "tokenize", "encode", "write")

    def __init__(self) -> None:
        self.busy_s = dict.fromkeys(self.STAGES, 0.0)

    @contextmanager
    def busy(self, stage: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.busy_s[stage] += time.monotonic() - begin

    def timed(self, stage: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items, with the time to make each counted as the stage's."""
        while True:
            with self.busy(stage):
                item = next(items, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc]


_END: object = object()


@contextmanager
def stage(name: str, halt: Halt, body: Callable[[], None], patience_s: float = 0.3) -> Iterator[None]:
    """Run `body` in a thread for the length of the block; its failure stops everybody, and is raised at the end.

    `patience_s`: how long the thread may take to notice that the run is over."""

    def run() -> None:
        try:
            body()
        except BaseException as failure:
            halt.fail(failure)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
        while thread.is_alive():
            thread.join(_WAIT_S)
            halt.check()
        halt.check()
    except BaseException as failure:
        halt.fail(failure)
        thread.join(patience_s)  # a stage in a system call that does not return must not keep the process
        raise
