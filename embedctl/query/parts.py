"""A Parquet destination as one sequence of rows, read in bounded pieces.

Enters: the destination's name. Leaves: its parts in reading order, batches of vectors, single rows. A row's key is
int64: the part's number in the upper half, the row's number in the part in the lower, so keys ascend in reading order.
Refused: a part that is gone or unreadable (`BooksError`), one that lacks an output's column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embedctl import plan as plans
from embedctl.errors import BooksError, UsageError
from embedctl.job import finalise as ending
from embedctl.job.destination import Destination
from embedctl.job.encoding import ranges_of
from embedctl.ledger.segments import Ledger
from embedctl.outputs import OutputSpec, Values, take
from embedctl.plan import Plan
from embedctl.sinks.columns import values_of
from embedctl.sinks.versions import CURRENT
from embedctl.sources.where import Where, columns_of

BATCH_BYTES = 32 << 20
BATCH_ROWS = 4096
_LOW = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One version of a destination. `ranges`: float32 (2, C) by output, for int8 and uint8 vectors."""

    destination: str
    plan: Plan
    paths: tuple[Path, ...]
    finished: bool
    ranges: Mapping[str, np.ndarray]

    @property
    def outputs(self) -> frozenset[str]:
        """Names of the columns that hold vectors."""
        return frozenset(o.name for o in self.plan.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive rows of one part. keys, documents: int64 (n,); a document's key is that of its first chunk.

    vectors: n values of one output, as stored.
    """

    keys: np.ndarray
    documents: np.ndarray
    vectors: Values


def open_parts(newest: Plan, found: Destination) -> Parts:
    """The version that `.embedctl/current` names, resolved once, else the parts that the ledger holds.

    :raises BooksError: `current` names a version that is not there.
    """
    storage, plan = found.storage, newest
    contents = Ledger(storage).contents
    link = storage.root / CURRENT
    if link.is_symlink():
        folder = link.resolve()
        if not folder.is_dir():
            raise BooksError(f"{link}: the version it names is gone", hint=f"embedctl verify {found.uri}")
        number = folder.name.rpartition("_")[2]
        plan = (plans.load(storage, int(number)) if number.isdecimal() else None) or newest
        paths = tuple(sorted(folder.glob("*.parquet")))
    else:
        paths = tuple(storage.root / r.part for r in ending.live_records(contents) if r.part)
    return Parts(
        destination=found.uri,
        plan=plan,
        paths=paths,
        finished=ending.is_finalised(plan, contents),
        ranges={o.name: known for o in plan.outputs if (known := ranges_of(plan, contents, o.name)) is not None},
    )


def stretches(
    parts: Parts, output: OutputSpec, where: str | None = None, without: np.ndarray | None = None
) -> Iterator[Stretch]:
    """One output of all rows for which `where` holds, but those whose keys are in `without`, in bounded pieces.

    :raises UsageError: an unknown column in `where`, or it is no condition.
    """
    if not parts.paths:
        return
    schema = _schema(parts, output.name)
    names = [name for name in schema.names if name not in parts.outputs]
    asked = sorted(columns_of(where, names)) or ["id"] if where else []
    rule = Where(where, pa.schema([schema.field(name) for name in asked])) if where else None
    chunk = ["chunk"] if parts.plan.chunked else []
    try:
        for number in range(len(parts.paths)):
            document = 0
            columns = list(dict.fromkeys([output.name, *chunk, *asked]))
            for keys, batch in _batches(parts, number, columns, _row_bytes(output)):
                documents = keys
                if chunk:
                    documents = np.maximum.accumulate(np.where(batch.column("chunk").to_numpy() == 0, keys, document))
                    document = int(documents[-1])
                keep = np.ones(len(keys), dtype=bool) if rule is None else rule.mask(batch.select(asked))
                if without is not None:
                    keep &= ~np.isin(keys, without)
                if keep.any():
                    vectors = take(stored_values(batch.column(output.name), output), np.flatnonzero(keep))
                    yield Stretch(keys=keys[keep], documents=documents[keep], vectors=vectors)
    finally:
        if rule is not None:
            rule.close()


def stored_values(column: pa.Array[Any], output: OutputSpec) -> Values:
    """A column of vectors as values, as they are stored."""
    return _as_matrix(column) if pa.types.is_fixed_size_list(column.type) else values_of(column, output)[0]


def _as_matrix(column: pa.Array[Any]) -> np.ndarray:
    """FixedSizeList<C> of n rows to an (n, C) view."""
    assert isinstance(column, pa.FixedSizeListArray)
    flat: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1)


def _row_bytes(output: OutputSpec) -> int:
    """About what one row takes while it is looked at."""
    return {"sparse": 4096, "multivector": output.dim * 8 * 256}.get(output.kind, output.dim * 8)


def keys_of(parts: Parts, id: str) -> np.ndarray:
    """int64: keys of all rows of this id, ascending; ids of whole numbers compare as their decimal text."""
    found = []
    for number in range(len(parts.paths)):
        for keys, batch in _batches(parts, number, ["id"], 64):
            ids = batch.column("id").cast(pa.string())
            found.append(keys[pc.equal(ids, pa.scalar(id, pa.string())).to_numpy(zero_copy_only=False)])
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def known_ids(parts: Parts, ids: Collection[str]) -> set[str]:
    """Those of `ids` that the destination holds."""
    wanted, found = pa.array(sorted(ids), pa.string()), set[str]()
    for number in range(len(parts.paths)):
        for _, batch in _batches(parts, number, ["id"], 64):
            column = batch.column("id").cast(pa.string())
            found |= {str(id) for id in column.filter(pc.is_in(column, value_set=wanted)).to_pylist()}
    return found


def rows_of(parts: Parts, keys: Collection[int], columns: Sequence[str] | None = None) -> dict[int, dict[str, Any]]:
    """Key -> the row's columns (None: all but the vectors), as Python values; vectors come as values of one row."""
    out: dict[int, dict[str, Any]] = {}
    by_part: dict[int, list[int]] = {}
    for key in sorted(set(keys)):
        by_part.setdefault(key >> 32, []).append(key & _LOW)
    for number, rows in by_part.items():
        with _opened(parts, number) as file:
            wanted = list(columns) if columns else [n for n in file.schema_arrow.names if n not in parts.outputs]
            begin = 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                here = [row for row in rows if begin <= row < begin + count]
                if here:
                    table = file.read_row_group(group, columns=wanted).take(pa.array([r - begin for r in here]))
                    found = zip(here, _values(parts, table), strict=True)
                    out |= {number << 32 | row: values for row, values in found}
                begin += count
    return out


def _values(parts: Parts, table: pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts, their vectors as values of one row in their stored type."""
    plain = [n for n in table.column_names if n not in parts.outputs]
    rows: list[dict[str, Any]] = table.select(plain).to_pylist() if plain else [{} for _ in range(table.num_rows)]
    for output in parts.plan.outputs:
        if output.name in table.column_names and table.num_rows:
            vectors = stored_values(pa.concat_arrays(table.column(output.name).chunks), output)
            for i, row in enumerate(rows):
                row[output.name] = take(vectors, np.array([i]))
    return rows


def _batches(
    parts: Parts, number: int, columns: list[str], row_bytes: int
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """(keys, rows) of one part, each at most BATCH_ROWS rows and about BATCH_BYTES."""
    size = min(BATCH_ROWS, max(64, BATCH_BYTES // row_bytes))
    first = number << 32
    with _opened(parts, number) as file:
        for batch in file.iter_batches(batch_size=size, columns=columns):
            if batch.num_rows:
                yield np.arange(first, first + batch.num_rows, dtype=np.int64), batch
                first += batch.num_rows


def _schema(parts: Parts, output: str) -> pa.Schema:
    with _opened(parts, 0) as file:
        schema = file.schema_arrow
    if output not in schema.names:
        held = ", ".join(f"{f.name} ({f.type})" for f in schema)
        raise UsageError(f"{parts.destination}: no column {output!r} of vectors to search; it holds {held}")
    return schema


@contextmanager
def _opened(parts: Parts, number: int) -> Iterator[pq.ParquetFile]:
    path, hint = parts.paths[number], f"embedctl verify {parts.destination}"
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            yield file
    except FileNotFoundError as exc:
        raise BooksError(f"{path}: the part is gone", hint=hint) from exc
    except (pa.ArrowInvalid, OSError) as exc:
        raise BooksError(f"{path}: not a readable part ({exc})", hint=hint) from exc
