"""What a run tells its listeners. A run never prints: the command line, a log or a metrics file listens.

`Summary` is the one object that `--json` prints; its keys are documented in the README and versioned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

SUMMARY_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Totals so far. `rows_total` and `bytes_total` are None where the source cannot tell.

    `resumed_rows` were committed by an earlier run and are part of `rows`; `tokens` are this run's. `busy_s` holds the
    seconds each stage ("read", "tokenize", "encode", "write") has worked; the stage with most is the bottleneck.
    """

    rows: int
    rows_total: int | None
    resumed_rows: int
    bytes_read: int
    bytes_total: int | None
    tokens: int
    dead: int
    elapsed_s: float
    busy_s: Mapping[str, float]

    @property
    def bottleneck(self) -> str | None:
        return max(self.busy_s, key=lambda stage: self.busy_s[stage]) if any(self.busy_s.values()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The books: read = written + unchanged + skipped + duplicates + dead."""

    read: int = 0
    written: int = 0
    unchanged: int = 0
    skipped: int = 0
    duplicates: int = 0
    dead: int = 0

    def __add__(self, other: Rows) -> Rows:
        return Rows(**{k: getattr(self, k) + getattr(other, k) for k in self.__slots__})

    def balanced(self) -> bool:
        return self.read == self.written + self.unchanged + self.skipped + self.duplicates + self.dead

    def to_json(self) -> dict[str, int]:
        return {k: getattr(self, k) for k in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run ended. `seconds` holds "total" and the busy seconds of each stage. `padding` is padded tokens over
    real tokens, minus one. `details` holds what a command adds of its own (dead letters' file, plan, neighbours...)."""

    status: str
    exit_code: int
    destination: str
    recipe: str
    rows: Rows
    units: int
    tokens: int
    truncated: int
    padding: float
    seconds: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": SUMMARY_VERSION,
            "status": self.status,
            "exit_code": self.exit_code,
            "destination": self.destination,
            "recipe": self.recipe,
            "rows": self.rows.to_json(),
            "units": self.units,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "padding": round(self.padding, 6),
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            **self.details,
        }


class Listener(Protocol):
    """Hears a run. Called from the run's threads; must be quick and must not raise."""

    def progress(self, now: Progress) -> None: ...

    def note(self, message: str) -> None:
        """Something a user should know that is not an error: a take-over, a smaller budget, a fallback."""
        ...


class Silent:
    """The listener that hears nothing."""

    def progress(self, now: Progress) -> None:
        pass

    def note(self, message: str) -> None:
        pass
