"""What a run has done so far, for progress: rows, tokens, bytes, kept up to date record by record."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from embedctl.events import Listener, Progress, Rows
from embedctl.job import finalise as ending
from embedctl.ledger.segments import Contents
from embedctl.plan import Plan
from embedctl.records import Segment, WindowRecord
from embedctl.stages.flow import Meter

PROGRESS_EVERY_S = 0.2


@dataclass(slots=True)
class Tally:
    """`rows` are the books so far, `resumed` what of them an earlier run did, `tokens` this run's."""

    plan: Plan
    listener: Listener
    meter: Meter
    began: float
    rows: Rows = field(default_factory=Rows)
    resumed: Rows = field(default_factory=Rows)
    tokens: int = 0
    _in_hand: int = 0
    _first: int = 1
    _told_at: float = 0.0
    _bytes_read: int = 0
    _bytes_total: int | None = None
    _rows_total: int | None = None

    def __post_init__(self) -> None:
        if self.plan.changes is not None:
            return
        if all(f.format in ("jsonl", "text") and not f.compression and f.size_bytes for f in self.plan.files):
            self._bytes_total = sum(f.size_bytes for f in self.plan.files)
        self._rows_total = _count_rows(self.plan)

    def begin(self, contents: Contents) -> None:
        """Start from what the ledger holds."""
        self.rows = self.resumed = ending.totals(contents)
        self._first = ending.first_generation(contents)
        self._bytes_read = sum(map(self._bytes_of, contents.windows.values()))

    def committed(self, record: WindowRecord) -> None:
        self.rows += ending.rows_of(record, self._first)
        self._bytes_read += self._bytes_of(record)
        self._in_hand = max(0, self._in_hand - sum(b.read for b in record.books))
        self.listener.progress(self._progress())

    def encoded(self, num_tokens: int, num_sequences: int) -> None:
        """After every batch: progress between commits, a few times a second."""
        self.tokens += num_tokens
        self._in_hand += num_sequences
        if time.monotonic() - self._told_at > PROGRESS_EVERY_S:
            self._told_at = time.monotonic()
            self.listener.progress(self._progress())

    def _progress(self) -> Progress:
        return Progress(
            rows=self.rows.read + self._in_hand,
            rows_total=self._rows_total,
            resumed_rows=self.resumed.read,
            bytes_read=self._bytes_read,
            bytes_total=self._bytes_total,
            tokens=self.tokens,
            dead=self.rows.dead,
            elapsed_s=time.monotonic() - self.began,
            busy_s=dict(self.meter.busy_s),
        )

    def _bytes_of(self, record: WindowRecord) -> int:
        """Bytes of line files between the window's ends; meaningless, and unused, for other formats."""
        if self._bytes_total is None:
            return 0
        segments = self.plan.slices[record.key.slice].segments
        begin, end = record.begin, record.end
        if begin.segment == end.segment:
            return end.position - begin.position
        whole = sum(self._length(s) for s in segments[begin.segment : end.segment])
        rest = end.position - segments[end.segment].begin if end.segment < len(segments) else 0
        return whole - (begin.position - segments[begin.segment].begin) + rest

    def _length(self, segment: Segment) -> int:
        return (self.plan.files[segment.file].size_bytes if segment.end is None else segment.end) - segment.begin


def _count_rows(plan: Plan) -> int | None:
    """Rows that will be read, where the formats and `--limit` tell."""
    counted, limit = sum(ending.planned_rows(plan).values()) or None, plan.spec["limit"]
    if plan.spec["sample"] is not None or (limit is None and counted is None):
        return None
    return min(n for n in (counted, limit) if n is not None)
