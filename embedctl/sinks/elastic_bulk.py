"""Documents written by `_bulk`, every item's status read, so that the first position of an id stands.

Enters: records. Leaves: documents that are applied. A document is created; where there is one already, it is read, and
overwritten only if the gate lets it and only as long as it is still the one that was read (`if_seq_no`). So writers may
race, and a request may come twice. Refused items are named; those that were only turned away, with 429 or 503, are sent
again, they alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedctl.errors import SinkError
from embedctl.outputs import Sparse, Values
from embedctl.sinks.elastic_http import AGAIN, FIRST_S, LONGEST_S, PATIENCE_S, BadRequest, Link, reason_of
from embedctl.sinks.keyed_records import POS, Gate, Records, bits, sparse_rows
from embedctl.sinks.stores import PointId

MAX_BODY_BYTES = 8 << 20
_DONE = frozenset({200, 201, 404, 409})


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One action. row: the id to name it by. seq: (sequence number, primary term) that the document must still have."""

    action: str
    key: PointId
    row: str
    source: bytes | None = None
    seq: tuple[int, int] | None = None

    def lines(self) -> bytes:
        import orjson

        head: dict[str, Any] = {"_id": self.key}
        if self.seq is not None:
            head |= {"if_seq_no": self.seq[0], "if_primary_term": self.seq[1]}
        line = orjson.dumps({self.action: head}) + b"\n"
        return line if self.source is None else line + self.source + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A document that is there. position: its `_pos`, None where it has none."""

    position: int | None
    seq: tuple[int, int]


def put(link: Link, records: Records, gate: Gate, packed: Container[str]) -> None:
    """packed: names of outputs whose bits stand eight in a number.

    :raises SinkError: a row is refused, by name; or the server is, for too long."""
    sources = dict(zip(records.keys, _sources(records, packed), strict=True))
    rows = dict(zip(records.keys, (str(f["id"]) for f in records.fields), strict=True))
    todo = [Item(action="create", key=key, row=rows[key], source=source) for key, source in sources.items()]
    again = _Again(link)
    while True:
        contested = send(link, todo)
        if not contested:
            return
        there = look(link, [item.key for item in contested])
        todo = []
        for item in contested:
            found = there.get(item.key)
            if found is None:
                todo.append(Item(action="create", key=item.key, row=item.row, source=item.source))
            elif found.position is None:
                raise SinkError(f"{link.place.name}: document {item.key!r} there was not made by embedctl")
            elif gate.lets(found.position):
                todo.append(Item(action="index", key=item.key, row=item.row, source=item.source, seq=found.seq))
        if not todo:
            return
        again()


def delete(link: Link, keys: Sequence[PointId], positions: Sequence[int] | None) -> int:
    """Documents of these keys, of these positions only where they are given; how many there were."""
    allowed, gone = None if positions is None else set(positions), 0
    left = list(keys)
    again = _Again(link)
    while True:
        there = look(link, left)
        chosen = [
            Item(action="delete", key=key, row=str(key), seq=found.seq)
            for key, found in there.items()
            if allowed is None or found.position in allowed
        ]
        contested = send(link, chosen)
        gone += len(chosen) - len(contested)
        left = [item.key for item in contested]
        if not left:
            return gone
        again()


def look(link: Link, keys: Sequence[PointId]) -> dict[PointId, There]:
    """Those of the keys that have a document, as of now: refreshed or not."""
    if not keys:
        return {}
    answer = link.index("POST", "/_mget", {"ids": list(keys)}, params={"_source_includes": POS})
    found = {}
    for doc in answer["docs"]:
        if "error" in doc:
            raise SinkError(f"{link.place.name}: {reason_of(doc['error'])}")
        if doc.get("found"):
            position = doc.get("_source", {}).get(POS)
            found[doc["_id"]] = There(position=position, seq=(doc["_seq_no"], doc["_primary_term"]))
    return found


def send(link: Link, items: Sequence[Item]) -> list[Item]:
    """The items that met another version of their document; all others are applied, or there was nothing to delete."""
    contested: list[Item] = []
    for batch in _bodies(items):
        contested += _send(link, batch)
    return contested


def _send(link: Link, items: Sequence[Item]) -> list[Item]:
    contested: list[Item] = []
    again = _Again(link)
    while True:
        try:
            answer = link.index("POST", "/_bulk", b"".join(item.lines() for item in items))
        except BadRequest as exc:
            if exc.status != 413 or len(items) == 1:
                raise
            middle = len(items) // 2
            return contested + _send(link, items[:middle]) + _send(link, items[middle:])
        turned_away, text = [], ""
        for item, (status, error) in zip(items, _statuses(link, answer, len(items)), strict=True):
            if status == 409:
                contested.append(item)
            elif status in AGAIN:
                turned_away.append(item)
                text = reason_of(error)
            elif status not in _DONE or (status == 404 and item.action != "delete"):
                raise SinkError(f"{link.place.name}: row {item.row!r} was refused: {status}: {reason_of(error)}")
        if not turned_away:
            return contested
        items = turned_away
        again(text)


def _statuses(link: Link, answer: Any, count: int) -> Iterator[tuple[int, Any]]:
    found = answer.get("items") if isinstance(answer, Mapping) else None
    if found is None or len(found) != count:
        raise SinkError(f"{link.place.name}: {count} actions were sent, {len(found or ())} answered")
    for one in found:
        result = next(iter(one.values()))
        yield int(result["status"]), result.get("error")


class _Again:
    """Waits between two tries, longer each time, within a limit."""

    def __init__(self, link: Link) -> None:
        self._link, self._pause, self._deadline = link, FIRST_S, time.monotonic() + PATIENCE_S

    def __call__(self, why: str = "other writers keep changing the same documents") -> None:
        if time.monotonic() > self._deadline:
            raise SinkError(
                f"{self._link.place.name}: {why}",
                hint="see that the server has room, then run the same command again: it goes on where it stopped",
            )
        time.sleep(self._pause + random.uniform(0, self._pause))
        self._pause = min(2 * self._pause, LONGEST_S)


def _bodies(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Stretches of about MAX_BODY_BYTES."""
    batch: list[Item] = []
    size = 0
    for item in items:
        length = len(item.source or b"")
        if batch and size + length > MAX_BODY_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


def _sources(records: Records, packed: Container[str]) -> Iterator[bytes]:
    """Each record's JSON. Dense vectors are written from their arrays, without Python numbers between."""
    import orjson

    columns = {name: _column(values, name in packed) for name, values in records.outputs.items()}
    for i, fields in enumerate(records.fields):
        document = {**fields, **{name: values[i] for name, values in columns.items()}}
        yield orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _column(values: Values, packed: bool) -> Sequence[Any] | np.ndarray:
    if isinstance(values, Sparse):
        return [dict(zip(map(str, i.tolist()), v.tolist(), strict=True)) for i, v in sparse_rows(values)]
    assert isinstance(values, np.ndarray)
    return np.ascontiguousarray(bits(values).view(np.int8) if packed else values)
