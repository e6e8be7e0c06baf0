"""What a finished job leaves in its store, so that its state can be rebuilt there: plans, windows, events; no text.

Enters: a destination's state. Leaves: JSON, kept by the store beside its points, and the same read back. A manifest too
large for a store's metadata is not kept: the state can then not be rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embedctl import plan as plans
from embedctl.codec import Json, record_from_json, record_to_json
from embedctl.errors import SinkError
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import WindowRecord
from embedctl.sinks.base import Remembering, Sink
from embedctl.storage import LocalStorage

MAX_CHARACTERS = 32 << 20
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    plans: tuple[Plan, ...]
    records: tuple[WindowRecord, ...]
    events: tuple[Json, ...]


def keep(storage: LocalStorage, ledger: Ledger, sink: Sink) -> None:
    """After a generation is finished. A sink that remembers nothing is fine."""
    if not isinstance(sink, Remembering):
        return
    newest = plans.load(storage)
    every = (plans.load(storage, g) for g in range(1, 1 + (newest.generation if newest else 0)))
    contents = ledger.contents
    content: dict[str, Any] = {
        "version": VERSION,
        "plans": [p.to_json() for p in every if p is not None],
        "records": [record_to_json(contents.windows[k]) for k in sorted(contents.windows)],
        "events": contents.events,
    }
    text = json.dumps(content, separators=(",", ":"))
    sink.remember(text if len(text) <= MAX_CHARACTERS else "")


def read(text: str, name: str) -> Manifest:
    """:raises SinkError: not readable, or written by a newer embedctl. :raises PlanMismatch: so is one of its plans."""
    try:
        content = json.loads(text)
    except ValueError as exc:
        raise SinkError(f"{name}: what it says of its job is not readable ({exc})") from exc
    if content["version"] != VERSION:
        raise SinkError(
            f"{name}: what it says of its job has format {content['version']}, this embedctl reads {VERSION}",
            hint="pip install --upgrade embedctl",
        )
    records: Sequence[Json] = content["records"]
    return Manifest(
        plans=tuple(map(Plan.from_json, content["plans"])),
        records=tuple(map(record_from_json, records)),
        events=tuple(content["events"]),
    )
