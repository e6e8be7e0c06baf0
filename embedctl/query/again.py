"""Rows embedded again, the plainest way there is: read from the source, one sequence at a time, in float32.

Enters: a finished Parquet destination. Leaves: a `Check` that holds a random sample of its rows to every model's own
numbers. Not checked where the source is gone or has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import registry
from embedctl.encoders.base import Encoder
from embedctl.errors import SourceError, UsageError
from embedctl.job import passes, wiring
from embedctl.models.onnx_files import without_onnx
from embedctl.outputs import Multivector, Outputs, OutputSpec, Sparse, Values, take
from embedctl.plan import Plan
from embedctl.query.checks import Check
from embedctl.records import Batch, Slice, Tokenized, Window, WindowRecord
from embedctl.sinks.columns import values_of
from embedctl.sinks.parquet import footer_of
from embedctl.sources.files import STDIN
from embedctl.spec import JobSpec
from embedctl.stages.prepare import Prepared, prepare
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage

MAX_WINDOWS = 8
MEAN_COSINE = {"int8": 0.98, "int4": 0.98}
"""Of weights in so few bits the mean is judged: single texts may be further off."""
MIN_COSINE = {"float32": 1 - 1e-6, "bfloat16": 0.9995, "float16": 0.9995}
STORED_COSINE = {"float32": 1.0, "float16": 1 - 1e-5, "int8": 0.99, "uint8": 0.99}
MIN_EQUAL_BITS = 0.97
MAX_SCORE_OFF = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.05}

Key = tuple[str, int]
"""Id and chunk number."""


def embedded_again(
    plan: Plan, storage: LocalStorage, records: Sequence[WindowRecord], sample: int, *, twice: bool = False
) -> Check:
    """`sample` rows of up to MAX_WINDOWS windows. twice: some ids stand twice in the corpus."""
    if plan.is_loaded:
        return Check(name="sample", ok=None, detail="not checked: the vectors were loaded, not embedded")
    if any(f.path == STDIN for f in plan.files):
        return Check(name="sample", ok=None, detail="not checked: standard input is gone")
    synced = plan.changes is not None
    full = [r for r in records if r.units and (synced or r.key.generation == 1)]
    if not full or not sample:
        return Check(name="sample", ok=None, detail="not checked: nothing to compare")
    chance = np.random.default_rng()
    chosen = [full[i] for i in sorted(chance.choice(len(full), min(MAX_WINDOWS, len(full)), replace=False))]
    try:
        compared = _Compared(plan, twice=twice and synced)
        for record in chosen:
            wanted = -(-sample // len(chosen))
            for window in _some_windows(plan, chance) if synced else [_window_again(plan, record, records)]:
                compared.window(window, storage, record, wanted, chance)
    except (SourceError, UsageError) as exc:
        return Check(name="sample", ok=None, detail=f"not checked: {exc}")
    return compared.check()


class _Compared:
    """The models of a plan, opened in float32, and how far the stored values are from theirs."""

    def __init__(self, plan: Plan, *, twice: bool) -> None:
        self._plan, self._twice = plan, twice
        folders = [without_onnx(f) for f in passes.open_models(JobSpec(**plan.asked(), inputs=plan.inputs))]
        self._against = ", ".join(f.onnx.path.name for f in folders if f.onnx is not None)
        tokenizers = wiring.open_tokenizers(folders, plan)
        self._rules = wiring.text_rules(plan, [(tokenizer, True) for tokenizer in tokenizers])
        self._encoders = [
            wiring.open_planned_encoder(
                folder, plan.spec, {**one.resolved, "dtype": "float32", "compile": False}, [o.kind for o in one.outputs]
            )
            for folder, one in zip(folders, plan.passes, strict=True)
        ]
        self._vectors = wiring.vector_rules(plan, lambda name, _: _ranges(plan, name))
        self._worst = {output.name: np.inf for output in plan.outputs}
        self._sums = dict.fromkeys(self._worst, 0.0)
        self._rows = 0

    def window(
        self, window: Window, storage: LocalStorage, record: WindowRecord, wanted: int, chance: np.random.Generator
    ) -> None:
        """Compare up to `wanted` of the window's rows."""
        ready = prepare(window, self._rules, [1] * len(self._encoders))
        stored, place = _stored(self._plan, storage, record)
        passed_over = _passed_over(window, storage, record) if self._twice else set()
        named = [
            (key, units)
            for key, units in _named(self._plan, ready).items()
            if key in place and key[0] not in passed_over
        ]
        for i in chance.choice(len(named), min(wanted, len(named)), replace=False).tolist():
            key, units = named[i]
            expected = self._reference(ready, units)
            self._rows += 1
            for output in self._plan.outputs:
                found = take(stored[output.name], place[key])
                like = _likeness(
                    output, expected[output.name], found, self._vectors.store, _ranges(self._plan, output.name)
                )
                self._worst[output.name] = min(self._worst[output.name], like)
                self._sums[output.name] += like

    def _reference(self, ready: Prepared, units: Sequence[int]) -> Outputs:
        """One value an output in float32: each unit alone, pooled where the job pools."""
        found: dict[str, Values] = {}
        for encoder, feed, one in zip(self._encoders, ready.feeds, self._plan.passes, strict=True):
            alone = [_alone(encoder, feed.tokenized, int(ready.units.sequence[unit])) for unit in units]
            for output in one.outputs:
                found[output.name] = alone[0][output.kind]
                if self._vectors.pool is not None:
                    lengths = ready.units.tokenized.lengths[ready.units.sequence[list(units)]]
                    each = np.concatenate([np.asarray(values[output.kind]) for values in alone])
                    found[output.name] = self._vectors.pool(each, np.zeros(len(units), dtype=np.int64), lengths)
        return found

    def check(self) -> Check:
        if not self._rows:
            return Check(name="sample", ok=None, detail="not checked: no row was found in the parts chosen")
        ok, told = True, []
        for one in self._plan.passes:
            for output in one.outputs:
                least, found, which = _least(output, one.resolved["dtype"]), self._worst[output.name], "lowest"
                if one.resolved["dtype"] in MEAN_COSINE:
                    found, which = self._sums[output.name] / self._rows, "mean"
                ok = ok and bool(found >= least)
                name = f"{output.name}: " if len(self._plan.outputs) > 1 else ""
                told.append(f"{name}{which} {_measure(output)} {found:.7f}, at least {least:.7f} expected")
        if self._against:
            told.append(f"held to {self._against} itself, each row alone, for there are no weights for torch")
        return Check(name="sample", ok=ok, detail=f"{self._rows} rows embedded again: {'; '.join(told)}")


def _window_again(plan: Plan, record: WindowRecord, records: Sequence[WindowRecord]) -> Window:
    """Read one committed window from the source again."""
    reader = WindowReader(plan, wiring.row_rules(plan), wiring.blocks_of(plan))
    others = {
        r.key.window: r
        for r in records
        if r.key.slice == record.key.slice and r.key != record.key and r.key.generation == 1
    }
    return next(reader.windows(plan.slices[record.key.slice], others))


def _some_windows(plan: Plan, chance: np.random.Generator) -> Iterator[Window]:
    """After a sync the rows of a part may stand anywhere in the corpus: a few windows, to look for them in."""
    segments = [
        s for f in plan.files for s in registry.get("formats", f.format)().segments(f, plan.spec["slice_bytes"])
    ]
    reader = WindowReader(plan, wiring.row_rules(plan), wiring.blocks_of(plan))
    for number in chance.choice(len(segments), min(MAX_WINDOWS, len(segments)), replace=False).tolist():
        yield next(reader.windows(Slice(index=0, segments=(segments[number],)), {}))


def _stored(plan: Plan, storage: LocalStorage, record: WindowRecord) -> tuple[Outputs, Mapping[Key, np.ndarray]]:
    """The part's values, and where each unit's are: int64 (1,)."""
    table = pq.read_table(storage.root / (record.part or ""), partitioning=None)
    number = "candidate" if plan.spec.get("candidates_column") else "chunk"
    chunks: list[Any] = table.column(number).to_pylist() if plan.chunked else [0] * table.num_rows
    ids: list[Any] = table.column("id").cast(pa.string()).to_pylist()
    values = {o.name: values_of(table.column(o.name).combine_chunks(), o)[0] for o in plan.outputs}
    return values, {key: np.array([n]) for n, key in enumerate(zip(ids, chunks, strict=True))}


def _passed_over(window: Window, storage: LocalStorage, record: WindowRecord) -> set[str]:
    """Ids whose row in this window is not the one that is stored: it has another text, so an earlier row won."""
    path = storage.root / (record.part or "")
    hashes = footer_of(pq.read_metadata(path).metadata or {})[1]
    if hashes is None or window.hashes is None:
        return set()
    ids = dict.fromkeys(pq.read_table(path, columns=["id"], partitioning=None)[0].cast(pa.string()).to_pylist())
    stored = dict(zip(ids, hashes[:, 0].tolist(), strict=True))
    found = zip(window.ids, window.hashes[:, 0].tolist(), strict=True)
    return {i for i, text in found if i in stored and stored[i] != text}


def _named(plan: Plan, ready: Prepared) -> dict[Key, list[int]]:
    """A unit's key -> its units: one, or all of the row's where their vectors are pooled."""
    out: dict[Key, list[int]] = {}
    for unit, (row, number) in enumerate(zip(ready.units.document.tolist(), ready.units.number.tolist(), strict=True)):
        out.setdefault((ready.window.ids[row], 0 if plan.spec["chunk_pool"] else number), []).append(unit)
    return out


def _alone(encoder: Encoder, tokenized: Tokenized, sequence: int) -> Outputs:
    """One sequence, in a batch of its own, in float32."""
    begin, end = int(tokenized.offsets[sequence]), int(tokenized.offsets[sequence + 1])
    return encoder.encode_float32(
        Batch(
            input_ids_T=tokenized.ids_T[begin:end],
            cu_seqlens=np.array([0, end - begin], dtype=np.int32),
            units=np.zeros(1, dtype=np.int64),
            token_type_ids_T=None if tokenized.types_T is None else tokenized.types_T[begin:end].astype(np.int32),
            contents=None if tokenized.contents is None else [tokenized.contents[sequence]],
        )
    )


def _likeness(output: OutputSpec, expected: Values, stored: Values, store: Any, ranges: np.ndarray | None) -> float:
    """Of one value: cosine (of the least alike token's vectors for multivectors), or the share of equal bits for binary
    ones, or 1 less the largest difference for scores."""
    if isinstance(expected, Sparse) or isinstance(stored, Sparse):
        assert isinstance(expected, Sparse)
        assert isinstance(stored, Sparse)
        return _cosine(*_spread(expected, stored))
    if isinstance(expected, Multivector) or isinstance(stored, Multivector):
        assert isinstance(expected, Multivector)
        assert isinstance(stored, Multivector)
        if len(expected.vectors) != len(stored.vectors):
            return 0.0
        return float(min(_cosine(a, b) for a, b in zip(expected.vectors, stored.vectors, strict=True)))
    if output.kind == "score":
        return float(1.0 - np.abs(expected - stored).max(initial=0.0))
    if output.vector_type in ("binary", "ubinary"):
        bits = store(output.name, expected)[0][0]
        differing = np.unpackbits(bits.view(np.uint8) ^ stored[0].view(np.uint8)).sum()
        return float(1.0 - differing / (8 * stored.shape[1]))
    values = stored[0].astype(np.float64)
    if ranges is not None:
        steps = (ranges[1] - ranges[0]) / 255
        values = (values + (128 if output.vector_type == "int8" else 0)) * steps + ranges[0]
    return _cosine(values, expected[0])


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))


def _spread(a: Sparse, b: Sparse) -> tuple[np.ndarray, np.ndarray]:
    """Both over the indices that either has."""
    indices = np.union1d(a.indices, b.indices)
    full = np.zeros((2, len(indices)), dtype=np.float64)
    full[0, np.searchsorted(indices, a.indices)] = a.values
    full[1, np.searchsorted(indices, b.indices)] = b.values
    return full[0], full[1]


def _ranges(plan: Plan, name: str) -> np.ndarray | None:
    known = plan.int8_ranges.get(name)
    return None if known is None else np.array(known, dtype=np.float32)


def _measure(output: OutputSpec) -> str:
    if output.kind == "score":
        return "1 - difference"
    return "equal bits" if output.vector_type in ("binary", "ubinary") else "cosine"


def _least(output: OutputSpec, dtype: str) -> float:
    if output.kind == "score":
        return 1 - MAX_SCORE_OFF[dtype]
    if output.vector_type in ("binary", "ubinary"):
        return MIN_EQUAL_BITS
    bar: float = MEAN_COSINE.get(dtype) or MIN_COSINE[dtype]
    return min(bar, STORED_COSINE[output.vector_type])
