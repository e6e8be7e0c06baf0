"""JobSpec and model folders -> passes: what the settings become for each model, and the outputs that it gives.

Refuses: an output that a model does not give, names that stand for two columns, settings that fit no output.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from embedctl.errors import UsageError
from embedctl.job import media, scoring, wiring
from embedctl.job.limits import available_cpus
from embedctl.models.folder import ModelFolder
from embedctl.models.load import find_model
from embedctl.models.muvera import muvera_of
from embedctl.outputs import SINGLE, OutputSpec
from embedctl.plan import Pass
from embedctl.sources.schema import RESERVED_NAMES
from embedctl.spec import JobSpec

CPU_BATCH_TOKENS = 4096
CUDA_BATCH_TOKENS = 65536
FIRST_WINDOW_ROWS = 1024


def open_models(spec: JobSpec) -> tuple[ModelFolder, ...]:
    """:raises ModelError: not found, or not understood. :raises UsageError: it does not read what the rows are."""
    folders = [
        find_model(
            asked,
            revision=spec.revision,
            offline=spec.offline,
            allow_pickle=spec.allow_pickle,
            trust_remote_code=spec.trust_remote_code,
            scorer=spec.task != "embed",
            engine=spec.engine,
        )
        for _, asked in spec.models
    ]
    if spec.muvera is not None:
        late = [f.late is not None and "dense" not in f.gives for f in folders]
        one = muvera_of(spec.muvera)
        folders = [f.in_one(one) if mine or not any(late) else f for f, mine in zip(folders, late, strict=True)]
    return media.as_read(folders, spec)


def passes_of(spec: JobSpec, folders: Sequence[ModelFolder], id_type: str) -> tuple[Pass, ...]:
    """What the settings become for each model. :raises UsageError: an output that the model does not give."""
    passes = []
    for (name, asked), folder in zip(spec.models, folders, strict=True):
        resolved = {**_resolve(spec, folder), "id_type": id_type}
        outputs = _outputs(spec, name, folder)
        if device_decides(spec, folder, resolved):
            resolved["batch_tokens"] = _measured(spec, folder, resolved, outputs)
        passes.append(Pass(asked=asked, model=_card(folder, resolved), resolved=resolved, outputs=outputs))
    _check_outputs(spec, passes)
    return tuple(passes)


def device_decides(spec: JobSpec, folder: ModelFolder, resolved: Mapping[str, Any]) -> bool:
    """Whether the budget is to be found on the device: of texts on a GPU, where nobody said one."""
    texts = folder.kind == "transformer" and folder.reads is None
    return spec.batch_tokens is None and texts and str(resolved["device"]).startswith("cuda")


def _measured(spec: JobSpec, folder: ModelFolder, resolved: Mapping[str, Any], outputs: Sequence[OutputSpec]) -> int:
    from embedctl.encoders import budget

    kinds = [output.kind for output in outputs]
    made_of = {"model": folder.fingerprint(), "dtype": resolved["dtype"], "outputs": kinds, "attention": spec.attention}
    settings = spec.of_kind("rows", "recipe", "tuning")
    return budget.batch_tokens(
        budget.Probe(
            open=lambda: wiring.open_planned_encoder(folder, settings, resolved, kinds),
            memory=budget.CudaMemory(str(resolved["device"])),
            made_of=made_of,
            max_length=int(resolved["max_length"]),
        )
    )


def _outputs(spec: JobSpec, name: str | None, folder: ModelFolder) -> tuple[OutputSpec, ...]:
    """The outputs asked for; else, of a named model, the kind of that name; else what the model is made for."""
    if spec.task != "embed":
        return scoring.outputs_of(spec, name, folder)
    if folder.kinds == ("score",):
        command = "rerank" if len(folder.labels) <= 1 else "classify"
        raise UsageError(
            f"--model: {folder.name} ({folder.architecture}) scores texts and gives no vectors",
            hint=f"embedctl {command} --help",
        )
    wanted = spec.output or ((name,) if name in folder.kinds else folder.kinds[:1])
    for kind in wanted:
        if kind not in folder.kinds:
            raise UsageError(
                f"--output: {folder.name} gives no {kind} output; it gives: {', '.join(folder.kinds)}",
                hint=f"--output {folder.kinds[0]}",
            )
    return tuple(
        OutputSpec(
            name=name if name and len(wanted) == 1 else SINGLE if len(wanted) == 1 else kind,
            kind=kind,
            dim=folder.numbers(kind, spec),
            vector_type={"dense": spec.vector_type, "multivector": "float16"}.get(kind, "float32"),
            similarity="dot" if kind == "sparse" or (kind == "dense" and folder.muvera) else folder.similarity,
            modifier=folder.modifier if kind == "sparse" else None,
        )
        for kind in folder.kinds
        if kind in wanted
    )


def check_names(passes: Sequence[Pass], keep: Sequence[str]) -> None:
    """:raises UsageError: an output has the name of another column."""
    taken = {*keep, *RESERVED_NAMES} - {SINGLE}
    for name in (output.name for one in passes for output in one.outputs):
        if name in taken:
            why = "a kept column" if name in keep else "a column the output uses itself"
            raise UsageError(f"--model: {name!r} is {why}; an output cannot have its name", hint=f"--model {name}_=...")


def _check_outputs(spec: JobSpec, passes: Sequence[Pass]) -> None:
    kinds = [output.kind for one in passes for output in one.outputs]
    if spec.chunk_pool and set(kinds) != {"dense"}:
        raise UsageError("--chunk-pool: only dense vectors can be averaged", hint="leave out --chunk-pool")
    if spec.pooling and "dense" not in kinds:
        raise UsageError(
            f"--pooling: only dense vectors are pooled, and there are only {', '.join(kinds)}", hint="--output dense"
        )
    if (spec.sparse_top_k or spec.sparse_threshold) and "sparse" not in kinds:
        raise UsageError("--sparse-top-k and --sparse-threshold: no output is sparse", hint="--output sparse")
    if spec.pool_factor and "multivector" not in kinds and spec.muvera is None:
        raise UsageError("--pool-factor: no output is a vector a token", hint="--output multivector")
    if spec.vector_type != "float32" and "dense" not in kinds:
        raise UsageError(f"--vector-type: it is for dense vectors, and there are only {', '.join(kinds)}")


def _resolve(spec: JobSpec, folder: ModelFolder) -> dict[str, Any]:
    device, dtype = "cpu", "float32"
    if folder.onnx is not None:
        from embedctl.encoders.onnx import resolve_onnx

        device, dtype = resolve_onnx(folder, device=spec.device, dtype=spec.dtype, pooling=spec.pooling)
    elif folder.kind != "fake":
        from embedctl.encoders.open import resolve_device, resolve_dtype

        device = resolve_device(spec.device)
        dtype = "float32" if folder.kind in ("static", "lexical") else resolve_dtype(spec.dtype, device)
    prompt = folder.prompt(spec)
    resolved: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "threads": spec.threads or available_cpus(),
        "batch_tokens": spec.batch_tokens or (CUDA_BATCH_TOKENS if device.startswith("cuda") else CPU_BATCH_TOKENS),
        "compile": spec.compile,
        "prompt": prompt,
        "max_length": folder.max_length(spec),
        "dim": folder.dim(spec) if folder.scorer is None else 0,
        "window_rows": spec.window_rows,
        "first_window_rows": FIRST_WINDOW_ROWS,
        "window_bytes": spec.window_bytes,
        "slice_bytes": spec.slice_bytes,
        "machine": platform.machine(),
    }
    if folder.scorer is not None:
        resolved |= scoring.resolved_of(spec, folder)
    tokenizer = wiring.open_tokenizer(folder, resolved, spec.of_kind("recipe"))
    resolved["num_prompt_tokens"] = tokenizer.num_prompt_tokens
    return resolved


def _card(folder: ModelFolder, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader of the vectors should know of their model."""
    return {
        "name": folder.name,
        "architecture": folder.architecture,
        "fingerprint": folder.fingerprint(),
        "dim": resolved["dim"],
        "max_length": resolved["max_length"],
        "prompt": resolved["prompt"],
        "prompts": dict(folder.prompts),
        "similarity": folder.similarity,
        "normalised": folder.normalize and folder.muvera is None,
        **({} if folder.scorer is None else scoring.card_of(folder, resolved)),
    }
