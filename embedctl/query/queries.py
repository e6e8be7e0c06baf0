"""Queries, and their vectors: made as the corpus was, but with the prompt of the query side.

Enters: texts, or a JSONL file of them, and a plan. Leaves: values of each output by its own model, pooling, dimension
and compute type. Refused: a line that is no query, a text that cannot be embedded, other weights than the plan's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedctl.errors import EncoderError, PlanMismatch, SourceError, UsageError
from embedctl.events import Listener
from embedctl.job import limits, passes, wiring
from embedctl.models.folder import ModelFolder
from embedctl.outputs import OutputKind, OutputSpec, Values, take
from embedctl.plan import Pass, Plan
from embedctl.records import Cursor, Window, WindowKey
from embedctl.spec import JobSpec
from embedctl.stages.encode import Engine, finish, start
from embedctl.stages.prepare import TextRules, prepare
from embedctl.text.template import row_problem
from embedctl.tokens.pack import padding_of, split_batch, unique_texts

QUERY_PROMPT = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How queries are embedded, where it is not as the plan says. `model`: where the same model lies now."""

    prompt: str | None = None
    prompt_name: str | None = None
    model: str | None = None
    device: str | None = None
    threads: int | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if self.prompt is not None and self.prompt_name is not None:
            raise UsageError("--prompt and --prompt-name: give one of them")


def read_queries(path: Path) -> list[Query]:
    """One JSON object a line: `id` (or `_id`) and `text`.

    :raises SourceError: the file cannot be read. :raises UsageError: a line is no query, or an id comes twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not UTF-8: {exc}"
        raise SourceError(f"--queries: cannot read {path}: {reason}") from exc
    found: dict[str, Query] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            query = _query(line, f"--queries: {path}, line {number}")
            if query.id in found:
                raise UsageError(f"--queries: {path}, line {number}: the id {query.id!r} stood in an earlier line")
            found[query.id] = query
    if not found:
        raise UsageError(f"--queries: {path} holds no queries", hint='one a line: {"id": "q1", "text": "how to ..."}')
    return list(found.values())


def _query(line: str, where: str) -> Query:
    hint = '{"id": "q1", "text": "how to ..."}'
    try:
        obj = json.loads(line)
    except ValueError as exc:
        raise UsageError(f"{where}: not JSON ({exc})", hint=hint) from exc
    held = obj if isinstance(obj, dict) else {}
    id, text = held.get("id", held.get("_id")), held.get("text")
    if isinstance(id, bool) or not isinstance(id, (str, int)) or not isinstance(text, str):
        raise UsageError(f"{where}: needs an `id` (text or whole number) and a `text`", hint=hint)
    if problem := row_problem(text):
        raise UsageError(f"{where}: query {str(id)!r}: {problem}")
    return Query(id=str(id), text=text)


def embed_queries(
    plan: Plan, queries: Sequence[Query], asking: Asking, listener: Listener, names: Sequence[str] | None = None
) -> dict[str, Values]:
    """By output (of `names`, None: of all), Q values in float32 or, for multivectors, of any float; i for query i.

    :raises PlanMismatch: a model is not the one that the corpus was embedded with.
    :raises UsageError: a text that cannot be embedded, vectors that were loaded without a model.
    :raises EncoderError: a query's vector is NaN, Inf or zero.
    """
    for query in queries:
        if problem := row_problem(query.text):
            raise UsageError(f"query {query.id!r}: {problem}")
    out: dict[str, Values] = {}
    for one in _passes(plan, asking):
        wanted = [o for o in one.outputs if names is None or o.name in names]
        if wanted:
            out |= _of_model(plan, one, wanted, queries, asking, listener)
    return {o.name: out[o.name] for o in plan.outputs if o.name in out}


def _of_model(
    plan: Plan, one: Pass, wanted: Sequence[OutputSpec], queries: Sequence[Query], asking: Asking, listener: Listener
) -> dict[str, Values]:
    folder = _same_model(plan, one, asking).as_query()
    resolved, spec = _resolved(plan, one, folder, asking)
    tokenizer = wiring.open_tokenizer(folder, resolved, spec)
    resolved["num_prompt_tokens"] = tokenizer.num_prompt_tokens
    encoder = wiring.open_planned_encoder(folder, spec, resolved, [o.kind for o in wanted])
    rules = TextRules(
        unique=unique_texts,
        feeds=[wiring.feed_rules(tokenizer, encoder.padded)],
        chunk=None,
        on_overlong="truncate",
        overlong=None,
    )
    padded = padding_of if encoder.padded else lambda batch: batch.num_tokens
    outputs: dict[OutputKind, str] = {o.kind: o.name for o in wanted}
    try:
        with ThreadPoolExecutor(max(1, encoder.lanes)) as pool:
            engine = Engine(encoder=encoder, names=outputs, split=split_batch, padded=padded, pool=pool)
            window = _window(queries)
            started = start(prepare(window, rules, [resolved["batch_tokens"]]), [engine])
            done = finish(started, [engine], lambda _: None, window.key)
    finally:
        encoder.close()
    for row, reason in done.reasons.items():
        raise EncoderError(f"query {queries[row].id!r}: {reason}")
    cut = int(done.prepared.units.tokenized.truncated[done.prepared.units.sequence].sum())
    if cut:
        listener.note(f"{cut} of {len(queries)} queries are longer than the model's {tokenizer.max_length} tokens: cut")
    return {name: take(done.outputs[name], done.prepared.units.sequence) for name in outputs.values()}


def _passes(plan: Plan, asking: Asking) -> tuple[Pass, ...]:
    """The plan's; for vectors that were loaded, what the model named now makes of its settings.

    :raises UsageError: no model is known. :raises PlanMismatch: it gives vectors of another size.
    """
    if not plan.is_loaded:
        return plan.passes
    card = plan.passes[0]
    asked = asking.model or card.asked or (str(card.model["name"]) if card.model["fingerprint"] else None)
    if asked is None:
        raise UsageError(
            "these vectors were loaded without a model, so words cannot be embedded as they were",
            hint="--model NAME says which model made them; --like ID needs none",
        )
    kinds = tuple(dict.fromkeys(o.kind for o in card.outputs))
    spec = replace(JobSpec(model=(asked,), offline=asking.offline), output=kinds)
    found = passes.passes_of(spec, passes.open_models(spec), str(card.resolved["id_type"]))[0]
    made = {o.kind: o for o in found.outputs}
    for output in card.outputs:
        if made[output.kind].dim != output.dim and output.kind != "sparse":
            raise PlanMismatch(
                f"{asked}: gives {made[output.kind].dim} numbers, {output.name} has {output.dim}",
                hint="--model NAME says which model made the vectors",
            )
    model = found.model if not card.model["fingerprint"] else {**found.model, "fingerprint": card.model["fingerprint"]}
    return (replace(found, model=model, outputs=card.outputs),)


def query_prompt(folder: ModelFolder, asking: Asking) -> str:
    """`--prompt`, else `--prompt-name`, else the folder's prompt named `query`, else its default prompt, else none."""
    if asking.prompt is None and asking.prompt_name is None and QUERY_PROMPT in folder.prompts:
        return folder.prompts[QUERY_PROMPT]
    return folder.prompt(JobSpec(prompt=asking.prompt, prompt_name=asking.prompt_name))


def _same_model(plan: Plan, one: Pass, asking: Asking) -> ModelFolder:
    spec = replace(JobSpec(**plan.asked()), offline=asking.offline, model=(one.asked,), output=())
    if asking.model is not None and len(plan.passes) == 1:
        spec = replace(spec, model=(asking.model,), revision=None)
    folder = passes.open_models(spec)[0]
    if folder.fingerprint() != one.model["fingerprint"]:
        raise PlanMismatch(
            f"{spec.models[0][1]}: its weights or tokenizer are not the ones that the corpus was embedded with",
            hint="--model FOLDER names the model's place, where it was moved",
        )
    return folder


def _resolved(plan: Plan, one: Pass, folder: ModelFolder, asking: Asking) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """What the plan resolved, for the device of this machine; without compiling, which pays for long jobs only."""
    device = one.resolved["device"]
    if folder.kind != "fake":
        from embedctl.encoders.open import resolve_device

        device = resolve_device(asking.device)
    changed: dict[str, Any] = {"prompt": query_prompt(folder, asking), "device": device, "compile": False}
    changed["threads"] = asking.threads or limits.available_cpus()
    if folder.late is not None or folder.media is not None:  # which read queries of a length of their own
        changed["max_length"] = folder.max_seq_length
    same_kind = device.partition(":")[0] == str(one.resolved["device"]).partition(":")[0]
    return {**one.resolved, **changed}, {**plan.spec, "attention": plan.spec["attention"] if same_kind else None}


def _window(queries: Sequence[Query]) -> Window:
    """Queries as the stages take rows."""
    count, here = len(queries), Cursor(segment=0, position=0)
    return Window(
        key=WindowKey(generation=1, slice=0, window=0),
        begin=here,
        end=here,
        last=True,
        files=np.zeros(count, dtype=np.int32),
        positions=np.arange(count, dtype=np.int64),
        ids=[query.id for query in queries],
        texts=[query.text for query in queries],
        kept=pa.table({}),
        dead=(),
        books=(),
    )
