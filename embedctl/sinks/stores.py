"""What all stores share: names of points, their order, and what was written, window by window.

Enters: ids, row numbers, windows. Leaves: point ids that never change, one int64 a row that orders all rows of a job,
and a sidecar of ids beside the ledger, written before the store is, from which a window can be told without the store.
Refused: values that are not finite or of another size, rows past what the order can hold.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import zstandard

from embedctl.errors import BooksError, SinkError, UsageError
from embedctl.outputs import Multivector, OutputSpec, Sparse, Values, not_finite
from embedctl.records import WindowKey, WindowOutput, WindowRecord
from embedctl.sinks.columns import width_of
from embedctl.storage import STATE, LocalStorage, Storage, etag_of

FOLDER = f"{STATE}/ids"
ROW_BITS, WINDOW_BITS, SLICE_BITS, GENERATION_BITS = 17, 17, 17, 12
MAX_ROWS = (1 << ROW_BITS) - 1024
"""Rows of a window. Qdrant compares `_pos` as float64, where the last of them round up to the next window."""
_URL = uuid.NAMESPACE_URL.bytes
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

PointId = int | str
_Batch = TypeVar("_Batch")


def position_number(key: WindowKey, row: int) -> int:
    """63 bits or less: orders rows by generation, slice, window and place among the window's live rows.

    :raises SinkError: more generations, slices, windows or rows than the number can hold.
    """
    number = 0
    for part, value, bits in (
        ("generations", key.generation, GENERATION_BITS),
        ("slices", key.slice, SLICE_BITS),
        ("windows in a slice", key.window, WINDOW_BITS),
        ("rows in a window", row, ROW_BITS),
    ):
        if value >= 1 << bits:
            raise SinkError(
                f"window {key.stem}: a store holds at most {1 << bits} {part}",
                hint="choose larger --slice-bytes and --window-rows, or a folder of Parquet with --to",
            )
        number = number << bits | value
    return number


def place_of(number: int) -> tuple[WindowKey, int]:
    """The window and the row that `position_number` made the number of."""
    number, row = number >> ROW_BITS, number & (1 << ROW_BITS) - 1
    number, window = number >> WINDOW_BITS, number & (1 << WINDOW_BITS) - 1
    generation, slice_ = number >> SLICE_BITS, number & (1 << SLICE_BITS) - 1
    return WindowKey(generation=generation, slice=slice_, window=window), row


def point_id(id: str, chunk: int | None = None) -> PointId:
    """Whole numbers below 2^64 and UUIDs in their usual form as they are, all else uuid5 (URL namespace) of the id.

    A chunk's is the uuid5 of the JSON `[id, chunk]`.
    """
    if chunk is not None:
        return _uuid5(json.dumps([id, chunk], ensure_ascii=False, separators=(",", ":")))
    if id.isdecimal() and id.isascii() and len(id) <= 20 and int(id) < 1 << 64 and str(int(id)) == id:
        return int(id)
    return id if _UUID.fullmatch(id) else _uuid5(id)


def _uuid5(name: str) -> str:
    """`str(uuid.uuid5(uuid.NAMESPACE_URL, name))`, for any string, and half the time."""
    hexed = hashlib.sha1(_URL + name.encode("utf-8", "surrogatepass")).hexdigest()
    variant = "89ab"[int(hexed[16], 16) & 3]
    return f"{hexed[:8]}-{hexed[8:12]}-5{hexed[13:16]}-{variant}{hexed[17:20]}-{hexed[20:32]}"


def check_values(output: WindowOutput, outputs: Sequence[OutputSpec]) -> None:
    """Stores take any number, so this is the last place to look. :raises SinkError: the first bad row is named."""
    for spec in outputs:
        values = output.outputs[spec.name]
        wanted, found = _shape_of(spec), _width(values)
        if len(values) != len(output.ids) or found != wanted:
            raise SinkError(
                f"window {output.record.key.stem}: {spec.name}: {len(values)} values of {found} numbers, the store "
                f"takes {len(output.ids)} of {wanted}"
            )
        bad = np.flatnonzero(not_finite(values))
        if len(bad):
            raise SinkError(f"row {output.ids[int(bad[0])]!r}: {spec.name} holds NaN or Inf")


def _shape_of(spec: OutputSpec) -> tuple[int, ...] | None:
    """Of one value, or of one of its vectors; None: sparse ones have as many numbers as they like."""
    return None if spec.kind == "sparse" else (width_of(spec),)


def _width(values: Values) -> tuple[int, ...] | None:
    if isinstance(values, Sparse):
        return None
    shape: tuple[int, ...] = (values.vectors if isinstance(values, Multivector) else values).shape[1:]
    return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """The live rows of a window as the store got them.

    numbers: each row's place in its `_pos`. units: points of each row. positions: in the source, empty where ids tell.
    """

    ids: Sequence[str]
    numbers: Sequence[int]
    units: Sequence[int]
    positions: Sequence[int]

    def points(self, rows: Sequence[int], *, chunked: bool) -> Iterator[PointId]:
        """Ids of all points of these rows."""
        for row in rows:
            for chunk in range(self.units[row]):
                yield point_id(self.ids[row], chunk if chunked else None)

    def without(self, rows: Sequence[int]) -> WindowRows:
        gone = set(rows)
        keep = [i for i in range(len(self.ids)) if i not in gone]
        return WindowRows(
            ids=[self.ids[i] for i in keep],
            numbers=[self.numbers[i] for i in keep],
            units=[self.units[i] for i in keep],
            positions=[self.positions[i] for i in keep] if len(self.positions) else [],
        )


def rows_of(output: WindowOutput) -> tuple[WindowRows, np.ndarray]:
    """The window's rows, and int64 (u,): the row of each unit."""
    count, row = len(output.ids), output.row_of_units
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    rows = WindowRows(
        ids=[output.ids[i] for i in starts.tolist()],
        numbers=list(range(len(starts))),
        units=np.diff(np.append(starts, count)).tolist(),
        positions=[] if output.positions is None else output.positions.tolist(),
    )
    if len(starts) > MAX_ROWS:
        raise SinkError(
            f"window {output.record.key.stem}: {len(starts)} rows, a store takes {MAX_ROWS}",
            hint=f"--window-rows {MAX_ROWS}",
        )
    return rows, row


def began(storage: Storage, output: WindowOutput) -> tuple[WindowRows, np.ndarray, WindowRows | None]:
    """As `rows_of`, and the rows of an unfinished try of the window, where they were others."""
    rows, row = rows_of(output)
    before = load_rows(storage, output.record.key, 0)
    return rows, row, None if before == rows else before


def dropped(
    storage: Storage, record: WindowRecord, output: WindowRecord, known: WindowRows, rows: Sequence[int]
) -> WindowRecord:
    """Save the list of a window that has lost these rows; `output`, its new record, with the units that are left."""
    save_rows(storage, output.key, output.revision, known.without(rows))
    return replace(output, units=record.units - sum(known.units[r] for r in rows))


def save_rows(storage: Storage, key: WindowKey, revision: int, rows: WindowRows) -> None:
    """Durable; a window done again replaces what an unfinished try left."""
    text = json.dumps([list(rows.ids), list(rows.numbers), list(rows.units), list(rows.positions)])
    content, name = zstandard.compress(text.encode()), _name(key, revision)
    for _ in range(100):
        current = storage.read(name)
        if current == content or storage.replace_if_match(name, content, etag_of(current)):
            return
    raise SinkError(f"{storage.uri}/{name}: another run keeps changing it")


def load_rows(storage: Storage, key: WindowKey, revision: int) -> WindowRows | None:
    """What was saved of a window; None where nothing was. :raises BooksError: it cannot be read."""
    content = storage.read(_name(key, revision))
    if content is None:
        return None
    try:
        ids, numbers, units, positions = json.loads(zstandard.decompress(content))
    except (zstandard.ZstdError, ValueError) as exc:
        raise BooksError(f"{storage.uri}/{_name(key, revision)}: not readable ({exc})") from exc
    return WindowRows(ids=ids, numbers=numbers, units=units, positions=positions)


def rows_known(storage: Storage, record: WindowRecord) -> WindowRows:
    """:raises BooksError: the state knows the window, but not its rows."""
    found = load_rows(storage, record.key, record.revision)
    if found is None:
        name = _name(record.key, record.revision)
        raise BooksError(f"{storage.uri}/{name}: the list of a committed window's ids is gone")
    return found


def gone(name: str, storage: LocalStorage, what: str) -> SinkError:
    """The error that a store lacks all that its state says was written; `what` is "gone" or "empty"."""
    return SinkError(
        f"{name}: {what}, yet {storage.root} says what was written there",
        hint=f"bring it back, or remove {storage.root} to begin anew",
    )


def without_ledger(name: str, storage: LocalStorage) -> UsageError:
    """The error that a store is this job's and its state is not here."""
    return UsageError(
        f"{name}: holds vectors of this job, but its ledger is not in {storage.root}",
        hint=f"name its folder with --state, or: embedctl state rebuild {storage.uri}",
    )


FIELD_KINDS = ("keyword", "integer", "float", "bool", "datetime", "uuid", "text")


def index_field(text: str, kinds: Sequence[str] = FIELD_KINDS) -> tuple[str, str]:
    """`NAME:KIND` of `--index-field`. :raises UsageError: no such kind."""
    name, _, kind = text.rpartition(":")
    if not name or kind not in kinds:
        raise UsageError(
            f"--index-field: {text!r} is not NAME:KIND with a kind of {', '.join(kinds)}",
            hint="--index-field lang:keyword",
        )
    return name, kind


def has_rows(storage: Storage) -> bool:
    """Whether any window was ever begun from this state."""
    return bool(storage.list(FOLDER))


def hash_words(hashes: np.ndarray) -> list[str]:
    """uint64 (n, 2): of each row, its two hashes as 32 hexadecimal digits."""
    digits = hashes.astype(">u8").tobytes().hex()
    return [digits[i : i + 32] for i in range(0, len(digits), 32)]


def in_streams(work: Callable[[_Batch], None], batches: Iterable[_Batch], streams: int) -> None:
    """Several batches at once. The first failure stops the rest and is raised when all under way have ended."""
    with ThreadPoolExecutor(streams, thread_name_prefix="store") as pool:
        flying: set[Future[None]] = set()
        try:
            for batch in batches:
                flying.add(pool.submit(work, batch))
                if len(flying) >= 2 * streams:
                    done, flying = wait(flying, return_when=FIRST_COMPLETED)
                    for one in done:
                        one.result()
            for one in flying:
                one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _name(key: WindowKey, revision: int) -> str:
    return f"{FOLDER}/{key.stem}{f'-r{revision}' if revision else ''}.json.zst"
