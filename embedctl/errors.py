"""Every error a user can meet, each with its exit code and the next thing to type.

    EmbedctlError                     1   internal
    ├── UsageError                    2   flags, config, unknown column
    │   └── ModelError                2   model not found, or something in its folder is not understood
    ├── SourceError                   4   missing, unreadable
    │   └── SourceChanged             4   content differs from what the plan saw
    ├── SinkError                     5   could not write (disk full, refused)
    ├── PlanMismatch                  6   plan, recipe or replay differs
    ├── Locked                        7   another run holds the destination
    ├── GuardRefused                  8   a guard said no (too many dead rows, deletes)
    ├── LimitReached                  9   stopped cleanly, more to do
    ├── EncoderError                 10   the encoder or its thread failed
    │   ├── OutOfDeviceMemory        10   Transient: halve the batch and try again
    │   └── UnreadableInput          10   some rows of a batch are no picture or sound: they die, the others go on
    ├── BooksError                   11   verify or the books failed
    └── Interrupted             130/143   a signal stopped the run

`Transient` marks what is worth a retry. All else is terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

EXIT_OK = 0
EXIT_NEW_DEAD = 3
RESUMABLE = frozenset({5, 7, 9, 10, 130, 143})
STOPPED = frozenset({130, 143})
"""By whoever watches, who wants nothing more to be done."""
EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "internal error",
    2: "usage or configuration",
    3: "done, with new dead letters",
    4: "source missing, unreadable or changed",
    5: "sink failed: disk full, refused",
    6: "plan, recipe or replay mismatch",
    7: "another run holds the destination",
    8: "a guard refused: `--max-dead`, deletes, minimum rows",
    9: "limit reached, more to do",
    10: "encoder or endpoint failed",
    11: "verify or the books failed",
    130: "interrupted by SIGINT",
    143: "interrupted by SIGTERM",
}
"""Every code a command ends with, and no other; they do not change."""
SEVERITY = (0, 9, 3, 7, 8, 4, 5, 10, 6, 2, 11, 1, 130, 143)
"""From good to bad, for several jobs in one command: what heals by itself comes before what a person must mend."""


def worst(codes: Iterable[int]) -> int:
    """The gravest of these exit codes; 0 where there is none."""
    return max(codes, key=lambda code: SEVERITY.index(code) if code in SEVERITY else len(SEVERITY), default=EXIT_OK)


class EmbedctlError(Exception):
    """Base of all. `hint` is the next command or change that helps, shown under the message."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


class Transient(EmbedctlError):
    """Mixin: the same call may succeed when tried again."""


class UsageError(EmbedctlError):
    exit_code = 2


class ModelError(UsageError):
    pass


class SourceError(EmbedctlError):
    exit_code = 4


class SourceChanged(SourceError):
    pass


class SinkError(EmbedctlError):
    exit_code = 5


class PlanMismatch(EmbedctlError):
    exit_code = 6


class Locked(EmbedctlError):
    exit_code = 7


class GuardRefused(EmbedctlError):
    exit_code = 8


class LimitReached(EmbedctlError):
    exit_code = 9


class EncoderError(EmbedctlError):
    exit_code = 10


class OutOfDeviceMemory(EncoderError, Transient):
    exit_code = 10


class UnreadableInput(EncoderError):
    """`reasons`: of a batch's sequences, by their number in it, those that cannot be read, and why."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(next(iter(reasons.values())))
        self.reasons = dict(reasons)


class BooksError(EmbedctlError):
    exit_code = 11


class Interrupted(EmbedctlError):
    """Raised inside a run that a signal asked to stop; `signum` gives the exit code 128 + signum."""

    exit_code = 130

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted; run the same command again to go on")
        self.signum = signum


def _rebuilt(kind: type[EmbedctlError], args: tuple[Any, ...], state: dict[str, Any]) -> EmbedctlError:
    """An error as it was in another process, its hint included."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
