"""Outputs in pgvector's types: how each is declared, sent, read back, compared and indexed.

Enters: an `OutputSpec` and values in their stored type. Leaves: SQL words and fields of a binary COPY, from numpy.
float32 is vector, float16 halfvec, binary and ubinary bit, sparse sparsevec, multivector an array of vector or halfvec,
score an array of real. Refused: 8-bit numbers, which pgvector lacks, and sparse vectors a store must weigh by idf.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from embedctl.errors import UsageError
from embedctl.outputs import Multivector, OutputSpec, Sparse, Values
from embedctl.sinks.pgvector_wire import Fields, fixed

MAX_DIM, MAX_BITS, MAX_VOCABULARY = 16_000, 64_000, 1_000_000_000
INDEXED_DIM, INDEXED_HALF_DIM = 2000, 4000
_FLOATS = {"float32": "vector", "float16": "halfvec"}
_BITS = {"binary": 0x80, "ubinary": 0}
_OPERATORS = {"cosine": ("<=>", "cosine"), "dot": ("<#>", "ip"), "euclidean": ("<->", "l2"), "manhattan": ("<+>", "l1")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """An output as a column. declared: `halfvec(384)`. base: without size. operator: distance, the less the nearer."""

    spec: OutputSpec
    declared: str
    base: str
    operator: str | None

    @property
    def index(self) -> tuple[str, str] | None:
        """(what is indexed, with `{}` for the column; operator class) of an HNSW index; None: there can be none."""
        word = "hamming" if self.base == "bit" else _OPERATORS[self.spec.similarity][1]
        if self.base.endswith("[]") or self.operator is None:
            return None
        if self.base == "vector" and self.spec.dim > INDEXED_DIM:
            if self.spec.dim > INDEXED_HALF_DIM:
                return None
            return f"({{}}::halfvec({self.spec.dim}))", f"halfvec_{word}_ops"
        if self.base == "halfvec" and self.spec.dim > INDEXED_HALF_DIM:
            return None
        return "{}", f"{self.base}_{word}_ops"


def typed(spec: OutputSpec) -> Typed:
    """:raises UsageError: pgvector has no such type, or not of this size."""
    if spec.similarity not in _OPERATORS:
        raise UsageError(
            f"the model's similarity {spec.similarity!r} is none that pgvector has", hint="--distance cosine"
        )
    operator = _OPERATORS[spec.similarity][0]
    if spec.kind == "score":
        return Typed(spec=spec, declared="real[]", base="real[]", operator=None)
    if spec.kind == "sparse":
        if spec.modifier is not None:
            raise UsageError(
                f"output {spec.name!r}: its values are to be weighed by {spec.modifier}, which pgvector cannot do",
                hint="--to qdrant://HOST:6334/NAME",
            )
        _check_size(spec, MAX_VOCABULARY)
        return Typed(spec=spec, declared=f"sparsevec({spec.dim})", base="sparsevec", operator=operator)
    if spec.vector_type in _BITS and spec.kind == "dense":
        _check_size(spec, MAX_BITS)
        return Typed(spec=spec, declared=f"bit({spec.dim})", base="bit", operator="<~>")
    base = _FLOATS.get(spec.vector_type)
    if base is None:
        raise UsageError(
            f"--vector-type: PostgreSQL has no {spec.vector_type} vectors; it takes float32, float16, binary, ubinary",
            hint="--vector-type float16",
        )
    _check_size(spec, MAX_DIM)
    declared = f"{base}({spec.dim})"
    if spec.kind == "multivector":
        return Typed(spec=spec, declared=f"{declared}[]", base=f"{base}[]", operator=operator)
    return Typed(spec=spec, declared=declared, base=base, operator=operator)


def _check_size(spec: OutputSpec, limit: int) -> None:
    if spec.dim > limit:
        raise UsageError(
            f"output {spec.name!r}: {spec.dim} dimensions, pgvector holds {limit}", hint=f"--dim {limit}, or fewer"
        )


def fields(values: Values, typed: Typed, oid: int) -> Fields:
    """A field a unit. oid: of `typed.base` without brackets, for multivectors."""
    if isinstance(values, Sparse):
        return _sparse(values, typed.spec.dim)
    if isinstance(values, Multivector):
        return _lists(fixed(_vectors(values.vectors, typed.base[:-2])), values.offsets, oid)
    if typed.base == "bit":
        return fixed(_bits(values, typed.spec))
    if typed.base == "real[]":
        big = values.astype(">f4")
        offsets = np.arange(0, big.size + 1, big.shape[1])
        return _lists(fixed(big.reshape(-1, 1).view(np.uint8)), offsets, 700)
    return fixed(_vectors(values, typed.base))


def _vectors(values: np.ndarray, base: str) -> np.ndarray:
    """(n, C) to uint8 (n, 4 + C * size): dimension, unused, numbers."""
    big = np.ascontiguousarray(values, dtype=">f2" if base == "halfvec" else ">f4").view(np.uint8)
    out = np.empty((len(values), 4 + big.shape[1]), dtype=np.uint8)
    out[:, :4] = np.frombuffer(struct.pack(">hh", values.shape[1], 0), dtype=np.uint8)
    out[:, 4:] = big
    return out


def _bits(values: np.ndarray, spec: OutputSpec) -> np.ndarray:
    """int8 or uint8 (n, ceil(C / 8)), high bit first, to uint8 (n, 4 + ceil(C / 8))."""
    packed = np.ascontiguousarray(values).view(np.uint8) ^ np.uint8(_BITS[spec.vector_type])
    out = np.empty((len(values), 4 + packed.shape[1]), dtype=np.uint8)
    out[:, :4] = np.frombuffer(struct.pack(">i", spec.dim), dtype=np.uint8)
    out[:, 4:] = packed
    return out


def _sparse(values: Sparse, dim: int) -> Fields:
    """Indices from 0, ascending, without zeros."""
    out = []
    for begin, end in zip(values.offsets[:-1].tolist(), values.offsets[1:].tolist(), strict=True):
        indices, numbers = values.indices[begin:end], values.values[begin:end]
        some = numbers != 0
        if not some.all():
            indices, numbers = indices[some], numbers[some]
        body = struct.pack(">iii", dim, len(indices), 0) + indices.astype(">i4").tobytes()
        body += numbers.astype(">f4").tobytes()
        out.append(len(body).to_bytes(4, "big") + body)
    return out


def _lists(entries: Fields, offsets: np.ndarray, oid: int) -> Fields:
    """One-dimensional arrays of these entries."""
    out = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        size = (1, 0, oid, end - begin, 1) if end > begin else (0, 0, oid)
        body = struct.pack(f">{len(size)}i", *size) + b"".join(entries[begin:end])
        out.append(len(body).to_bytes(4, "big") + body)
    return out


def values_from(cells: list[bytes], typed: Typed) -> Values:
    """Values of n units from what the server sends in binary, in the stored type."""
    if typed.base == "sparsevec":
        sizes = np.array([struct.unpack_from(">i", c, 4)[0] for c in cells], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        pairs = list(zip(cells, sizes.tolist(), strict=True))
        indices = b"".join([c[12 : 12 + 4 * n] for c, n in pairs])
        numbers = b"".join([c[12 + 4 * n :] for c, n in pairs])
        return Sparse(
            offsets=offsets,
            indices=np.frombuffer(indices, ">i4").astype(np.uint32),
            values=np.frombuffer(numbers, ">f4").astype(np.float32),
        )
    if typed.base.endswith("[]"):
        return _from_lists(cells, typed)
    flat = np.frombuffer(b"".join([c[4:] for c in cells]), dtype=np.uint8).reshape(len(cells), -1)
    if typed.base == "bit":
        shifted = flat ^ np.uint8(_BITS[typed.spec.vector_type])
        return shifted.view(np.int8) if typed.spec.vector_type == "binary" else shifted
    return _numbers(flat, typed.base)


def _numbers(raw: np.ndarray, base: str) -> np.ndarray:
    if base == "halfvec":
        return raw.view(">f2").astype(np.float16)
    return raw.view(">f4").astype(np.float32)


def _from_lists(cells: list[bytes], typed: Typed) -> Values:
    head = 0 if typed.base == "real[]" else 4
    width = head + typed.spec.dim * (2 if typed.base == "halfvec[]" else 4)
    if typed.base == "real[]":
        width = 4
    sizes = np.array([struct.unpack_from(">i", c, 12)[0] if len(c) > 12 else 0 for c in cells], dtype=np.int64)
    raw = np.frombuffer(b"".join([c[20:] for c in cells]), dtype=np.uint8).reshape(-1, 4 + width)[:, 4 + head :]
    numbers = _numbers(np.ascontiguousarray(raw), typed.base[:-2])
    if typed.base == "real[]":
        return numbers.reshape(len(cells), typed.spec.dim)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Multivector(offsets=offsets, vectors=numbers)
