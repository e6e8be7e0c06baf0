"""Slices -> committed windows, in this process: opens what a pipeline needs as the plan says, and runs it.

The parent runs one of these, or each worker process does. Refuses: another model than the plan's, too many dead rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embedctl.encoders.base import Encoder
from embedctl.errors import GuardRefused, PlanMismatch
from embedctl.events import Listener
from embedctl.job import limits, passes, wiring
from embedctl.job.replay import Replay
from embedctl.ledger.segments import Contents, Ledger
from embedctl.models.folder import ModelFolder
from embedctl.pipeline import WindowsOf, Worker, run
from embedctl.plan import Pass, Plan
from embedctl.records import Batch, DeadRow, Slice, WindowKey, WindowRecord
from embedctl.sinks.base import Sink
from embedctl.sources import changes
from embedctl.sources.files import check_unchanged
from embedctl.spec import JobSpec
from embedctl.stages.commit import Committer
from embedctl.stages.encode import Engine
from embedctl.stages.flow import Halt, Meter
from embedctl.stages.windows import WindowReader
from embedctl.storage import LocalStorage
from embedctl.tokens.pack import padding_of, split_batch

MAX_CHANNEL_BYTES = 16 << 20
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names that folders give to the prompt of documents, the likelier first."""


@dataclass(slots=True, kw_only=True)
class Encoding:
    """`dead_before`: rows dead so far in the whole job, for `--max-dead`. `windows_of` lets a retry choose its rows."""

    spec: JobSpec
    plan: Plan
    storage: LocalStorage
    sink: Sink
    ledger: Ledger
    listener: Listener
    halt: Halt
    meter: Meter
    check_lease: Callable[[], None]
    on_batch: Callable[[Batch], None]
    on_commit: Callable[[WindowRecord, tuple[DeadRow, ...]], None]
    dead_before: Callable[[], int]
    windows_of: Callable[[WindowReader], WindowsOf] | None = None
    _ranges_known: dict[str, np.ndarray] = field(default_factory=dict, init=False)

    def run(
        self,
        slices: Iterable[tuple[Slice, Mapping[int, WindowRecord]]],
        folders: Sequence[ModelFolder] | None = None,
    ) -> None:
        """Commit what is missing of the slices. :raises EmbedctlError: the first failure of any stage."""
        folders = folders or passes.open_models(self.spec)
        encoders: list[Encoder] = []
        pool: ThreadPoolExecutor | None = None
        try:
            for folder, one in zip(folders, self.plan.passes, strict=True):
                self._check_model(folder, one)
                kinds = [output.kind for output in one.outputs]
                encoders.append(wiring.open_planned_encoder(folder, self.plan.spec, self._resolved(one), kinds))
            self._note_engines(encoders)
            self.halt.check()
            pool = ThreadPoolExecutor(max(e.lanes for e in encoders), thread_name_prefix="encode")
            run(self._worker(folders, encoders, pool), slices)
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)  # what is queued must not hold up an interrupted run
            for encoder in encoders:
                encoder.close()

    def _resolved(self, one: Pass) -> Mapping[str, Any]:
        """What the plan decided for a model, on the device that this run asks for, if it does."""
        if self.spec.device is None or one.model["architecture"] == "fake":
            return one.resolved
        from embedctl.encoders.open import resolve_device

        asked, planned = resolve_device(self.spec.device), str(one.resolved["device"])
        return one.resolved if planned.startswith(asked) else {**one.resolved, "device": asked}

    def _worker(self, folders: Sequence[ModelFolder], encoders: Sequence[Encoder], pool: ThreadPoolExecutor) -> Worker:
        tokenizers = wiring.open_tokenizers(folders, self.plan)
        engines = [
            Engine(
                encoder=encoder,
                names={output.kind: output.name for output in one.outputs},
                split=split_batch,
                padded=padding_of if encoder.padded else lambda batch: batch.num_tokens,
                pool=pool,
            )
            for encoder, one in zip(encoders, self.plan.passes, strict=True)
        ]
        committer = Committer(
            plan=self.plan,
            storage=self.storage,
            sink=self.sink,
            ledger=self.ledger,
            rules=wiring.vector_rules(self.plan, self._ranges),
            check_dead=self._check_dead,
            check_source=self._check_source,
            check_lease=self.check_lease,
        )
        return Worker(
            windows=(self.windows_of or _whole_slices)(self._reader()),
            text=wiring.text_rules(self.plan, [(t, e.padded) for t, e in zip(tokenizers, encoders, strict=True)]),
            engines=engines,
            committer=committer,
            budgets=self._budgets,
            halt=self.halt,
            meter=self.meter,
            on_batch=self.on_batch,
            on_commit=self.on_commit,
            channel_bytes=min(MAX_CHANNEL_BYTES, (self.spec.memory or limits.available_bytes()) // 64),
        )

    def _reader(self) -> WindowReader:
        rules = wiring.row_rules(self.plan)
        if self.plan.is_sync:
            changed = changes.blocks_of(self.storage, self.plan.generation, self.plan.slices, self.plan.schema)
            return WindowReader(self.plan, rules, changed)
        blocks = wiring.blocks_of(self.plan)
        if not self.plan.is_stream or self.plan.targets is not None:
            return WindowReader(self.plan, rules, blocks)
        replay = Replay(self.ledger.contents.of_generation(self.plan.generation))
        return WindowReader(self.plan, rules, replay.watch(blocks), replay.digest)

    def _check_model(self, folder: ModelFolder, one: Pass) -> None:
        if folder.fingerprint() != one.model["fingerprint"]:
            raise PlanMismatch(
                f"{one.asked}: its weights or tokenizer are not the ones {self.storage.uri} was begun with",
                hint="bring the old model back, or start a new job with another --to",
            )

    def _note_engines(self, encoders: Sequence[Encoder]) -> None:
        """Remember what computes; on a resume say so when it is something else, since bytes may then differ."""
        for number, encoder in enumerate(encoders):
            told = encoder.describe()
            engine = {k: told.get(k) for k in ("engine", "dtype", "attention")}
            events = [e for e in self.ledger.contents.events if e["kind"] == "engine"]
            known = [e["engine"] for e in events if e.get("pass", 0) == number]
            if not known:
                self.ledger.append({"kind": "engine", "engine": engine, "pass": number})
            elif engine not in known:
                self.listener.note(
                    f"begun with {_told(known[0])}, going on with {_told(engine)}: "
                    "vectors agree closely, not to the byte"
                )
            for note in [*told.get("notes", []), *_unused_prompt(self.plan.passes[number])]:
                self.listener.note(str(note))

    def _check_source(self, files: Sequence[int]) -> None:
        for index in [] if self.plan.is_sync else files:
            check_unchanged(self.plan.files[index])

    def _check_dead(self, dead: Sequence[DeadRow]) -> None:
        refuse_dead(dead, self.dead_before(), self.spec, self.plan, self.storage.uri)

    def _ranges(self, name: str, vectors: np.ndarray) -> np.ndarray:
        """An output's int8 ranges: the plan's; for standard input the first window's, remembered in the ledger."""
        if name not in self._ranges_known:
            known = ranges_of(self.plan, self.ledger.contents, name)
            if known is None:
                from embedctl.heads.precision import calibrate

                known = calibrate(vectors)
                self.ledger.append({"kind": "int8_ranges", "output": name, "ranges": known.tolist()})
            self._ranges_known[name] = known
        return self._ranges_known[name]

    def _budgets(self, key: WindowKey) -> list[int]:
        """Tokens a batch for this window and each model: the plan's, or what an earlier out-of-memory left."""
        place = [key.generation, key.slice, key.window]
        budgets = [int(one.resolved["batch_tokens"]) for one in self.plan.passes]
        for event in self.ledger.contents.events:
            if event["kind"] == "budget" and event["after"] < place:
                number = event.get("pass", 0)
                budgets[number] = min(budgets[number], event["batch_tokens"])
        return budgets


def ranges_of(plan: Plan, contents: Contents, name: str) -> np.ndarray | None:
    """float32 (2, C): an output's int8 ranges, None where none were needed or measured yet."""
    if name in plan.int8_ranges:
        return np.array(plan.int8_ranges[name], dtype=np.float32)
    for event in contents.events:
        if event["kind"] == "int8_ranges" and event.get("output", name) == name:
            return np.array(event["ranges"], dtype=np.float32)
    return None


def refuse_dead(dead: Sequence[DeadRow], before: int, spec: JobSpec, plan: Plan, uri: str) -> None:
    """Before a window is committed: the same command is refused again until the rows or the limit change.

    :raises GuardRefused: `dead` of the window, after `before` of others, are more than the user accepts.
    """
    if dead and spec.on_error == "fail":
        raise GuardRefused(
            f"{plan.files[dead[0].file].uri}:{dead[0].position}: {dead[0].reason}",
            hint="go past bad rows with --on-error dead-letter",
        )
    limit, _ = spec.dead_limit()
    if limit is not None and before + len(dead) > limit:
        raise too_many(before + len(dead), f"{limit}", uri)


def too_many(count: int, limit: str, uri: str) -> GuardRefused:
    return GuardRefused(
        f"{count} rows are dead, more than --max-dead {limit}",
        hint=f"see those before with: embedctl status {uri} --dead; or allow more with --max-dead",
    )


def _whole_slices(reader: WindowReader) -> WindowsOf:
    return reader.windows


def _told(engine: Mapping[str, str | None]) -> str:
    return ", ".join(str(v) for v in engine.values() if v)


def _unused_prompt(one: Pass) -> list[str]:
    """Some models' queries have a prompt and so have their documents, which nobody asked for here."""
    named = [name for name in DOCUMENT_PROMPTS if (one.model.get("prompts") or {}).get(name)]
    if one.resolved["prompt"] or not named:
        return []
    return [f"{one.asked} has a prompt for documents, {one.model['prompts'][named[0]]!r}: --prompt-name {named[0]}"]
