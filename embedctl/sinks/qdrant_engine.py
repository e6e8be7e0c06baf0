"""What a Qdrant engine must do for the sink, embedded or behind a network: one collection, made, written, counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedctl.sinks.payload import Json
from embedctl.sinks.stores import PointId

JOB, POS = "_job", "_pos"
DATATYPES = ("float32", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A collection of one unnamed dense vector a point. distance: as Qdrant spells it. datatype: of DATATYPES."""

    size: int
    distance: str
    datatype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What a new collection gets. job: its tag. create: the user asked for it."""

    shape: Shape
    job: str
    create: bool
    quantization: str | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """ids, payloads: n of each. vectors: float32 or float16 (n, C)."""

    ids: Sequence[PointId]
    vectors: np.ndarray
    payloads: Sequence[dict[str, Json]]


class Engine(Protocol):
    """One collection. Every method but `close` raises SinkError for what the engine refuses or cannot do now."""

    name: str
    """For messages."""
    max_points: int
    max_bytes: int

    def shape(self) -> Shape | None:
        """None: no such collection."""
        ...

    def tag(self) -> str | None:
        """The job that `set_tag` or `make` wrote; None: none."""
        ...

    def set_tag(self, job: str) -> None: ...

    def make(self, making: Making) -> None:
        """Create the collection, whole or not at all. :raises UsageError: it must be asked for."""
        ...

    def index(self, fields: Sequence[tuple[str, str]]) -> None:
        """Payload indexes, (field, kind), those missing."""
        ...

    def begin(self) -> None:
        """The load starts: put off what slows it."""
        ...

    def upsert(self, batches: Iterator[Points], gate: int) -> None:
        """Applied when this returns. A point there already is overwritten only where its `_pos` is at least `gate`."""
        ...

    def delete(self, ids: Sequence[PointId], positions: Sequence[int]) -> None:
        """Points of these ids whose `_pos` is one of `positions`."""
        ...

    def flush(self) -> None:
        """What was applied is durable."""
        ...

    def count(self, job: str | None) -> int:
        """Points of the job, exactly; None: of all."""
        ...

    def count_others(self, job: str) -> int:
        """Points that are not the job's, exactly."""
        ...

    def build(self) -> None:
        """The load is over: index what was put off and wait for it."""
        ...

    def close(self) -> None: ...
