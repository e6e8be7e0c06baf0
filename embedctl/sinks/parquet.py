"""Vectors as a plain folder of Parquet parts, one a window, published once and never overwritten.

`out/*.parquet` are the parts of the current version and nothing else; the state is under `out/.embedctl/`. A
part's footer carries its window's record and dead letters, so the ledger can be rebuilt from them. No time, no host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import failpoints
from embedctl.codec import dead_to_json, record_from_json, record_to_json
from embedctl.errors import BooksError, SinkError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.base import UNIT_COLUMNS, Reconciled, Stored
from embedctl.sinks.columns import values_of
from embedctl.sinks.parts import (
    output_array,
    packed_hashes,
    packed_positions,
    part_name,
    unpacked_hashes,
    unpacked_positions,
    unreadable,
    whole_column,
    window_in,
)
from embedctl.sinks.scores import score_columns
from embedctl.sinks.versions import publish_version
from embedctl.storage import LocalStorage, sink_error

ROW_GROUP_ROWS = 25_000
WINDOW, JOB, DEAD, MODEL = b"embedctl.window", b"embedctl.job", b"embedctl.dead", b"embedctl.model"
_POSITIONS, _HASHES = b"embedctl.positions", b"embedctl.hashes"


class ParquetSink:
    """A folder on a local or mounted file system."""

    drops_at_once = 2
    """See `Sink.drop_rows`: parts are read, compressed and written outside of Python."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self._plan: Plan | None = None

    def prepare(self, plan: Plan) -> None:
        self._plan = plan

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def write(self, output: WindowOutput) -> WindowRecord:
        if output.record.key.generation > 1 and not output.record.units:
            return output.record  # a retry that saved nothing here needs no part; the first generation keeps the schema
        record = replace(output.record, part=part_name(output.record.key, output.record.revision))
        table = _table(output, self.plan)
        dead = [dead_to_json(replace(row, raw=None), self.plan.files[row.file].uri) for row in output.dead]
        self._publish(record, table, dead, output.positions, output.hashes)
        return record

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        known = {r.part: r for r in records if r.part}
        present = {e.name for e in self._storage.list("") if e.name.endswith(".parquet")}
        revisions = {r.key: r.revision for r in records}
        unknown = [n for n in sorted(present - known.keys()) if not self._is_past(n, revisions)]
        found = [(name, self._record_in(name)) for name in unknown]
        foreign = [name for name, record in found if record is None]
        if foreign:
            raise SinkError(
                f"{self._storage.root / foreign[0]}: not a part of this job, yet among its vectors",
                hint="move it away, or choose another destination with --to",
            )
        return Reconciled(
            adopted=tuple(record for _, record in found if record is not None),
            lost=tuple(r for part, r in known.items() if part not in present),
        )

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        if record.part is None:
            return [], []
        table = self._read(record, ["id", "chunk"] if self.plan.chunked else ["id"])
        first = np.diff(_document(table), prepend=-1) > 0
        ids: list[Any] = table.column("id").filter(pa.array(first)).cast(pa.string()).to_pylist()
        return ids, footer_of(table.schema.metadata or {})[0].tolist()

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        table = self._read(record, None)
        metadata = table.schema.metadata or {}
        gone = np.asarray(rows, dtype=np.int64)
        kept = table.filter(pa.array(~np.isin(_document(table), gone)))
        if not kept.num_rows and (output.key.slice, output.key.window) != (0, 0):
            return replace(output, part=None, units=0)  # one empty part is enough to keep the schema
        output = replace(output, part=part_name(output.key, output.revision), units=kept.num_rows)
        positions, hashes = footer_of(metadata)
        hashes = None if hashes is None else np.delete(hashes, gone, axis=0)
        dead = json.loads(metadata.get(DEAD, b"[]"))
        self._publish(output, kept, dead, np.delete(positions, gone), hashes)
        return output

    def row_hashes(self, record: WindowRecord) -> np.ndarray | None:
        if record.part is None:
            return np.zeros((0, 2), dtype=np.uint64)
        return footer_of(self._footer(record.part).metadata or {})[1]

    def stored(self, record: WindowRecord, rows: np.ndarray) -> Stored:
        own = [n for n in UNIT_COLUMNS if n not in self.plan.keep]
        present = set(self._footer(record.part or "").schema.to_arrow_schema().names)
        names = [n for n in own if n in present]
        table = self._read(record, [*names, *(o.name for o in self.plan.outputs)])
        document = _document(table)
        units = np.flatnonzero(np.isin(document, rows))
        table, document = table.take(pa.array(units, pa.int64())).combine_chunks(), document[units]
        columns = {n: table.column(n).to_numpy() for n in names}
        return Stored(
            row=document,
            outputs={o.name: values_of(whole_column(table, o.name), o)[0] for o in self.plan.outputs},
            **{name: columns.get(name) for name in UNIT_COLUMNS},
        )

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        publish_version(plan, self._storage, records)

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        if plan.generation > 1:
            publish_version(plan, self._storage, records)
        for name in self.superseded(records):
            self._storage.delete(name)

    def superseded(self, records: Sequence[WindowRecord]) -> list[str]:
        """Parts in the folder that are none of the live windows'. Only a finished generation's are surely that."""
        live = {r.part for r in records}
        names = [entry.name for entry in self._storage.list("")]
        return [n for n in names if n not in live and window_in(n) is not None]

    def count(self, records: Sequence[WindowRecord]) -> int:
        return sum(self._footer(r.part).num_rows for r in records if r.part)

    def close(self) -> None:
        pass

    def _publish(
        self,
        record: WindowRecord,
        table: pa.Table,
        dead: list[dict[str, Any]],
        positions: np.ndarray | None,
        hashes: np.ndarray | None,
    ) -> None:
        name = record.part or ""
        metadata = {
            JOB: self.plan.job.encode(),
            WINDOW: json.dumps(record_to_json(record), sort_keys=True).encode(),
            DEAD: json.dumps(dead, sort_keys=True).encode(),
            **({} if positions is None else {_POSITIONS: packed_positions(positions)}),
            **({} if hashes is None else {_HASHES: packed_hashes(hashes)}),
            MODEL: json.dumps(_cards(self.plan), sort_keys=True).encode(),
        }
        staged = self._storage.scratch(name)
        try:
            _write_file(table.replace_schema_metadata(metadata), staged, {o.name for o in self.plan.outputs})
            failpoints.hit("before-part")
            published = self._storage.put_if_absent(name, staged)
        except OSError as exc:
            raise sink_error(self._storage.root / name, exc) from exc
        finally:
            staged.unlink(missing_ok=True)
        failpoints.hit("after-part")
        if not published and self._record_in(name) != record:
            raise SinkError(
                f"{self._storage.root / name}: a part of another run is in the way",
                hint="move it away, or choose another destination with --to",
            )

    def _record_in(self, name: str) -> WindowRecord | None:
        """The record in a part's footer; None for a file that is no part of this plan's destination."""
        try:
            metadata = self._footer(name).metadata or {}
        except BooksError:
            return None
        if metadata.get(JOB) != self.plan.job.encode():
            return None
        return record_from_json(json.loads(metadata[WINDOW]))

    def _is_past(self, name: str, revisions: dict[WindowKey, int]) -> bool:
        """Whether a part is an earlier revision of a window, or was taken out by the sync that is under way."""
        found = window_in(name)
        if found is None:
            return False
        return found[1] < revisions.get(found[0], 0) or (
            self.plan.is_sync and found[0].generation < self.plan.generation
        )

    def _footer(self, name: str) -> pq.FileMetaData:
        try:
            return pq.read_metadata(self._storage.root / name)
        except FileNotFoundError as exc:
            raise BooksError(f"{self._storage.root / name}: the part is gone") from exc
        except (pa.ArrowInvalid, OSError) as exc:
            raise unreadable(self._storage.root / name, exc) from exc

    def _read(self, record: WindowRecord, columns: list[str] | None) -> pa.Table:
        path = self._storage.root / (record.part or "")
        try:
            return pq.read_table(path, columns=columns, partitioning=None)
        except (pa.ArrowInvalid, OSError) as exc:
            raise unreadable(path, exc) from exc


def job_in(path: Path) -> str | None:
    """The job that a part is of; None for a file that is no part of embedctl's."""
    try:
        found = (pq.read_metadata(path).metadata or {}).get(JOB)
    except (pa.ArrowInvalid, OSError):
        return None
    return None if found is None else found.decode()


def footer_of(metadata: Mapping[bytes, bytes]) -> tuple[np.ndarray, np.ndarray | None]:
    """What a footer tells of live rows: int64 positions, and uint64 (n, 2) hashes, None where it has none."""
    packed = metadata.get(_HASHES)
    return unpacked_positions(metadata.get(_POSITIONS)), None if packed is None else unpacked_hashes(packed)


def _cards(plan: Plan) -> dict[str, Any]:
    """The first model's card and the recipe; with several models, each one's card by its outputs' names."""
    cards = {**plan.model, "recipe": plan.recipe}
    if len(plan.passes) > 1:
        cards["models"] = {o.name: dict(one.model) for one in plan.passes for o in one.outputs}
    return cards


def _document(table: pa.Table) -> np.ndarray:
    """int64 (units,): the number, among the part's live rows, of the row each unit came from."""
    if "chunk" not in table.column_names:
        return np.arange(table.num_rows, dtype=np.int64)
    return np.cumsum(table.column("chunk").to_numpy() == 0) - 1


def _output_columns(values: Values, spec: OutputSpec, plan: Plan) -> dict[str, pa.Array[Any]]:
    if spec.kind != "score":
        return {spec.name: output_array(values)}
    assert isinstance(values, np.ndarray)
    card = next(one.model for one in plan.passes if spec in one.outputs)
    return score_columns(values, spec, multi_label=bool(card["multi_label"]), threshold=plan.spec["threshold"])


def _id_array(ids: Sequence[str], plan: Plan) -> pa.Array[Any]:
    """Integer ids keep their type; all others are strings."""
    strings = pa.array(ids, pa.string())
    return strings.cast(pa.int64()) if plan.resolved["id_type"] == "int64" else strings


def _table(output: WindowOutput, plan: Plan) -> pa.Table:
    columns: dict[str, pa.Array[Any] | pa.ChunkedArray[Any]] = {"id": _id_array(output.ids, plan)}
    if output.chunk is not None:
        assert output.char_start is not None
        assert output.char_end is not None
        columns |= {
            "chunk": pa.array(output.chunk, pa.int32()),
            "char_start": pa.array(output.char_start, pa.int32()),
            "char_end": pa.array(output.char_end, pa.int32()),
        }
    columns |= {name: output.kept.column(name) for name in output.kept.column_names}
    for spec in plan.outputs:
        columns |= _output_columns(output.outputs[spec.name], spec, plan)
    if plan.spec["token_count"]:
        columns["token_count"] = pa.array(output.token_count, pa.int32())
    if plan.spec["truncated"]:
        columns["truncated"] = pa.array(output.truncated, pa.bool_())
    return pa.table(columns)


def _write_file(table: pa.Table, path: Path, outputs: set[str]) -> None:
    plain = [name for name in table.column_names if name not in outputs]
    pq.write_table(
        table,
        path,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=1,
        use_dictionary=plain,  # type: ignore[arg-type]
        write_statistics=plain,
    )
