"""The outputs of a job as the vectors of a Qdrant collection, and whether a collection there already fits them.

Enters: a plan and what was asked. Leaves: a `Layout`: one dense output is the collection's unnamed vector; several,
and any sparse or multivector, are named as the outputs are. Refused, each named: what Qdrant would misread or has no
place for.
"""

from __future__ import annotations

from collections.abc import Sequence

from embedctl.errors import UsageError
from embedctl.outputs import OutputSpec
from embedctl.sinks import stores
from embedctl.sinks.qdrant_engine import HASH, JOB, POS, UNNAMED, Layout, Vector
from embedctl.spec import JobSpec

DISTANCES = {"cosine": "Cosine", "dot": "Dot", "euclidean": "Euclid", "manhattan": "Manhattan"}
SIMILARITIES = {v: k for k, v in DISTANCES.items()}
FIELD_KINDS = (*stores.FIELD_KINDS, "geo")
_NEW = "choose another collection with --to; one that does not exist is made with --create"


def refuse(spec: JobSpec) -> None:
    """Before a plan is made. :raises UsageError: what no collection could hold as asked."""
    kind = spec.vector_type
    if kind in ("int8", "binary", "ubinary"):
        instead = "uint8" if kind == "int8" else "float32 --quantization binary"
        raise UsageError(
            f"--vector-type: {kind} would be misread by Qdrant; it takes float32, float16 or uint8",
            hint=f"--vector-type {instead}",
        )
    if kind == "uint8" and spec.quantization is not None:
        raise UsageError("--quantization: uint8 vectors are small already", hint="leave --quantization out")
    if spec.on_duplicate == "keep":
        raise UsageError("--on-duplicate: keep needs a folder of Parquet; a store holds one point an id")
    taken = [name for name in spec.keep if name in (JOB, POS, HASH)]
    if taken:
        raise UsageError(f"--keep: {taken[0]!r} is a name the payload uses itself")
    if spec.window_rows > stores.MAX_ROWS:
        raise UsageError(f"--window-rows: a store takes at most {stores.MAX_ROWS}")


def layout_of(outputs: Sequence[OutputSpec], spec: JobSpec) -> Layout:
    """:raises UsageError: an output for which Qdrant has no vector."""
    made = {o.name: _vector(o, spec) for o in outputs}
    alone = len(outputs) == 1 and outputs[0].kind == "dense"
    return {UNNAMED: made[outputs[0].name]} if alone else made


def _vector(output: OutputSpec, spec: JobSpec) -> Vector:
    if output.kind == "score":
        raise UsageError("--to: scores are no vectors; Qdrant has no place for them", hint="choose a folder with --to")
    if output.kind == "sparse":
        return Vector(kind="sparse", modifier=output.modifier)
    distance = DISTANCES.get(spec.distance or output.similarity)
    if distance is None:
        raise UsageError(
            f"the model's similarity {output.similarity!r} is none that Qdrant has", hint="--distance cosine"
        )
    if output.kind == "multivector":
        return Vector(kind="multivector", size=output.dim, distance=distance, datatype=output.vector_type)
    if output.vector_type == "uint8" and distance == "Dot":  # measured: half of the nearest ten are others
        raise UsageError(
            "--vector-type: uint8 numbers all stand above zero, so that dot would rank them wrong",
            hint="--vector-type uint8 --distance cosine, or --vector-type float32 --quantization scalar",
        )
    return Vector(
        kind="dense",
        size=output.dim,
        distance=distance,
        datatype=output.vector_type,
        quantization=spec.quantization,
    )


def check_layout(name: str, found: Layout, wanted: Layout, *, ours: bool, spec: JobSpec) -> None:
    """`ours`: the collection was made by this job, so that what was chosen then stands unless asked for otherwise now.

    :raises UsageError: the first thing in which the collection does not fit, and how to come to one that does.
    """
    if found.keys() != wanted.keys():
        raise UsageError(f"{name}: has {_names(found)}, this job needs {_names(wanted)}", hint=_NEW)
    for vector, needs in wanted.items():
        has, label = found[vector], f"vector {vector!r} " if vector else "vector "
        for what in ("kind", "size", "distance", "datatype", "modifier"):
            old, new = getattr(has, what), getattr(needs, what)
            if old == new or (what == "distance" and ours and spec.distance is None):
                continue
            if needs.kind == "sparse" and what in ("size", "distance", "datatype"):
                continue
            raise UsageError(f"{name}: {label}{what} {old or 'none'}, this job needs {new or 'none'}", hint=_NEW)
        if spec.quantization is not None and needs.kind == "dense" and has.quantization != spec.quantization:
            raise UsageError(
                f"{name}: {label}quantization {has.quantization or 'none'}, asked for {spec.quantization}", hint=_NEW
            )


def _names(layout: Layout) -> str:
    if list(layout) == [UNNAMED]:
        return f"one unnamed {layout[UNNAMED].kind} vector"
    named = ", ".join(f"{n!r} ({v.kind})" if n else f"an unnamed one ({v.kind})" for n, v in sorted(layout.items()))
    return f"the vectors {named}" if named else "no vectors"
