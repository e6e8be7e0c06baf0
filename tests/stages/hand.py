"""Parts made by hand for the stages' tests: an encoder that can be told to fail, a window, rules for its texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from embedctl.encoders.fake import FakeEncoder
from embedctl.errors import OutOfDeviceMemory
from embedctl.outputs import SINGLE, Outputs
from embedctl.records import Batch, Cursor, FileBooks, Tokenized, Window, WindowKey
from embedctl.stages.encode import Encoded, Engine, finish, start
from embedctl.stages.prepare import FeedRules, Prepared, TextRules
from embedctl.tokens.fake import FakeTokenizer
from embedctl.tokens.pack import make_batches, split_batch, unique_texts

KEY = WindowKey(generation=1, slice=0, window=0)
WORD = FakeTokenizer.id_of


class HandEncoder:
    """Vector of a sequence: its token sum, its length and ones; odd where told. Remembers what it was asked."""

    deterministic, lanes, padded, dims = True, 1, False, {"dense": 4}

    def __init__(self, *, nan: str = "", always_nan: str = "", zero: str = "", oom_over: int | None = None) -> None:
        self._nan, self._always_nan, self._zero = (WORD(w) if w else -1 for w in (nan, always_nan, zero))
        self._oom_over = oom_over
        self.sizes: list[int] = []
        self.seen: list[tuple[int, ...]] = []
        self.again: list[tuple[int, ...]] = []

    def encode(self, batch: Batch) -> Outputs:
        self.sizes.append(batch.num_tokens)
        if self._oom_over is not None and batch.num_tokens > self._oom_over:
            raise OutOfDeviceMemory("full")
        self.seen += [tuple(s.tolist()) for s in sequences(batch)]
        return {"dense": np.stack([self._vector(s, half=True) for s in sequences(batch)])}

    def encode_float32(self, batch: Batch) -> Outputs:
        self.again += [tuple(s.tolist()) for s in sequences(batch)]
        return {"dense": np.stack([self._vector(s, half=False) for s in sequences(batch)])}

    def _vector(self, ids: np.ndarray, *, half: bool) -> np.ndarray:
        if self._zero in ids:
            return np.zeros(4, np.float32)
        if self._always_nan in ids or (half and self._nan in ids):
            return np.array([1, np.inf, np.nan, 1], np.float32)
        return np.array([ids.sum(), len(ids), 1, 1], np.float32)

    def describe(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def sequences(batch: Batch) -> list[np.ndarray]:
    return np.split(batch.input_ids_T, batch.cu_seqlens[1:-1])


def vector_of(text: str) -> list[float]:
    ids = FakeTokenizer()([text]).ids_T
    return [float(ids.sum()), float(len(ids)), 1.0, 1.0]


def window(texts: Sequence[str]) -> Window:
    n = len(texts)
    return Window(
        key=KEY,
        begin=Cursor(segment=0, position=0),
        end=Cursor(segment=1, position=0),
        last=True,
        files=np.zeros(n, dtype=np.int32),
        positions=np.arange(n, dtype=np.int64),
        ids=[f"row {i}" for i in range(n)],
        texts=texts,
        kept=pa.table({"n": pa.array(range(n), pa.int64())}),
        dead=(),
        books=(FileBooks(file=0, read=n, written=n, skipped=0, duplicates=0, dead=0),),
    )


def by_bars(text: str) -> list[tuple[int, int]]:
    """Chunks stand between bars."""
    return [m.span() for m in re.finditer(r"[^|]+", text)]


def text_rules(
    *,
    chunk: Callable[[str], list[tuple[int, int]]] | None = None,
    tokenize: Callable[[Sequence[str]], Tokenized] | None = None,
    on_overlong: str = "truncate",
) -> TextRules:
    return TextRules(
        unique=unique_texts,
        feeds=[FeedRules(tokenize=tokenize or FakeTokenizer(), pack=lambda t, budget: list(make_batches(t, budget)))],
        chunk=chunk,
        on_overlong=on_overlong,
        overlong=by_bars if on_overlong == "chunk" else None,
    )


def encode(prepared: Prepared, encoder: HandEncoder | FakeEncoder) -> Encoded:
    with ThreadPoolExecutor(1) as pool:
        engine = Engine(
            encoder=encoder, names={"dense": SINGLE}, split=split_batch, padded=lambda b: b.num_tokens, pool=pool
        )
        return finish(start(prepared, [engine]), [engine], lambda batch: None, KEY)
