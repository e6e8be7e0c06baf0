"""A weight for each token id, given to every id that a text holds: the query side of document-only sparse models.

Enters: a batch whose sequences carry no special tokens. Leaves: `Sparse`, each id once. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embedctl.encoders.tables import read_tables
from embedctl.errors import EncoderError
from embedctl.heads.sparse import Pruning, greatest_of_each
from embedctl.models.files import read_object
from embedctl.models.folder import ModelFolder
from embedctl.models.modules import SparseTable
from embedctl.outputs import OutputKind, Outputs
from embedctl.records import Batch


class SparseTableEncoder:
    """Implements `encoders.base.Encoder`. There is nothing to compute, so it runs on the CPU in float32."""

    deterministic = True
    lanes = 1
    padded = False

    def __init__(self, folder: ModelFolder, pruning: Pruning) -> None:
        """:raises ModelError: the table cannot be read."""
        assert isinstance(folder.sparse, SparseTable)
        self._folder, self._pruning = folder, pruning
        self._weights = _weights(folder, folder.sparse)
        self.dims: Mapping[OutputKind, int] = {"sparse": len(self._weights)}

    def encode(self, batch: Batch) -> Outputs:
        """See `Encoder.encode`."""
        ids = batch.input_ids_T
        if len(ids) and int(ids.max()) >= len(self._weights):
            raise EncoderError(
                f"{self._folder.name}: token {int(ids.max())} is beyond its table of {len(self._weights)}"
            )
        return {"sparse": greatest_of_each(ids, self._weights[ids], batch.cu_seqlens, self._pruning)}

    def encode_float32(self, batch: Batch) -> Outputs:
        """See `Encoder.encode_float32`: this is float32 already."""
        return self.encode(batch)

    def describe(self) -> Mapping[str, Any]:
        """See `Encoder.describe`."""
        return {
            "engine": "sparse_table", "device": "cpu", "dtype": "float32", "threads": 1, "dim": len(self._weights),
            "compile": False, "attention": "none", "attention_reason": "a table has none",
            "notes": list(self._folder.notes),
        }  # fmt: skip

    def close(self) -> None:
        """See `Encoder.close`."""


def _weights(folder: ModelFolder, table: SparseTable) -> np.ndarray:
    """float32 (V,)."""
    if table.path.suffix == ".json":
        return _by_token(folder, table)
    weights: np.ndarray = read_tables(table.path)["weight"].astype(np.float32)
    return weights


def _by_token(folder: ModelFolder, table: SparseTable) -> np.ndarray:
    """The weights that a JSON object gives by token; tokens it leaves out weigh nothing."""
    from tokenizers import Tokenizer

    assert folder.path is not None
    tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    weights = np.zeros(table.vocabulary, dtype=np.float32)
    for token, weight in read_object(table.path).items():
        id_ = tokenizer.token_to_id(token)
        if id_ is not None and id_ < len(weights):
            weights[id_] = weight
    return weights
