"""Vectors -> sink -> ledger: the one place where a window becomes done.

Enters: an `Encoded` window. Leaves: its `WindowRecord`, after the outputs are durable in the sink and the record in the
ledger, in this order. A row dies or lives whole: one failed unit withholds all of its row's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from embedctl.ledger import dead, hashes
from embedctl.ledger.segments import Ledger
from embedctl.outputs import Outputs, Values, take
from embedctl.plan import Plan
from embedctl.records import DeadRow, FileBooks, Window, WindowOutput, WindowRecord
from embedctl.sinks.base import Hashed, Sink
from embedctl.stages.encode import Encoded
from embedctl.stages.rank import Ranking
from embedctl.storage import Storage

Pool = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Chunk vectors, document of each (ascending from 0), weights -> a vector a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRules:
    """store: an output's name, its values in float32 -> (values in the stored type, bad rows by reason). pool:
    None without `--chunk-pool`. candidates: how those of a query are ranked, where rows hold some."""

    store: Callable[[str, Values], tuple[Values, dict[int, str]]]
    pool: Pool | None
    candidates: Ranking | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Everything a commit touches.

    `check_dead`, `check_source` and `check_lease` raise when the window may not be committed.
    """

    plan: Plan
    storage: Storage
    sink: Sink
    ledger: Ledger
    rules: VectorRules
    check_dead: Callable[[Sequence[DeadRow]], None]
    check_source: Callable[[Sequence[int]], None]
    check_lease: Callable[[], None]

    def commit(self, encoded: Encoded) -> tuple[WindowRecord, tuple[DeadRow, ...]]:
        """:raises SourceChanged, SinkError, Locked: nothing of the window may be taken as done."""
        output = assemble(encoded, self.plan, self.rules)
        self._check(output)
        self._remember_budgets(encoded)
        return self._write(output)

    def commit_output(self, output: WindowOutput) -> tuple[WindowRecord, tuple[DeadRow, ...]]:
        """A window that needed no encoder. :raises SourceChanged, SinkError, Locked: as `commit`."""
        self._check(output)
        return self._write(output)

    def _check(self, output: WindowOutput) -> None:
        self.check_dead(output.dead)
        self.check_source([b.file for b in output.record.books])
        self.check_lease()

    def _write(self, output: WindowOutput) -> tuple[WindowRecord, tuple[DeadRow, ...]]:
        dead.put(self.storage, output.record.key, output.dead, self.plan.files)
        if output.hashes is not None and not isinstance(self.sink, Hashed):
            hashes.put(self.storage, output.record.key, output.hashes)
        record = self.sink.write(output)
        self.check_lease()
        self.ledger.append(record)
        return record, output.dead

    def _remember_budgets(self, encoded: Encoded) -> None:
        """Batches that did not fit are smaller in later windows, on every resume."""
        after = [encoded.last.generation, encoded.last.slice, encoded.last.window]
        for number, (feed, budget) in enumerate(zip(encoded.prepared.feeds, encoded.budgets, strict=True)):
            if budget < feed.batch_tokens:
                self.ledger.append({"kind": "budget", "after": after, "batch_tokens": budget, "pass": number})


def assemble(encoded: Encoded, plan: Plan, rules: VectorRules) -> WindowOutput:
    """Pure: live rows' units in input order, books settled."""
    window, units = encoded.prepared.window, encoded.prepared.units
    lengths = units.tokenized.lengths[units.sequence]
    alive = _alive(len(window.ids), encoded.reasons)[units.document]
    document, number = units.document[alive], units.number[alive]
    outputs = {name: take(values, units.sequence[alive]) for name, values in encoded.outputs.items()}
    tokens, truncated = lengths[alive], units.tokenized.truncated[units.sequence[alive]]
    begin, end = units.begin[alive], units.end[alive]
    if rules.pool is not None:
        outputs, document, tokens, truncated = _pooled(outputs, document, tokens, truncated, rules.pool)
    stored, bad = _stored(outputs, rules)
    if bad:
        reasons = encoded.reasons | {int(document[i]): reason for i, reason in bad.items()}
        return assemble(replace(encoded, reasons=reasons), plan, rules)
    died = dead_rows(window, encoded.reasons)
    output = WindowOutput(
        record=record_of(
            window,
            died,
            units=len(document),
            tokens=int(tokens.sum()),
            padded_tokens=encoded.padded_tokens,
            truncated=int(truncated.sum()),
        ),
        ids=[window.ids[d] for d in document.tolist()],
        positions=window.positions[np.unique(document)] if plan.id_column else None,
        outputs=stored,
        kept=window.kept.take(pa.array(document)),
        token_count=tokens,
        truncated=truncated,
        chunk=number if plan.chunked else None,
        char_start=begin if plan.chunked else None,
        char_end=end if plan.chunked else None,
        dead=tuple(sorted((*window.dead, *died), key=lambda d: (d.file, d.position))),
        hashes=None if window.hashes is None else window.hashes[np.unique(document)],
    )
    return output if rules.candidates is None else rules.candidates(output, window.texts, document)


def _pooled(
    outputs: Outputs, document: np.ndarray, tokens: np.ndarray, truncated: np.ndarray, pool: Pool
) -> tuple[dict[str, Values], np.ndarray, np.ndarray, np.ndarray]:
    """One unit a row: its vectors, its row, its tokens, and whether any of its chunks was cut."""
    rows, inverse = np.unique(document, return_inverse=True)
    return (
        {name: pool(np.asarray(values), inverse.astype(np.int64), tokens) for name, values in outputs.items()},
        rows,
        np.bincount(inverse, weights=tokens, minlength=len(rows)).astype(np.int64),
        np.bincount(inverse, weights=truncated, minlength=len(rows)) > 0,
    )


def _stored(outputs: Outputs, rules: VectorRules) -> tuple[dict[str, Values], dict[int, str]]:
    stored: dict[str, Values] = {}
    bad: dict[int, str] = {}
    for name, values in outputs.items():
        stored[name], found = rules.store(name, values)
        bad |= found
    return stored, bad


def _alive(count: int, reasons: dict[int, str]) -> np.ndarray:
    alive = np.ones(count, dtype=bool)
    alive[np.fromiter(reasons, dtype=np.int64, count=len(reasons))] = False
    return alive


def dead_rows(window: Window, reasons: dict[int, str]) -> list[DeadRow]:
    """Live rows of the window, by number, that died for these reasons."""
    return [
        DeadRow(
            file=int(window.files[row]),
            position=int(window.positions[row]),
            id=window.ids[row],
            reason=reason,
            raw=window.raw[row].decode("utf-8", "backslashreplace") if window.raw else None,
        )
        for row, reason in sorted(reasons.items())
    ]


def record_of(
    window: Window, died: Sequence[DeadRow], *, units: int, tokens: int, padded_tokens: int, truncated: int
) -> WindowRecord:
    """The window's record, rows that died after it was read moved from written to dead."""
    lost: dict[int, int] = {}
    for row in died:
        lost[row.file] = lost.get(row.file, 0) + 1
    books = tuple(
        FileBooks(
            file=b.file,
            read=b.read,
            written=b.written - lost.get(b.file, 0),
            skipped=b.skipped,
            duplicates=b.duplicates,
            dead=b.dead + lost.get(b.file, 0),
        )
        for b in window.books
    )
    return WindowRecord(
        key=window.key,
        begin=window.begin,
        end=window.end,
        last=window.last,
        books=books,
        units=units,
        tokens=tokens,
        padded_tokens=padded_tokens,
        truncated=truncated,
        replay=window.replay,
    )
