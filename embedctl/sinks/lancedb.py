"""LanceDB, embedded: `lancedb:///folder/of/db/table` or `lancedb://./db/table`.

Enters: windows. Leaves: a row a unit: kept columns and outputs in their Arrow types, `_pos`, `_job`, `_hash`. A window
is one appended version, nothing is ever overwritten: a window done again first takes out what an unfinished try left,
by `_pos`; later rows of an id are taken out at the end. Readers check out the tag `current`, which moves only when a
generation is whole. Refused: a table of other columns or another job, vectors that LanceDB would misread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl import failpoints
from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec, Values
from embedctl.plan import Plan
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks import lancedb_index as indexing
from embedctl.sinks import lancedb_read as reading
from embedctl.sinks import stores
from embedctl.sinks.base import Hit, Reconciled
from embedctl.sinks.keyed_records import HASH, JOB, POS, check_names, check_values, refuse
from embedctl.sinks.lancedb_read import MANIFEST, quoted
from embedctl.sinks.lancedb_table import Table
from embedctl.sinks.parts import output_array
from embedctl.spec import JobSpec
from embedctl.storage import STATE, LocalStorage, etag_of

CURRENT = "current"
ROWS_AT_ONCE = 5000
_ELSEWHERE = "choose another table with --to, or delete it"


def open_lancedb(target: str, storage: LocalStorage, spec: JobSpec) -> LanceSink:
    """:raises UsageError: no folder and table in the URI, or LanceDB is not installed."""
    path = Path(target.partition("://")[2])
    if len(path.parts) < 2 or path.name in ("", ".", ".."):
        raise UsageError(f"--to: {target} is not lancedb://FOLDER/TABLE", hint="--to lancedb://./vectors.db/docs")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", path.name):
        raise UsageError(f"--to: {path.name!r}: LanceDB takes letters, digits, _, - and . in the name of a table")
    try:
        import lancedb  # noqa: F401
    except ImportError as exc:
        raise UsageError("LanceDB is not installed", hint="pip install 'embedctl[lancedb]'") from exc
    return LanceSink(Table(path.parent, path.name.removesuffix(".lance")), storage, spec)


class LanceSink:
    """One table, opened when first needed."""

    def __init__(self, table: Table, storage: LocalStorage, spec: JobSpec) -> None:
        """:raises UsageError: what no table could hold as asked."""
        _refuse(spec)
        self._table, self._storage, self._spec = table, storage, spec
        self._indexes = tuple((_called(name), kind) for name, kind in map(indexing.index_field, spec.index_field))
        self._plan: Plan | None = None
        self._schema: pa.Schema | None = None

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def prepare(self, plan: Plan) -> None:
        check_names(plan)
        schema = schema_of(plan, self._spec.distance)
        indexing.check_fields(self._indexes, schema)
        if self._table.exists():
            self._check(plan, schema)
        else:
            if stores.has_rows(self._storage):
                raise self._gone("gone")
            self._table.make(schema)
        self._plan, self._schema = plan, schema

    def write(self, output: WindowOutput) -> WindowRecord:
        key = output.record.key
        check_values(output, self.plan)
        rows, row = stores.rows_of(output)
        again = stores.load_rows(self._storage, key, 0) is not None
        stores.save_rows(self._storage, key, 0, rows)
        failpoints.hit("before-part")
        if again:
            self._table.change(lambda t: t.delete(_of_window(key)))
        if len(output.ids):
            table = _table(output, self.plan, row, self._schema)
            self._table.change(lambda t: t.add(table))
        failpoints.hit("after-part")
        return output.record

    def reconcile(self, records: Sequence[WindowRecord]) -> Reconciled:
        """What the ledger lacks is written again; of what it knows, windows without a row are lost.

        :raises SinkError: rows of no job or another are among ours, or all of ours are gone.
        """
        others = self._table.ask(lambda t: t.count_rows(f"{JOB} IS NULL OR {JOB} != {quoted(self.plan.job)}"))
        if others:
            raise SinkError(f"{self._table.name}: {others} rows there are not this job's", hint=_ELSEWHERE)
        if not any(r.units for r in records):
            return Reconciled(adopted=(), lost=())
        here = self._table.ask(reading.windows_there)
        if not here:
            raise self._gone("empty")
        mine = [r for r in records if r.units and r.key.generation == self.plan.generation]
        lost = [r for r in mine if stores.position_number(r.key, 0) >> stores.ROW_BITS not in here]
        return Reconciled(adopted=(), lost=tuple(lost))

    def rows(self, record: WindowRecord) -> tuple[Sequence[str], Sequence[int]]:
        known = stores.rows_known(self._storage, record)
        return known.ids, known.positions

    def drop_rows(self, record: WindowRecord, output: WindowRecord, rows: Sequence[int]) -> WindowRecord:
        known = stores.rows_known(self._storage, record)
        positions = [stores.position_number(record.key, known.numbers[r]) for r in rows]
        for begin in range(0, len(positions), ROWS_AT_ONCE):
            some = ", ".join(map(str, positions[begin : begin + ROWS_AT_ONCE]))
            self._table.change(lambda t, some=some: t.delete(f"{POS} IN ({some})"))  # type: ignore[misc]
        stores.save_rows(self._storage, output.key, output.revision, known.without(rows))
        return replace(output, units=record.units - sum(known.units[r] for r in rows))

    def before_change(self, plan: Plan, records: Sequence[WindowRecord]) -> None:
        """The tag `current` stays where it is: on the last whole generation."""

    def finish(self, plan: Plan, records: Sequence[WindowRecord]) -> None:  # noqa: ARG002
        indexing.build(self._table, self._spec, self._indexes)
        self._table.change(lambda t: _tag(t, CURRENT))
        self._table.change(lambda t: _tag(t, f"{plan.recipe[:8]}_{plan.generation}"))

    def count(self, records: Sequence[WindowRecord]) -> int:  # noqa: ARG002
        return int(self._table.ask(lambda t: t.count_rows(f"{JOB} = {quoted(self.plan.job)}")))

    def total(self) -> int:
        return int(self._there().ask(lambda t: t.count_rows()))

    def close(self) -> None:
        self._table.close()

    def search(
        self, query: Mapping[str, Values], *, limit: int, where: str | None, exact: bool = False
    ) -> Sequence[Sequence[Hit]]:
        return reading.search(self._there(), query, limit=limit, where=where, exact=exact)

    def contents(self) -> Sequence[OutputSpec]:
        return self._there().ask(lambda t: reading.specs_of(t.schema))

    def scan(self, batch_rows: int = 1024) -> Iterator[pa.RecordBatch]:
        return reading.scan(self._there(), batch_rows)

    def delete(self, ids: Sequence[str]) -> int:
        return reading.delete(self._there(), ids)

    def remember(self, manifest: str) -> None:
        beside, name = self._beside()
        while not beside.replace_if_match(name, manifest.encode(), etag_of(beside.read(name))):
            pass

    def remembered(self) -> str | None:
        beside, name = self._beside()
        found = beside.read(name)
        return None if found is None else found.decode()

    def _beside(self) -> tuple[LocalStorage, str]:
        """Where the database keeps what is ours of this table."""
        return LocalStorage(self._table.folder), f"{STATE}/{self._table.table}.json"

    def _there(self) -> Table:
        if not self._table.exists():
            raise SinkError(f"{self._table.name}: no such table", hint="see that the URI is the one it was made by")
        return self._table

    def _check(self, plan: Plan, wanted: pa.Schema) -> None:
        """:raises UsageError: other columns, or another job's."""
        name, found = self._table.name, self._table.ask(lambda t: t.schema)
        flaws = [
            f"column {f.name} is {found.field(f.name).type}, this job needs {f.type}"
            if f.name in found.names
            else f"column {f.name} ({f.type}) is missing"
            for f in wanted
            if f.name not in found.names or found.field(f.name).type != f.type
        ]
        if flaws:
            raise UsageError(f"{name}: {'; '.join(flaws)}", hint="choose a new table with --to: embedctl makes it")
        tag = (reading.manifest_of(found) or {}).get("job")
        if tag is None:
            raise UsageError(
                f"{name}: was not made by embedctl", hint="choose a new table with --to: embedctl makes it"
            )
        if tag != plan.job:
            raise UsageError(f"{name}: holds the vectors of another job ({tag}, this is {plan.job})", hint=_ELSEWHERE)
        if not stores.has_rows(self._storage) and self._table.ask(lambda t: t.count_rows()):
            raise UsageError(
                f"{name}: holds vectors of this job, but its ledger is not in {self._storage.root}",
                hint="name its folder with --state, or make it anew from the table with: embedctl state rebuild",
            )

    def _gone(self, what: str) -> SinkError:
        return SinkError(
            f"{self._table.name}: {what}, yet {self._storage.root} says what was written there",
            hint=f"bring it back, or remove {self._storage.root} to begin anew",
        )


def schema_of(plan: Plan, distance: str | None) -> pa.Schema:
    """The table's columns, the run in their metadata. :raises UsageError: a name that LanceDB cannot have."""
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64() if plan.resolved["id_type"] == "int64" else pa.string())]
    if plan.chunked:
        fields += [pa.field(name, pa.int32()) for name in ("chunk", "char_start", "char_end")]
    fields += [pa.field(_called(name), _held(plan.schema.field(name).type)) for name in plan.keep]
    specs = [replace(o, similarity=distance or o.similarity) for o in plan.outputs]
    fields += [pa.field(o.name, reading.column_type(o)) for o in specs]
    fields += [pa.field("token_count", pa.int32())] if plan.spec["token_count"] else []
    fields += [pa.field("truncated", pa.bool_())] if plan.spec["truncated"] else []
    fields += [pa.field(POS, pa.int64()), pa.field(JOB, pa.string()), pa.field(HASH, pa.string())]
    twice = sorted({f.name for f in fields if [g.name for g in fields].count(f.name) > 1})
    if twice:
        raise UsageError(
            f"--keep: two columns would be called {twice[0]!r}: LanceDB takes no dot in a name, _ stands for it"
        )
    manifest = {"job": plan.job, "recipe": plan.recipe, "outputs": [o.to_json() for o in specs]}
    return pa.schema(fields, metadata={MANIFEST: json.dumps({**manifest, "model": dict(plan.model)})})


def _called(name: str) -> str:
    """A column's name there, which may hold no dot."""
    return name.replace(".", "_")


def _held(kind: pa.DataType) -> pa.DataType:
    """The type that comes back: LanceDB keeps no views."""
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _table(output: WindowOutput, plan: Plan, row: np.ndarray, schema: pa.Schema | None) -> pa.Table:
    assert schema is not None
    whole = plan.resolved["id_type"] == "int64"
    columns: dict[str, Any] = {"id": np.array(output.ids, dtype=np.int64) if whole else output.ids}
    columns |= {"chunk": output.chunk, "char_start": output.char_start, "char_end": output.char_end}
    columns |= {"token_count": output.token_count, "truncated": output.truncated}
    columns |= {_called(name): output.kept.column(name) for name in plan.keep}
    columns |= {name: output_array(values) for name, values in output.outputs.items()}
    columns[POS] = stores.position_number(output.record.key, 0) + row
    columns[JOB] = pa.repeat(plan.job, len(output.ids))
    columns[HASH] = pa.nulls(len(row), pa.string()) if output.hashes is None else _hexed(output.hashes[row])
    arrays = [_as(columns[f.name], f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def _hexed(hashes: np.ndarray) -> Any:
    """uint64 (n, 2): each pair as 32 digits."""
    digits = pa.py_buffer(hashes.astype(">u8").tobytes().hex().encode())
    offsets = pa.py_buffer(np.arange(0, 32 * len(hashes) + 1, 32, dtype=np.int32).tobytes())
    return pa.Array.from_buffers(pa.string(), len(hashes), [None, offsets, digits])


def _as(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, kind)


def _of_window(key: WindowKey) -> str:
    first = stores.position_number(key, 0)
    return f"{POS} >= {first} AND {POS} < {first + (1 << stores.ROW_BITS)}"


def _tag(table: Any, name: str) -> None:
    (table.tags.update if name in table.tags.list() else table.tags.create)(name, table.version)


def _refuse(spec: JobSpec) -> None:
    refuse(spec)
    if spec.vector_type in ("int8", "uint8", "binary"):
        raise UsageError(
            f"--vector-type: {spec.vector_type} would be misread by LanceDB; it takes float32, float16 or ubinary",
            hint="--vector-type ubinary" if spec.vector_type == "binary" else "--vector-type float16",
        )
    if spec.distance == "manhattan":
        raise UsageError("--distance: LanceDB has no manhattan", hint="--distance euclidean")
    taken = next((name for name in spec.keep if name in (POS, JOB, HASH)), None)
    if taken is not None:
        raise UsageError(f"--keep: {taken!r} is a name the table uses itself")
