"""An ONNX file's outside, read from its bytes: what it takes, what it gives, how it is made, where its weights lie.

Enters: a path. Leaves: an `OnnxGraph`. Needs neither onnx nor onnxruntime, and skips over the weights. Refuses, naming
the file: what is cut short or no ONNX, weights outside that are missing. Source: onnx.proto3 (its field numbers).
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from embedctl.errors import ModelError

BY_BATCH_OPS = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""They scale over all numbers they are given, so that a sequence's result depends on its neighbours."""
_FOUR_BIT_OPS = frozenset({"MatMulNBits", "MatMulBnb4"})
_DTYPES = {1: "float32", 2: "int8", 3: "int8", 10: "float16", 16: "bfloat16", 21: "int4", 22: "int4"}
"""TensorProto.DataType: what weights may be."""
INT32, INT64 = 6, 7
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_OP_TYPE, _NODE_ATTRIBUTE, _FUNCTION_NODE = 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_EXTERNAL = 1, 2, 8, 13
_LENGTHS = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input or output. type: TensorProto.DataType. dims: a number where it is fixed, None: as it comes; no dims at
    all where the file does not tell."""

    name: str
    type: int
    dims: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """data: files beside it that hold weights. dtype: what most weights are. by_batch: sequences that run together
    change each other's numbers. output: the one that is read; finished: it holds a text's vector, not its tokens'."""

    path: Path
    data: tuple[Path, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dtype: str
    by_batch: bool
    output: str = ""
    finished: bool = False


@dataclass(slots=True, kw_only=True)
class _Found:
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    numbers: Counter[int] = field(default_factory=Counter)
    operators: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)


def read_graph(path: Path) -> OnnxGraph:
    """:raises ModelError: see the module."""
    found = _Found()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                _model(view, found)
            finally:
                view.release()
    except (OSError, ValueError, IndexError, BufferError) as exc:
        raise ModelError(f"{path}: cut short, or not ONNX", hint="download the model again") from exc
    if not found.outputs:
        raise ModelError(f"{path}: cut short, or not ONNX", hint="download the model again")
    data = tuple(path.parent / name for name in sorted(found.outside))
    for part in data:
        if not part.is_file() or not part.resolve().is_relative_to(path.parent.resolve()):
            raise ModelError(f"{part}: missing; {path.name} keeps its weights there", hint="download the model again")
    return OnnxGraph(
        path=path, data=data,
        inputs=tuple(port for port in found.inputs if port.name not in found.weights),
        outputs=tuple(found.outputs), dtype=_dtype(found), by_batch=bool(found.operators & BY_BATCH_OPS),
    )  # fmt: skip


def _dtype(found: _Found) -> str:
    if found.operators & _FOUR_BIT_OPS:
        return "int4"
    counted: Counter[str] = Counter()
    for type_, count in found.numbers.items():
        if type_ in _DTYPES:
            counted[_DTYPES[type_]] += count
    return counted.most_common(1)[0][0] if counted else "float32"


def _model(view: memoryview, found: _Found) -> None:
    for number, value in _fields(view):
        if number == _MODEL_GRAPH and isinstance(value, memoryview):
            _graph(value, found, outer=True)
        elif number == _MODEL_FUNCTIONS and isinstance(value, memoryview):
            for inner, node in _fields(value):
                if inner == _FUNCTION_NODE and isinstance(node, memoryview):
                    _node(node, found)


def _graph(view: memoryview, found: _Found, *, outer: bool) -> None:
    for number, value in _fields(view):
        if not isinstance(value, memoryview):
            continue
        if number == _GRAPH_NODE:
            _node(value, found)
        elif number == _GRAPH_INITIALIZER:
            _tensor(value, found)
        elif number == _GRAPH_INPUT and outer:
            found.inputs.append(_port(value))
        elif number == _GRAPH_OUTPUT and outer:
            found.outputs.append(_port(value))


def _node(view: memoryview, found: _Found) -> None:
    for number, value in _fields(view):
        if number == _NODE_OP_TYPE and isinstance(value, memoryview):
            found.operators.add(_text(value))
        elif number == _NODE_ATTRIBUTE and isinstance(value, memoryview):
            for inner, part in _fields(value):
                if inner in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS) and isinstance(part, memoryview):
                    _tensor(part, found)
                elif inner in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS) and isinstance(part, memoryview):
                    _graph(part, found, outer=False)


def _tensor(view: memoryview, found: _Found) -> None:
    dims: list[int] = []
    type_ = 0
    for number, value in _fields(view):
        if number == _TENSOR_DIMS:
            dims += [value] if isinstance(value, int) else _packed(value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            type_ = value
        elif number == _TENSOR_NAME and isinstance(value, memoryview):
            found.weights.add(_text(value))
        elif number == _TENSOR_EXTERNAL and isinstance(value, memoryview):
            entry = {k: _text(v) for k, v in _fields(value) if isinstance(v, memoryview)}
            if entry.get(1) == "location":
                found.outside.add(entry[2])
    found.numbers[type_] += prod(dims)


def _port(view: memoryview) -> Port:
    """ValueInfoProto: name 1, type 2 (TypeProto: tensor_type 1 (elem_type 1, shape 2 (dim 1 (dim_value 1))))."""
    name, type_, dims = "", 0, None
    for number, value in _fields(view):
        if number == 1 and isinstance(value, memoryview):
            name = _text(value)
        for inner, tensor in _fields(value) if number == 2 and isinstance(value, memoryview) else ():
            for key, part in _fields(tensor) if inner == 1 and isinstance(tensor, memoryview) else ():
                if key == 1 and isinstance(part, int):
                    type_ = part
                elif key == 2 and isinstance(part, memoryview):
                    dims = tuple(_dim(d) for k, d in _fields(part) if k == 1 and isinstance(d, memoryview))
    return Port(name=name, type=type_, dims=dims)


def _dim(view: memoryview) -> int | None:
    return next((v for k, v in _fields(view) if k == 1 and isinstance(v, int) and v > 0), None)


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a protobuf message. :raises ValueError, IndexError: it is none, or cut."""
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        size = _LENGTHS.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"wire type {kind}")
            size, at = _varint(view, at)
        if at + size > len(view):
            raise ValueError("cut short")
        if kind == 2:
            yield number, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _packed(view: memoryview) -> list[int]:
    values, at = list[int](), 0
    while at < len(view):
        value, at = _varint(view, at)
        values.append(value)
    return values


def _text(view: memoryview) -> str:
    return bytes(view).decode("utf-8", "replace")
