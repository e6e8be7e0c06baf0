"""The plan: what is fixed before the first row and obeyed by every resume.

Enters: a `JobSpec` and what was resolved from it (files, slices, schema, model, dtype, kernels). Leaves: an immutable
`Plan`, published once as `.embedctl/plan-<generation>.json`. Refuses: a later spec that asks for something else,
each field named (`PlanMismatch`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from embedctl import __version__
from embedctl.errors import PlanMismatch
from embedctl.outputs import SINGLE, OutputSpec
from embedctl.records import Segment, Slice, SourceFile
from embedctl.spec import DEFAULT_MODEL, JobSpec, flag
from embedctl.storage import STATE, Storage

FORMAT = 2
LOADED = "loaded"
"""Key of `Plan.resolved`, output -> column, where vectors were read and not computed."""
_FREE = frozenset({"device", "memory"})
"""Tuning that may differ on a resume without touching a byte of the output's meaning: where and in how much memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One model's way over the corpus.

    asked: what `--model` said, its name taken off. model: the card that readers of the vectors get. resolved: what this
    model's settings became. outputs: what it writes, by the encoder's kind.
    """

    asked: str
    model: Mapping[str, Any]
    resolved: Mapping[str, Any]
    outputs: tuple[OutputSpec, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "model": dict(self.model),
            "resolved": dict(self.resolved),
            "outputs": [o.to_json() for o in self.outputs],
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Pass:
        outputs = tuple(map(OutputSpec.from_json, obj["outputs"]))
        return cls(asked=obj["asked"], model=obj["model"], resolved=obj["resolved"], outputs=outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """See DESIGN words: plan. `spec` holds the fields of kind rows, recipe and tuning as asked; `passes` what became of
    them for each model. `job` names the first generation's plan in every part's footer. `schema` is what readers
    deliver. `int8_ranges`: by output, (2, C) as nested lists. `targets`: the (slice, window) places a retry
    goes over, None for a first generation. `changes`: the generation whose list of changed rows the slices are cut
    from; None where they are cut from the files."""

    generation: int
    job: str
    recipe: str
    snapshot: str
    spec: Mapping[str, Any]
    passes: tuple[Pass, ...]
    schema: pa.Schema
    id_column: str | None
    text_columns: tuple[str, ...]
    keep: tuple[str, ...]
    inputs: tuple[str, ...]
    files: tuple[SourceFile, ...]
    slices: tuple[Slice, ...]
    int8_ranges: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    targets: tuple[tuple[int, int], ...] | None = None
    changes: int | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; files and slices as rows, since there may be hundreds of thousands."""
        return {
            "format": FORMAT,
            "embedctl": self.version,
            "generation": self.generation,
            "job": self.job,
            "recipe": self.recipe,
            "snapshot": self.snapshot,
            "spec": dict(self.spec),
            "passes": [p.to_json() for p in self.passes],
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "id_column": self.id_column,
            "text_columns": list(self.text_columns),
            "keep": list(self.keep),
            "inputs": list(self.inputs),
            "files": [[f.uri, f.path, f.format, f.compression, f.size_bytes, f.version, f.touched] for f in self.files],
            "slices": [[[[s.file, s.begin, s.end] for s in sl.segments], sl.limit_rows] for sl in self.slices],
            "int8_ranges": dict(self.int8_ranges),
            "targets": None if self.targets is None else [list(t) for t in self.targets],
            "changes": self.changes,
            "libraries": dict(self.libraries),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Plan:
        """:raises PlanMismatch: written by a newer embedctl in a format this one does not know."""
        if obj["format"] == 1:
            obj = _from_format_1(obj)
        if obj["format"] != FORMAT:
            raise PlanMismatch(
                f"the plan has format {obj['format']}, this embedctl reads {FORMAT} (it was made by {obj['embedctl']})",
                hint="pip install --upgrade embedctl",
            )
        return cls(
            generation=obj["generation"],
            job=obj["job"],
            recipe=obj["recipe"],
            snapshot=obj["snapshot"],
            spec=obj["spec"],
            passes=tuple(map(Pass.from_json, obj["passes"])),
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(obj["schema"]))),
            id_column=obj["id_column"],
            text_columns=tuple(obj["text_columns"]),
            keep=tuple(obj["keep"]),
            inputs=tuple(obj["inputs"]),
            files=tuple(
                SourceFile(index=i, uri=u, path=p, format=f, compression=c, size_bytes=s, version=v, touched=sum(t))
                for i, (u, p, f, c, s, v, *t) in enumerate(obj["files"])
            ),
            slices=tuple(
                Slice(index=i, segments=tuple(Segment(file=f, begin=b, end=e) for f, b, e in segments), limit_rows=n)
                for i, (segments, n) in enumerate(obj["slices"])
            ),
            int8_ranges=obj["int8_ranges"],
            targets=None if obj["targets"] is None else tuple((s, w) for s, w in obj["targets"]),
            changes=obj.get("changes"),
            libraries=obj["libraries"],
            version=obj["embedctl"],
        )

    def asked(self) -> dict[str, Any]:
        """The fields of the `JobSpec` this was planned from, as `JobSpec` takes them."""
        return {k: tuple(v) if isinstance(v, list) else v for k, v in self.spec.items()}

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """What every unit gets, in the order of its columns."""
        return tuple(output for one in self.passes for output in one.outputs)

    @property
    def model(self) -> Mapping[str, Any]:
        """The first model's card."""
        return self.passes[0].model

    @property
    def resolved(self) -> Mapping[str, Any]:
        """What the settings became for the first model; those that concern the whole job are the same for all."""
        return self.passes[0].resolved

    def with_resolved(self, changes: Mapping[str, Any]) -> Plan:
        """The same plan with other settings for all models."""
        return replace(self, passes=tuple(replace(p, resolved={**p.resolved, **changes}) for p in self.passes))

    @property
    def is_loaded(self) -> bool:
        """Whether its vectors were read from tables, so that there is no text to embed again."""
        return LOADED in self.resolved

    @property
    def is_stream(self) -> bool:
        """Whether the source is standard input, which cannot be read twice."""
        return any(f.path == "-" for f in self.files)

    @property
    def is_sync(self) -> bool:
        """Whether this generation goes over a list of changed rows, which holds them, and not over the files."""
        return self.changes == self.generation

    @property
    def chunked(self) -> bool:
        """Whether a row may give several units, so that parts have the columns chunk, char_start and char_end."""
        pooled = self.spec["chunk_pool"] is not None
        listed = self.spec.get("candidates_column") is not None
        return (self.spec["chunk"] is not None and not pooled) or self.spec["on_overlong"] == "chunk" or listed

    def moved_to(self, files: Sequence[SourceFile]) -> Plan:
        """The same plan over the same files found under another root."""
        return replace(self, files=tuple(files))


def publish(storage: Storage, plan: Plan) -> bool:
    """Put the plan where every resume finds it; False when one of this generation is already there."""
    content = json.dumps(plan.to_json(), indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return storage.put_if_absent(_name(plan.generation), content)


def load(storage: Storage, generation: int | None = None) -> Plan | None:
    """The plan of a generation, or of the newest; None where there is none."""
    if generation is None:
        numbers = [n for e in storage.list(STATE) if (n := _generation(e.name)) is not None]
        if not numbers:
            return None
        generation = max(numbers)
    content = storage.read(_name(generation))
    if content is None:
        return None
    try:
        return Plan.from_json(json.loads(content))
    except (ValueError, KeyError, TypeError) as exc:
        raise PlanMismatch(
            f"{storage.uri}/{_name(generation)}: not a readable plan ({exc})",
            hint=f"bring it back from a copy, or move it away, then: embedctl state rebuild {storage.uri}",
        ) from exc


def delete(storage: Storage, generation: int) -> None:
    """Forget a plan that nothing goes back to. Absent is fine."""
    storage.delete(_name(generation))


def contradictions(plan: Plan, spec: JobSpec) -> list[str]:
    """Fields in which the spec asks for something else than the plan holds, as `--flag: asked 1, planned 2`."""
    default = JobSpec().of_kind("rows", "recipe", "tuning")
    found = []
    for name, asked in spec.of_kind("rows", "recipe", "tuning").items():
        planned = plan.spec.get(name, default[name])  # an older embedctl did not know every field
        if name == "model" and (list(asked) or [DEFAULT_MODEL]) == (list(planned) or [DEFAULT_MODEL]):
            continue
        if name in _FREE or asked == planned or (asked == default[name] and _is_tuning(name)):
            continue
        if asked is not None and asked == _became(plan, name):
            continue
        found.append(f"{flag(name)}: asked for {_shown(asked)}, planned with {_shown(planned)}")
    return found


def _became(plan: Plan, name: str) -> Any:
    """What a field that was left open was decided to be; None where that is not one value."""
    if name == "id_column":
        return plan.id_column
    if name == "text_column":
        return None if plan.spec["text_template"] else plan.text_columns[0]
    if _is_tuning(name) or (len(plan.passes) == 1 and name in ("dtype", "max_length", "dim", "prompt")):
        return plan.resolved.get(name)
    return None


def check(plan: Plan, spec: JobSpec, destination: str) -> None:
    """:raises PlanMismatch: the spec contradicts the plan; every field is named."""
    found = contradictions(plan, spec)
    if found:
        raise PlanMismatch(
            f"{destination} was planned with other settings: " + "; ".join(found),
            hint="repeat the flags it was started with, or choose another destination with --to",
        )


def _from_format_1(obj: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of one model, as embedctl before 0.2 wrote it."""
    model, spec, ranges = obj["model"], obj["spec"], obj["int8_ranges"]
    output = OutputSpec(
        name=SINGLE, kind="dense", dim=model["dim"], vector_type=spec["vector_type"], similarity=model["similarity"]
    )
    one = Pass(asked=spec["model"], model=model, resolved=obj["resolved"], outputs=(output,))
    return {
        **obj,
        "format": FORMAT,
        "spec": {**spec, "model": [spec["model"]], "output": []},
        "passes": [one.to_json()],
        "int8_ranges": {} if ranges is None else {SINGLE: ranges},
    }


def _is_tuning(name: str) -> bool:
    return name in JobSpec().of_kind("tuning")


def _shown(value: Any) -> str:
    if value in (None, [], False):
        return "nothing"
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)


def _name(generation: int) -> str:
    return f"{STATE}/plan-{generation:04d}.json"


def _generation(name: str) -> int | None:
    found = re.search(r"(?:^|/)plan-(\d+)\.json$", name)
    return int(found[1]) if found else None
