"""Several worker processes over one list of tasks, by work stealing; a killed worker's tasks go to the others.

Enters: task numbers and a function that a process runs. Leaves: when every task is finished. The parent deals tasks one
by one, so that it always knows who holds what. Never hangs: every wait has an end, and the last worker's death is an
error.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from embedctl.errors import EmbedctlError, EncoderError
from embedctl.stages.flow import Halt

_WAIT_S = 0.2
_PATIENCE_S = 3.0

Report = Callable[[Any], None]
"""Sends something picklable to the parent's `on_report`."""
Work = Callable[[int, Iterator[int], Report, Halt], None]
"""(worker's number, its tasks as they are dealt, report, halt). Runs in a process of its own."""


@dataclass(slots=True)
class _Worker:
    number: int
    process: BaseProcess
    link: Connection
    tasks: set[int] = field(default_factory=set)
    waiting: bool = False


def share(
    tasks: Sequence[int],
    count: int,
    work: Work,
    *,
    halt: Halt,
    on_report: Callable[[int, Any], int | None],
    note: Callable[[str], None],
) -> None:
    """Run `work` (picklable) in `count` processes until all tasks are finished.

    on_report: (worker, what it reported) -> the task that this finishes, or None.

    :raises EmbedctlError: the first that a worker reports; or `EncoderError` when all have died. Or what `halt` holds.
    """
    context = multiprocessing.get_context("spawn")
    crew = [_start(context, number, work) for number in range(count)]
    left, alive = deque(tasks), {w.number: w for w in crew}
    try:
        while alive:
            halt.check()
            for worker in _heard(alive.values()):
                _listen(worker, alive, left, on_report, note)
            for worker in list(alive.values()):
                _deal(worker, left, others=any(w.tasks for w in alive.values()))
        if left:
            raise EncoderError(
                f"all {count} workers died; {len(left)} slices are left", hint="run the same command again: it goes on"
            )
    finally:
        _dismiss(crew)


def _start(context: multiprocessing.context.SpawnContext, number: int, work: Work) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(number, work, theirs), name=f"worker-{number}", daemon=True)
    process.start()
    theirs.close()
    return _Worker(number=number, process=process, link=ours)


def _heard(crew: Sequence[_Worker] | Any) -> list[_Worker]:
    by_link = {worker.link: worker for worker in crew}
    return [by_link[link] for link in wait(list(by_link), timeout=_WAIT_S) if isinstance(link, Connection)]


def _listen(
    worker: _Worker,
    alive: dict[int, _Worker],
    left: deque[int],
    on_report: Callable[[int, Any], int | None],
    note: Callable[[str], None],
) -> None:
    try:
        kind, content = worker.link.recv()
    except (EOFError, OSError):
        _bury(worker, alive, left, note)
        return
    if kind == "next":
        worker.waiting = True
    elif kind == "failed":
        raise pickle.loads(content)
    else:
        finished = on_report(worker.number, content)
        if finished is not None:
            worker.tasks.discard(finished)


def _bury(worker: _Worker, alive: dict[int, _Worker], left: deque[int], note: Callable[[str], None]) -> None:
    worker.process.join(_PATIENCE_S)
    del alive[worker.number]
    if worker.process.exitcode != 0:
        left.extendleft(sorted(worker.tasks, reverse=True))
        note(f"worker {worker.number} died ({_cause(worker.process.exitcode)}); its slices go to the others")


def _cause(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _deal(worker: _Worker, left: deque[int], *, others: bool) -> None:
    """Answer a worker that waits: with a task, or with the end when nobody holds one that could come back."""
    if not worker.waiting or (not left and others):
        return
    task = left.popleft() if left else None
    worker.waiting = False
    with contextlib.suppress(OSError):  # its death is heard on the next round
        worker.link.send(task)
    if task is not None:
        worker.tasks.add(task)


def _dismiss(crew: Sequence[_Worker]) -> None:
    for worker in crew:
        worker.link.close()  # a worker that reads its link then knows that it is over
    for worker in crew:
        worker.process.join(_PATIENCE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _child(number: int, work: Work, link: Connection) -> None:
    """A worker's life. Signals are the parent's to handle; a parent that is gone ends the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lock, halt = threading.Lock(), Halt()

    def send(kind: str, content: Any) -> None:
        try:
            with lock:
                link.send((kind, content))
        except OSError:
            halt.signum = signal.SIGTERM

    def tasks() -> Iterator[int]:
        while True:
            send("next", None)
            while not link.poll(_WAIT_S):
                halt.check()
            try:
                task = link.recv()
            except (EOFError, OSError):
                return
            if task is None:
                return
            yield task

    try:
        work(number, tasks(), lambda content: send("report", content), halt)
    except EmbedctlError as failure:
        send("failed", _picklable(failure))
    except BaseException as failure:
        send("failed", _picklable(EncoderError(f"worker {number}: {type(failure).__name__}: {failure}")))
    link.close()


def _picklable(failure: EmbedctlError) -> bytes:
    try:
        content = pickle.dumps(failure)
        pickle.loads(content)
        return content
    except Exception:
        return pickle.dumps(EncoderError(str(failure)))
