"""Packs tokenized texts into batches for the encoder: pure numpy.

`Tokenized` and a token budget enter; `Batch` records leave, longest first, so that a batch that does not fit the
device shows itself at the start. Nothing is refused: a sequence longer than the budget gets a batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from embedctl.records import Batch, Tokenized


def make_batches(
    tokenized: Tokenized, max_tokens: int, *, padded: bool = False, max_sequences: int | None = None
) -> Iterator[Batch]:
    """Sort by length (stable, longest first) and fill batches up to `max_tokens`; every text in exactly one batch.

    The budget is the sum of tokens, or N * longest when the encoder pads (`padded`); a batch holds at most
    `max_sequences`. Lengths fall within a batch and from batch to batch, so equal lengths touch and one length spans as
    few batches as the budget allows. The result depends on the lengths and the limits alone. `Batch.units` are indices
    into `tokenized`.

    :raises ValueError: max_tokens is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens: {max_tokens} must be at least 1")
    lengths = tokenized.lengths
    order = np.argsort(-lengths, kind="stable")
    for begin, end in _spans(lengths[order], max_tokens, padded, max_sequences or len(order)):
        yield _gather(tokenized, order[begin:end])


def _spans(falling: np.ndarray, max_tokens: int, padded: bool, most: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of each batch over lengths in falling order."""
    ends = np.cumsum(falling)
    begin, n = 0, len(falling)
    while begin < n:
        if padded:
            end = begin + max_tokens // max(int(falling[begin]), 1)
        else:
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + max_tokens, side="right"))
        end = min(max(end, begin + 1), begin + most, n)
        yield begin, end
        begin = end


def _gather(tokenized: Tokenized, units: np.ndarray) -> Batch:
    lengths = tokenized.lengths[units]
    cu_seqlens = np.zeros(len(units) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    shift = tokenized.offsets[units] - cu_seqlens[:-1]
    index_T = np.arange(cu_seqlens[-1], dtype=np.int64) + np.repeat(shift, lengths)
    return Batch(
        input_ids_T=tokenized.ids_T[index_T].astype(np.int32, copy=False),
        cu_seqlens=cu_seqlens,
        units=units.astype(np.int64, copy=False),
        token_type_ids_T=None if tokenized.types_T is None else tokenized.types_T[index_T].astype(np.int32),
        contents=None if tokenized.contents is None else [tokenized.contents[i] for i in units.tolist()],
    )


def split_batch(batch: Batch) -> tuple[Batch, Batch]:
    """The batch in two, at the sequence boundary nearest to half of its tokens, for a device that ran out of memory.

    :raises ValueError: the batch holds a single sequence.
    """
    n = len(batch.units)
    if n < 2:
        raise ValueError("a batch of one sequence cannot be split")
    middle = int(np.argmin(np.abs(batch.cu_seqlens.astype(np.int64) * 2 - batch.num_tokens)))
    middle = min(max(middle, 1), n - 1)
    return _part(batch, 0, middle), _part(batch, middle, n)


def _part(batch: Batch, begin: int, end: int) -> Batch:
    first, last = int(batch.cu_seqlens[begin]), int(batch.cu_seqlens[end])
    types = batch.token_type_ids_T
    return Batch(
        input_ids_T=batch.input_ids_T[first:last],
        cu_seqlens=batch.cu_seqlens[begin : end + 1] - np.int32(first),
        units=batch.units[begin:end],
        token_type_ids_T=None if types is None else types[first:last],
        contents=None if batch.contents is None else batch.contents[begin:end],
    )


def padding_of(batch: Batch) -> int:
    """Padding tokens an encoder adds that pads every sequence to the longest of the batch."""
    return len(batch.units) * batch.max_seqlen - batch.num_tokens


def unique_texts(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts in first-seen order, and int64 (n,): which of them each text is."""
    place: dict[str, int] = {}
    inverse = np.fromiter((place.setdefault(text, len(place)) for text in texts), dtype=np.int64, count=len(texts))
    return list(place), inverse
