"""`export`: any store's contents as a folder of Parquet parts.

Enters: the URI of a collection, embedctl's or not. Leaves: `part-00000.parquet`, ... in the store's own stable order,
and `.embedctl/export.json`. Killed and run again, parts that are there are compared, not written; one that differs
means that the collection changed, which is refused. At the end the store's exact count must be what was written.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import failpoints
from embedctl import plan as plans
from embedctl.errors import BooksError, PlanMismatch, SinkError, SourceChanged, UsageError
from embedctl.events import Listener, Progress
from embedctl.job.destination import open_source
from embedctl.job.signals import obeyed
from embedctl.ledger import locks
from embedctl.outputs import OutputSpec
from embedctl.sinks.base import Countable, Scannable, Sink
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt
from embedctl.storage import STATE, LocalStorage, sink_error

HEADER = f"{STATE}/export.json"
DONE = f"{STATE}/export-done.json"
ROW_GROUP_ROWS = 25_000
PART_ROWS, PART_BYTES = 100_000, 128 << 20


def export(source: str, to: str, *, state: str | None = None, listener: Listener) -> dict[str, Any]:
    """JSON-ready: rows, parts and columns. The same command resumes, and does nothing when all is there.

    :raises UsageError: a destination that is no store, or a folder that holds something else.
    :raises SourceChanged, BooksError: the collection changed while it was read.
    """
    began, halt = time.monotonic(), Halt()
    target = _target(to)
    lease: list[locks.Lease] = []
    with obeyed(halt, last_words=lambda: locks.release_all(lease)), ExitStack() as stack:
        stack.callback(target.drop_own_scratch)
        found = open_source(JobSpec(to=source, state=state))
        stack.callback(found.sink.close)
        store = _scannable(found.sink, found.uri)
        header = _header(found.uri, store.contents(), plans.load(found.storage))
        lease.append(stack.enter_context(locks.lease(target, names=["export"], listener=listener)))
        _publish_header(target, header, found.uri)
        done = target.read(DONE)
        status = "already done" if done else "done"
        if done is None:
            writer = _Writer(target=target, header=header, halt=halt, listener=listener, began=began)
            rows, parts = writer.run(store)
            _check_count(found.sink, rows, found.uri, to)
            done = json.dumps({"rows": rows, "parts": parts}).encode()
            target.put_if_absent(DONE, done)
        return {
            "version": 1,
            "status": status,
            "source": found.uri,
            "destination": target.uri,
            **json.loads(done),
            "outputs": {o["name"]: o["kind"] for o in header["outputs"]},
            "seconds": round(time.monotonic() - began, 3),
        }


def _scannable(sink: Sink, uri: str) -> Scannable:
    if not isinstance(sink, Scannable):
        raise UsageError(
            f"{uri}: this kind of destination cannot be exported",
            hint="a folder of Parquet needs no export: copy its *.parquet",
        )
    return sink


def _target(to: str) -> LocalStorage:
    path = Path(to)
    if "://" in to:
        raise UsageError(f"--to: {to} is not a folder", hint="--to vectors/")
    if path.exists() and not path.is_dir():
        raise UsageError(f"--to: {path} is a file, not a folder", hint="--to vectors/")
    if path.is_dir() and not (path / HEADER).is_file() and any(map(_is_in_the_way, path.iterdir())):
        raise UsageError(f"--to: {path} is not empty and holds no export", hint="choose a new folder with --to")
    return LocalStorage(path)


def _is_in_the_way(found: Path) -> bool:
    """All but the state of an export that was killed before it had a header."""
    return found.name != STATE or any(found.glob("plan-*.json"))


def _header(uri: str, outputs: Sequence[OutputSpec], plan: plans.Plan | None) -> dict[str, Any]:
    header: dict[str, Any] = {"version": 1, "source": uri, "outputs": [o.to_json() for o in outputs]}
    if plan is not None:
        header |= {"recipe": plan.recipe, "model": dict(plan.model)}
    return header


def _publish_header(target: LocalStorage, header: dict[str, Any], uri: str) -> None:
    content = json.dumps(header, sort_keys=True, indent=1).encode()
    if target.put_if_absent(HEADER, content) or target.read(HEADER) == content:
        return
    held = json.loads(target.read(HEADER) or b"{}")
    if held.get("source") != uri:
        raise PlanMismatch(
            f"{target.uri}: holds an export of {held.get('source')}, not of {uri}", hint="choose a new folder with --to"
        )
    raise SourceChanged(
        f"{uri}: holds other outputs than when its export to {target.uri} began", hint="choose a new folder with --to"
    )


def _check_count(sink: Sink, rows: int, uri: str, to: str) -> None:
    if isinstance(sink, Countable) and (held := sink.total()) != rows:
        raise BooksError(
            f"{uri}: {rows} vectors were read, and it holds {held}: it changed meanwhile",
            hint=f"export again into a new folder than {to}, when nothing writes to it",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    target: LocalStorage
    header: dict[str, Any]
    halt: Halt
    listener: Listener
    began: float

    def run(self, store: Scannable) -> tuple[int, int]:
        """(rows, parts) that stand in the target afterwards."""
        rows = number = 0
        for table in _stretches(store.scan(), self.halt):
            self._part(f"part-{number:05d}.parquet", table)
            rows, number = rows + table.num_rows, number + 1
            self._tell(rows)
        extra = f"part-{number:05d}.parquet"
        if (self.target.root / extra).exists():
            raise self._changed(extra)
        return rows, number

    def _part(self, name: str, table: pa.Table) -> None:
        self.halt.check()
        path = self.target.root / name
        metadata = {b"embedctl.export": json.dumps(self.header, sort_keys=True).encode()}
        staged = self.target.scratch(name)
        try:
            pq.write_table(
                table.replace_schema_metadata(metadata), staged, row_group_size=ROW_GROUP_ROWS, compression="zstd"
            )
            if path.exists():
                if _digest(path) != _digest(staged):
                    raise self._changed(name)
                return
            failpoints.hit("before-part")
            self.target.put_if_absent(name, staged)
            failpoints.hit("after-part")
        except OSError as exc:
            raise sink_error(path, exc) from exc
        finally:
            staged.unlink(missing_ok=True)

    def _changed(self, name: str) -> SourceChanged:
        return SourceChanged(
            f"{self.header['source']}: changed since {self.target.root / name} was exported",
            hint="export it again into a new folder, when nothing writes to it",
        )

    def _tell(self, rows: int) -> None:
        self.listener.progress(
            Progress(
                rows=rows, rows_total=None, resumed_rows=0, bytes_read=0, bytes_total=None, tokens=0, dead=0,
                elapsed_s=time.monotonic() - self.began, busy_s={},
            )
        )  # fmt: skip


def _stretches(batches: Iterator[pa.RecordBatch], halt: Halt) -> Iterator[pa.Table]:
    """The batches as tables of at most PART_ROWS rows and about PART_BYTES, cut where a batch ends."""
    held: list[pa.RecordBatch] = []
    rows = num_bytes = 0
    for batch in batches:
        halt.check()
        if held and (rows + batch.num_rows > PART_ROWS or num_bytes + batch.nbytes > PART_BYTES):
            yield _table(held)
            held, rows, num_bytes = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        num_bytes += batch.nbytes
    if rows:
        yield _table(held)


def _table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    try:
        return pa.Table.from_batches(list(batches))
    except pa.ArrowInvalid as exc:
        raise SinkError(f"the store gives rows of different columns: {exc}") from exc


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
