"""Which ONNX file of a model folder stands for its weights, where `--engine` or the folder itself wants one.

Enters: a `ModelFolder`, and what `--engine` said. Leaves: the same, run by torch; or with `onnx` set and the outputs
that its graph can give. Refuses, naming the file: inputs or outputs that are not understood, lengths or widths that are
fixed or do not fit, a choice between several files that nobody made.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from embedctl.errors import ModelError
from embedctl.models.files import find_weights
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import Splade
from embedctl.models.onnx_format import INT32, INT64, OnnxGraph, Port, read_graph
from embedctl.outputs import OutputKind

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings", "hidden_states")
TEXT_OUTPUTS = ("sentence_embedding", "sentence_embeddings", "text_embeds")
USUAL = "model.onnx"


def with_engine(folder: ModelFolder, engine: str) -> ModelFolder:
    """`engine` is auto, torch, onnx or onnx:FILE; auto is onnx only where there are no weights for torch.

    :raises ModelError: see the module.
    """
    wanted, _, file = engine.partition(":")
    if folder.kind != "transformer" or folder.media is not None or folder.scorer is not None:
        if wanted == "onnx":
            raise ModelError(
                f"--engine onnx: {folder.name} is not a text embedder made of a transformer; only those run through "
                "ONNX Runtime",
                hint="leave out --engine",
            )
        if folder.scorer is not None and folder.path is not None:
            find_weights(folder.path, allow_pickle=folder.allow_pickle)
        return folder
    assert folder.path is not None
    if wanted != "onnx":
        if _torch_weights(folder):
            return folder
        if wanted == "torch" or not onnx_files(folder.path):
            find_weights(folder.path, allow_pickle=folder.allow_pickle)  # tells what is missing
    graph = _chosen(folder, file)
    if wanted != "onnx":
        note = f"{folder.name} has no weights for torch that may be opened: {graph.path.name} is run by ONNX Runtime"
        folder = replace(folder, notes=(*folder.notes, note))
    return _with_graph(folder, _understood(folder, graph))


def without_onnx(folder: ModelFolder) -> ModelFolder:
    """The same model run by torch where its folder has the weights for it, else as it is."""
    return replace(folder, onnx=None) if folder.onnx is not None and _torch_weights(folder) else folder


def onnx_files(folder: Path) -> list[Path]:
    """All ONNX files of a folder, by name."""
    return sorted(p for p in folder.rglob("*.onnx") if p.is_file() and not p.name.startswith("."))


def weights_or_onnx(path: Path, *, allow_pickle: bool) -> tuple[Path, ...]:
    """As `find_weights`; nothing where there is an ONNX file in their place. :raises ModelError: as `find_weights`."""
    try:
        return find_weights(path, allow_pickle=allow_pickle)
    except ModelError:
        if not onnx_files(path):
            raise
        return ()


def _torch_weights(folder: ModelFolder) -> tuple[Path, ...]:
    assert folder.path is not None
    return weights_or_onnx(folder.path, allow_pickle=folder.allow_pickle)


def _chosen(folder: ModelFolder, file: str) -> OnnxGraph:
    assert folder.path is not None
    root = folder.root or folder.path
    places = list(dict.fromkeys([folder.path / "onnx", folder.path, root / "onnx", root]))
    there = onnx_files(root)
    names = ", ".join(p.relative_to(root).as_posix() for p in there[:8]) + (", ..." if len(there) > 8 else "")
    if not there:
        raise ModelError(f"--engine onnx: {folder.name} has no ONNX file", hint="leave out --engine")
    found = [p / (file or USUAL) for p in places if (p / (file or USUAL)).is_file()]
    if not found and not file and len(there) == 1:
        found = there
    if not found:
        what = f"has no file {file}" if file else f"has several ONNX files and none is named {USUAL}"
        raise ModelError(
            f"--engine onnx: {folder.name} {what}; it has: {names}",
            hint=f"--engine onnx:{there[0].relative_to(root).as_posix()}",
        )
    if not found[0].resolve().is_relative_to(root.resolve()) and not found[0].is_symlink():
        raise ModelError(f"--engine onnx:{file}: not in the model's folder, {root}", hint="copy the file into it")
    return read_graph(found[0])


def _with_graph(folder: ModelFolder, graph: OnnxGraph) -> ModelFolder:
    """The folder with the graph in the place of its transformer's weights."""
    kinds = tuple(kind for kind in folder.gives if _gives(folder, graph, kind))
    if not kinds:
        raise ModelError(
            f"--engine onnx: {folder.name} gives {', '.join(folder.gives)}, which embedctl makes with torch alone",
            hint="--engine torch",
        )
    own = set(_torch_weights(folder))
    weights = (graph.path, *graph.data, *(w for w in folder.weights if w not in own))
    changed = replace(
        folder, onnx=graph, gives=kinds, weights=weights, sparse=folder.sparse if "sparse" in kinds else None
    )
    side = folder.query_side
    if side is not None and side.path == folder.path:
        changed = replace(changed, query_side=_with_graph(side, graph))
    return changed


def _gives(folder: ModelFolder, graph: OnnxGraph, kind: OutputKind) -> bool:
    if kind == "dense":
        return True
    vocabulary = kind == "sparse" and isinstance(folder.sparse, Splade)
    return not graph.finished and kind != "score" and not vocabulary


def _understood(folder: ModelFolder, graph: OnnxGraph) -> OnnxGraph:
    """The graph with the output to read. :raises ModelError: an input or output is not understood."""
    for port in graph.inputs:
        if port.name not in INPUTS or port.type not in (INT32, INT64):
            raise ModelError(
                f"{graph.path}: it takes {port.name!r}, which is not understood; understood are {', '.join(INPUTS)} "
                "as int64 or int32"
            )
        if port.dims is not None and len(port.dims) == 2 and port.dims[1] is not None:
            raise ModelError(f"{graph.path}: made for texts of exactly {port.dims[1]} tokens; its length must be free")
    if "input_ids" not in {port.name for port in graph.inputs}:
        raise ModelError(f"{graph.path}: it takes no input_ids, so it cannot be given tokens")
    port, finished = _output(folder, graph)
    width = folder.width() if finished else folder.hidden_dim
    last = port.dims[-1] if port.dims else None
    if last is not None and last != width:
        raise ModelError(f"{graph.path}: {port.name} has {last} numbers, the folder's settings say {width}")
    return replace(graph, output=port.name, finished=finished)


def _output(folder: ModelFolder, graph: OnnxGraph) -> tuple[Port, bool]:
    named = {port.name: port for port in graph.outputs}
    for name in TOKEN_OUTPUTS:
        if name in named and (named[name].dims is None or len(named[name].dims or ()) == 3):
            return named[name], False
    for port in graph.outputs:
        if port.dims is not None and len(port.dims) == 3 and port.dims[2] == folder.hidden_dim:
            return port, False
    for name in TEXT_OUTPUTS:
        if name in named and (named[name].dims is None or len(named[name].dims or ()) == 2):
            return named[name], True
    raise ModelError(
        f"{graph.path}: it gives {', '.join(named)}; understood are {', '.join(TOKEN_OUTPUTS)} (a vector a token) and "
        f"{', '.join(TEXT_OUTPUTS)} (a vector a text)"
    )
