"""What a Qdrant engine must do for the sink, embedded or behind a network: one collection, written, read, counted.

Filters are Qdrant's own, in the form of its REST interface, in plain Python values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from embedctl.outputs import Values
from embedctl.sinks.payload import Json
from embedctl.sinks.qdrant_where import Filter
from embedctl.sinks.stores import PointId

JOB, POS, HASH = "_job", "_pos", "_hash"
UNNAMED = ""
"""The name of a collection's only vector where it has none."""
RRF_K = 60
"""Reciprocal rank fusion: 1 / (k + rank), summed (Cormack, Clarke and Buettcher, 2009)."""
OVERSAMPLING = {"scalar": 1.5, "binary": 3.0, "product": 3.0}
"""How many more candidates than asked for are scored again with the vectors as they were, by kind of quantization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """One vector of a collection. size, distance (as Qdrant spells it) and datatype say nothing of a sparse one."""

    kind: Literal["dense", "sparse", "multivector"]
    size: int = 0
    distance: str = ""
    datatype: str = "float32"
    modifier: Literal["idf"] | None = None
    quantization: str | None = None


Layout = Mapping[str, Vector]
"""By name; UNNAMED where there is one without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What a new collection gets. create: the user asked for it. metadata: what `Engine.metadata` shall say. on_disk:
    of vectors; None: dense ones, while sparse ones, slow to search there, are in memory."""

    layout: Layout
    metadata: Mapping[str, str]
    create: bool
    on_disk: bool | None
    shards: int | None
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """ids, payloads: n of each. vectors: by name, n each."""

    ids: Sequence[PointId]
    vectors: Mapping[str, Values]
    payloads: Sequence[dict[str, Json]]


Plain = list[float] | list[list[float]] | tuple[list[int], list[float]]
"""A vector in Python numbers: dense, multivector, or a sparse one's indices and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A point read back. vectors: by name, those that it has."""

    id: PointId
    payload: Mapping[str, Any]
    vectors: Mapping[str, Plain]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A query: its vectors by name, several fused by reciprocal rank. pool: candidates of each before that."""

    vectors: Mapping[str, Plain]
    where: Filter | None
    limit: int
    pool: int
    exact: bool
    quantized: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A point and its score, higher or, for distances, lower the nearer."""

    id: PointId
    score: float
    payload: Mapping[str, Any]


class Engine(Protocol):
    """One collection. Every method but `close` raises SinkError for what the engine refuses or cannot do now."""

    name: str
    """For messages."""
    max_points: int
    max_bytes: int

    def layout(self) -> Layout | None:
        """None: no such collection."""
        ...

    def metadata(self) -> Mapping[str, Any]:
        """What `make` and `annotate` wrote beside the points."""
        ...

    def annotate(self, metadata: Mapping[str, str]) -> None:
        """Add to the metadata, durably."""
        ...

    def make(self, making: Making) -> None:
        """Create the collection, whole or not at all. :raises UsageError: it must be asked for, or cannot be so."""
        ...

    def index(self, fields: Sequence[tuple[str, str]]) -> None:
        """Payload indexes, (field, kind), those missing."""
        ...

    def begin(self) -> None:
        """The load starts: put off what slows it."""
        ...

    def upsert(self, batches: Iterator[Points], where: Filter) -> None:
        """Applied when this returns. A point there already is overwritten only where `where` holds for it."""
        ...

    def delete(self, where: Filter) -> None:
        """Points for which the filter holds, gone when this returns."""
        ...

    def flush(self) -> None:
        """What was applied is durable."""
        ...

    def count(self, where: Filter | None = None) -> int:
        """Points for which the filter holds, exactly; None: of all."""
        ...

    def scroll(self, after: PointId | None, limit: int, *, vectors: bool) -> tuple[list[Record], PointId | None]:
        """Points in the order of their ids, from `after` on; the id to go on from, None at the end."""
        ...

    def retrieve(self, ids: Sequence[PointId]) -> list[Record]:
        """Points of these ids that are there, whole, in any order."""
        ...

    def query(self, asks: Sequence[Ask]) -> list[list[Found]]:
        """The nearest points of each, best first."""
        ...

    def build(self) -> None:
        """The load is over: index what was put off and wait for it."""
        ...

    def close(self) -> None: ...
