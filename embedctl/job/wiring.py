"""Plan -> worker: the parts of a run, opened as the plan says and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from embedctl import registry
from embedctl.encoders.base import Encoder
from embedctl.heads.precision import overflows, quantize
from embedctl.models.folder import ModelFolder
from embedctl.plan import Plan
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.files import check_unchanged
from embedctl.sources.slices import sample_mask
from embedctl.sources.where import Where
from embedctl.stages.commit import VectorRules
from embedctl.stages.prepare import Spans, TextRules
from embedctl.stages.windows import Blocks, RowRules
from embedctl.text.chunk import Chunker, Kind, pool_chunks
from embedctl.text.template import row_problem, text_rule
from embedctl.tokens.base import Tokenizer
from embedctl.tokens.pack import make_batches, unique_texts
from embedctl.tokens.tokenize import load_tokenizer, set_threads


def blocks_of(plan: Plan) -> Blocks:
    """Readers for the plan's files, each file checked when it is opened."""
    formats: dict[str, Any] = {}

    def blocks(file: SourceFile, begin: int, end: int | None, start: int) -> Iterator[RowBlock]:
        check_unchanged(file)
        if file.format not in formats:
            formats[file.format] = registry.get("formats", file.format)()
        segment = Segment(file=file.index, begin=begin, end=end)
        yield from formats[file.format].read(file, segment, plan.schema, start)

    return blocks


def row_rules(plan: Plan) -> RowRules:
    where, fraction = plan.spec["where"], plan.spec["sample"]
    rule = text_rule(None if plan.spec["text_template"] else plan.text_columns[0], plan.spec["text_template"])
    sample: Callable[[str, np.ndarray], np.ndarray] | None = None
    if fraction is not None:
        sample = lambda uri, positions: sample_mask(uri, positions, fraction)  # noqa: E731
    return RowRules(
        where=Where(where, plan.schema).mask if where else None,
        sample=sample,
        render=rule.render,
        problem=row_problem,
        on_duplicate=plan.spec["on_duplicate"],
    )


def open_tokenizer(folder: ModelFolder, resolved: Mapping[str, Any], spec: Mapping[str, Any]) -> Tokenizer:
    """The model's own tokenizer, cut to the planned length, the planned prompt before every text."""
    if folder.kind == "fake":
        from embedctl.tokens.fake import FakeTokenizer

        return FakeTokenizer(max_length=resolved["max_length"], prompt=resolved["prompt"])
    assert folder.path is not None
    set_threads(resolved["threads"])
    return load_tokenizer(
        Path(folder.path),
        max_length=resolved["max_length"],
        prompt=resolved["prompt"],
        lowercase=folder.lowercase,
        trust_remote_code=spec["trust_remote_code"],
        add_special_tokens=folder.add_special_tokens,
    )


def open_planned_encoder(folder: ModelFolder, plan_spec: Mapping[str, Any], resolved: Mapping[str, Any]) -> Encoder:
    """The encoder, opened with what was resolved. Only this imports torch, and not for the fake."""
    if folder.kind == "fake":
        fake: Encoder = registry.get("encoders", "fake")(folder.name, dim=resolved["dim"])
        return fake
    from embedctl.encoders.open import open_encoder

    return open_encoder(
        folder,
        dtype=resolved["dtype"],
        device=resolved["device"],
        threads=resolved["threads"],
        attention=plan_spec["attention"],
        pooling=plan_spec["pooling"],
        dim=plan_spec["dim"],
        num_prompt_tokens=resolved["num_prompt_tokens"],
        compile=resolved["compile"],
        trust_remote_code=plan_spec["trust_remote_code"],
    )


def text_rules(plan: Plan, tokenizer: Tokenizer, padded: bool) -> TextRules:
    rule = plan.spec["chunk"]
    kind, _, size = (rule or "").partition(":")
    overlong = plan.spec["on_overlong"]
    longest = plan.resolved["max_length"]
    return TextRules(
        tokenize=tokenizer,
        unique=unique_texts,
        pack=lambda tokenized, budget: list(make_batches(tokenized, budget, padded=padded)),
        chunk=_spans(cast(Kind, kind), int(size), plan.spec["overlap"], tokenizer) if rule else None,
        on_overlong=overlong,
        overlong=_spans("tokens", longest, 0, tokenizer) if overlong == "chunk" else None,
    )


def _spans(kind: Kind, size: int, overlap: int, tokenizer: Tokenizer) -> Spans:
    return Chunker(
        kind,
        size,
        overlap,
        overhead=tokenizer.overhead_tokens,
        count=tokenizer.count_after_prompt,
        offsets=tokenizer.offsets,
    ).spans


def vector_rules(plan: Plan, ranges: Callable[[np.ndarray], np.ndarray | None]) -> VectorRules:
    """`ranges` gives the int8 ranges, from the plan or, for standard input, from the first window it is shown."""
    kind = plan.spec["vector_type"]

    def store(vectors: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        if kind in ("int8", "uint8"):
            return quantize(vectors, kind, ranges(vectors)), {}
        over = np.flatnonzero(overflows(vectors, kind)).tolist()
        if over:
            return vectors, dict.fromkeys(over, f"the vector does not fit in {kind}")
        return quantize(vectors, kind, None), {}

    pool = None
    if plan.spec["chunk_pool"]:
        normalise = bool(plan.model["normalised"])
        pool = lambda vectors, document, weights: pool_chunks(vectors, document, weights, normalise)  # noqa: E731
    return VectorRules(store=store, pool=pool)
