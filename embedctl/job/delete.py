"""`delete`: rows out of a finished destination by id, as a new generation; the books follow.

Enters: a destination and ids. Leaves: windows in a later revision without those rows, counted as skipped, so that the
command that made them stays a no-op. The ids are durable before the first row goes: a killed delete is finished by the
next one. A store that embedctl did not fill loses the points themselves. Refused: a job that is not finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from embedctl import failpoints, registry
from embedctl import plan as plans
from embedctl.codec import dead_from_json
from embedctl.errors import PlanMismatch, SourceError, UsageError
from embedctl.events import Listener
from embedctl.job import adopt, manifest
from embedctl.job import finalise as ending
from embedctl.job.delete_list import name_of
from embedctl.job.destination import Destination, open_existing, open_source, refuse_lost
from embedctl.job.signals import obeyed
from embedctl.job.sync_drop import file_of, keep_hashes
from embedctl.ledger import dead, locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.records import FileBooks, WindowRecord
from embedctl.sinks.base import Deletable
from embedctl.sources.files import discover
from embedctl.sources.schema import read_schemas, resolve_schema
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt
from embedctl.storage import LocalStorage

EXAMPLES = 5


def read_ids(path: Path, column: str | None = None) -> list[str]:
    """Ids of a file, each once, in order: one a line of text, else the id column of Parquet, JSONL, CSV, ....

    :raises SourceError: it cannot be read, or a row has no id. :raises UsageError: no such column, or no id at all.
    """
    file = discover([str(path)], None if path.suffix and path.suffix != ".ids" else "text")[0]
    if file.format == "text":
        found = [line.strip() for line in _text(path).splitlines()]
    else:
        reader = registry.get("formats", file.format)()
        schemas = read_schemas([file], {file.format: reader})
        name = column or _only(schemas[0].schema.names)
        schema = resolve_schema([file], {file.format: reader}, text_columns=(), id_column=name, schemas=schemas).schema
        found = list(_cells(file, reader, schema))
    ids = list(dict.fromkeys(i for i in found if i))
    if not ids:
        raise UsageError(f"--ids: {path} holds no id", hint="one id a line")
    return ids


def delete(
    destination: str, ids: Sequence[str], *, state: str | None = None, dry_run: bool = False, listener: Listener
) -> dict[str, Any]:
    """JSON-ready: how many rows and vectors went, and ids that were not there.

    :raises PlanMismatch: the job there is not finished. And all that a sink raises.
    """
    began, halt = time.monotonic(), Halt()
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)), ExitStack() as stack:
        plan, found = _opened(JobSpec(to=destination, state=state))
        stack.callback(found.storage.drop_own_scratch)
        stack.callback(found.sink.close)
        if plan is None:
            return _report(found, began, _of_foreign(found, ids, dry_run), dry_run=dry_run)
        if not dry_run:
            names, slices = ["plan", "finalise"], [s.index for s in plan.slices]
            lease.append(stack.enter_context(locks.lease(found.storage, names=names, slices=slices, listener=listener)))
            plan = plans.load(found.storage) or plan
        deleting = Deleting(found=found, halt=halt, listener=listener)
        if not dry_run:
            plan = deleting.finish_earlier(plan)
        deleting.check_finished(plan)
        return _report(found, began, deleting.run(plan, ids, dry_run=dry_run), dry_run=dry_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleting:
    """One destination, under a lease on all of it."""

    found: Destination
    halt: Halt
    listener: Listener

    def finish_earlier(self, plan: Plan) -> Plan:
        """A delete that was begun and not finished comes first."""
        kept = self.found.storage.read(name_of(plan.generation))
        if kept is None or self._finalised(plan):
            return plan
        self.listener.note(f"{self.found.uri}: finishing a delete that was begun before")
        self._drop(plan, json.loads(zstandard.decompress(kept)))
        return plan

    def check_finished(self, plan: Plan) -> None:
        """:raises PlanMismatch: rows may still be on their way. :raises BooksError: the ledger or the plan is gone."""
        if not self._finalised(plan):
            raise PlanMismatch(
                f"{self.found.uri}: the job there is not finished",
                hint="finish it first, with the command that began it",
            )
        adopt.refuse_damaged(self.found.storage, plan, Ledger(self.found.storage).contents)

    def run(self, plan: Plan, ids: Sequence[str], *, dry_run: bool) -> dict[str, Any]:
        """Counts of what went, or would go."""
        sink = self.found.sink
        sink.prepare(plan)
        ledger = Ledger(self.found.storage)
        there: list[str] = []
        for record, rows in self._losing(ledger, ids):
            names = sink.rows(record)[0]
            there += [names[r] for r in rows]
        counts = {"rows": len(there), "not_found": len(set(ids) - set(there)), "examples": there[:EXAMPLES]}
        if dry_run or not there:
            return counts
        following = replace(plan, generation=plan.generation + 1, targets=())
        before = sum(r.units for r in ending.live_records(ledger.contents))
        sink.before_change(plan, ending.live_records(ledger.contents))
        content = zstandard.compress(json.dumps(sorted(there)).encode("utf-8", "surrogatepass"))
        self.found.storage.put_if_absent(name_of(following.generation), content, mode=0o600)
        failpoints.hit("before-delete")
        plans.publish(self.found.storage, following)
        return {**counts, "vectors": before - self._drop(following, there), "generation": following.generation}

    def _drop(self, plan: Plan, ids: Sequence[str]) -> int:
        """Take the rows out and finish the generation; the vectors that are left."""
        storage, sink = self.found.storage, self.found.sink
        sink.prepare(plan)
        ledger = Ledger(storage)
        for record, rows in self._losing(ledger, ids):
            self.halt.check()
            revision = ledger.contents.next_revision(record.key)
            changed = replace(record, revision=revision, books=_without(record, rows))
            keep_hashes(record, changed, rows, storage, sink)
            _keep_letters(record, changed, plan, storage)
            changed = sink.drop_rows(record, changed, rows.tolist())
            failpoints.hit("after-drop")
            ledger.append(changed)
        ending.check_books(plan, ledger.contents, sink)
        dead.merge(storage, [(r.key, r.revision) for r in ending.current_dead(ledger.contents)])
        records = ending.live_records(ledger.contents)
        sink.finish(plan, records)
        number = ending.rounds(plan, ledger.contents, ending.FINALISED)
        ledger.append({"kind": ending.FINALISED, "generation": plan.generation, "round": number})
        manifest.keep(storage, ledger, sink)
        storage.delete(name_of(plan.generation))
        return sum(r.units for r in records)

    def _losing(self, ledger: Ledger, ids: Sequence[str]) -> Iterator[tuple[WindowRecord, np.ndarray]]:
        """Windows that hold any of the ids, and these rows, int64, by number among the live ones."""
        wanted = set(ids)
        for record in ending.live_records(ledger.contents):
            names = self.found.sink.rows(record)[0] if record.units else ()
            rows = np.array([n for n, name in enumerate(names) if name in wanted], dtype=np.int64)
            if len(rows):
                yield record, rows

    def _finalised(self, plan: Plan) -> bool:
        return ending.is_finalised(plan, Ledger(self.found.storage).contents)


def _opened(spec: JobSpec) -> tuple[Plan | None, Destination]:
    """A destination of embedctl's, or a store that somebody else filled."""
    try:
        return open_existing(spec)
    except UsageError:
        assert spec.to is not None
        if "://" not in spec.to:
            raise
    found = open_source(spec)
    try:
        refuse_lost(found)  # ours: the books would not follow
    except UsageError:
        found.sink.close()
        raise
    return None, found


def _of_foreign(found: Destination, ids: Sequence[str], dry_run: bool) -> dict[str, Any]:
    if not isinstance(found.sink, Deletable):
        raise UsageError(f"{found.uri}: this kind of store cannot delete by id")
    if dry_run:
        raise UsageError("--dry-run: embedctl did not fill this store, and cannot tell what is there")
    return {"vectors": found.sink.delete(ids)}


def _report(found: Destination, began: float, counts: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    status = "would delete" if dry_run else "done"
    seconds = round(time.monotonic() - began, 3)
    return {"version": 1, "status": status, "destination": found.uri, **counts, "seconds": seconds}


def _without(record: WindowRecord, rows: np.ndarray) -> tuple[FileBooks, ...]:
    """The window's books: rows that were taken out count as skipped."""
    files = file_of(record)[rows]
    lost = {b.file: int((files == b.file).sum()) for b in record.books}
    return tuple(replace(b, written=b.written - lost[b.file], skipped=b.skipped + lost[b.file]) for b in record.books)


def _keep_letters(record: WindowRecord, changed: WindowRecord, plan: Plan, storage: LocalStorage) -> None:
    """Dead letters are found by a window's revision."""
    by_uri = {f.uri: f.index for f in plan.files}
    letters = [x for _, x in dead.letters(storage, [(record.key, record.revision)])]
    dead.put(storage, record.key, [dead_from_json(x, by_uri[x["file"]]) for x in letters], plan.files, changed.revision)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not UTF-8: {exc}"
        raise SourceError(f"--ids: cannot read {path}: {reason}") from exc


def _only(names: Sequence[str]) -> str:
    for name in ("id", "_id", "docid", *names[:1]):
        if name in names:
            return name
    raise UsageError("--ids: the file has no columns", hint="one id a line")


def _cells(file: Any, reader: Any, schema: pa.Schema) -> Iterator[str]:
    for segment in reader.segments(file, 64 << 20):
        for block in reader.read(file, segment, schema, None):
            for row, reason in block.errors.items():
                raise SourceError(f"--ids: {file.uri}:{block.positions[row]}: {reason}")
            yield from (str(i) for i in block.columns.column(0).to_pylist() if i is not None)
