"""Late interaction in one vector: MUVERA over what another encoder gives, by the fastembed library.

Enters: an encoder of multivectors. Leaves: an encoder that also gives `dense`: a vector of fixed size whose dot product
with a query's comes near the sum of greatest similarities. Documents and queries are made differently. Refused: more
numbers a cell than the vectors have; a machine without fastembed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedctl.encoders.base import Encoder
from embedctl.errors import ModelError, UsageError
from embedctl.models.muvera import Muvera
from embedctl.outputs import Multivector, OutputKind, Outputs
from embedctl.records import Batch


class MuveraEncoder:
    """Implements `Encoder`. kinds: of multivector and dense, those wanted; the inner encoder gives the first."""

    def __init__(self, inner: Encoder, settings: Muvera, *, for_queries: bool, kinds: Sequence[OutputKind]) -> None:
        """:raises UsageError: the vectors are too narrow. :raises ModelError: fastembed is not installed."""
        width = inner.dims["multivector"]
        if settings.dim_proj > width:
            raise UsageError(
                f"--muvera: dim_proj={settings.dim_proj} is more than the {width} numbers of the model's vectors",
                hint=f"--muvera dim_proj={min(16, width)}",
            )
        try:
            from fastembed.postprocess import Muvera as Library
        except ImportError as exc:
            raise ModelError("--muvera needs the fastembed library", hint="pip install 'embedctl[fastembed]'") from exc
        made = Library(dim=width, k_sim=settings.k_sim, dim_proj=settings.dim_proj, r_reps=settings.r_reps)
        self._one = made.process_query if for_queries else made.process_document
        self._inner, self._settings = inner, settings
        given: dict[OutputKind, int] = {"multivector": width, "dense": settings.width}
        self.dims: Mapping[OutputKind, int] = {kind: given[kind] for kind in kinds}
        self.deterministic, self.lanes, self.padded = inner.deterministic, inner.lanes, inner.padded

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        return self._with_dense(self._inner.encode(batch))

    def encode_float32(self, batch: Batch) -> Outputs:
        """See `Encoder.encode_float32`."""
        return self._with_dense(self._inner.encode_float32(batch))

    def _with_dense(self, outputs: Outputs) -> Outputs:
        many = outputs["multivector"]
        assert isinstance(many, Multivector)
        dense = np.full((len(many), self._settings.width), np.nan, dtype=np.float32)
        vectors = many.vectors.astype(np.float64)
        for row, (begin, end) in enumerate(zip(many.offsets[:-1].tolist(), many.offsets[1:].tolist(), strict=True)):
            if begin < end and np.isfinite(vectors[begin:end]).all():
                dense[row] = self._one(vectors[begin:end])
        return {kind: many if kind == "multivector" else dense for kind in self.dims}

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        one = self._settings
        told = {"k_sim": one.k_sim, "dim_proj": one.dim_proj, "r_reps": one.r_reps}
        return {**self._inner.describe(), "muvera": told}

    def close(self) -> None:
        self._inner.close()
