"""Plan -> worker: the parts of a run, opened as the plan says and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from embedctl import pairs, registry
from embedctl.encoders.base import Encoder
from embedctl.heads.precision import overflows, quantize
from embedctl.job import media, scoring
from embedctl.models.folder import ModelFolder
from embedctl.models.lexical import with_avg_len
from embedctl.outputs import Multivector, OutputKind, Sparse, Values
from embedctl.plan import Plan
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.files import check_unchanged
from embedctl.sources.slices import sample_mask
from embedctl.sources.where import Where
from embedctl.stages.commit import VectorRules
from embedctl.stages.prepare import FeedRules, Spans, TextRules, stretch
from embedctl.stages.windows import Blocks, RowRules, utf8_bytes
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
    sample: Callable[[str, np.ndarray], np.ndarray] | None = None
    if fraction is not None:
        sample = lambda uri, positions: sample_mask(uri, positions, fraction)  # noqa: E731
    pictured = media.rule_of(plan)
    render, problem = _texts_of(plan) if pictured is None else (pictured.render, pictured.problem)
    return RowRules(
        where=Where(where, plan.schema).mask if where else None,
        sample=sample,
        render=render,
        problem=problem,
        on_duplicate=plan.spec["on_duplicate"],
        size=utf8_bytes if pictured is None else len,
    )


def _texts_of(
    plan: Plan,
) -> tuple[Callable[[pa.RecordBatch, SourceFile], list[str | None]], Callable[[str | None], str | None]]:
    """(a file's rows to texts, why a text is dead)."""
    if scoring.of_pairs(plan.spec):
        pair = scoring.pair_rule(plan)
        return lambda batch, _: pair.render(batch), pair.problem
    rule = text_rule(None if plan.spec["text_template"] else plan.text_columns[0], plan.spec["text_template"])
    return lambda batch, _: rule.render(batch), row_problem


def open_tokenizer(folder: ModelFolder, resolved: Mapping[str, Any], spec: Mapping[str, Any]) -> Tokenizer:
    """The model's own tokenizer, cut to the planned length, the planned prompt before every text."""
    if scoring.of_pairs(spec):
        set_threads(resolved["threads"])
        return scoring.open_pair_tokenizer(folder, resolved, spec)
    if folder.media is not None and (found := media.open_media_tokenizer(folder, resolved)) is not None:
        return found
    if folder.kind == "fake":
        from embedctl.tokens.fake import FakeTokenizer

        return FakeTokenizer(max_length=resolved["max_length"], prompt=resolved["prompt"])
    if folder.kind == "lexical":
        from embedctl.tokens.code_points import CodePoints

        return CodePoints(max_length=resolved["max_length"], prompt=resolved["prompt"])
    assert folder.path is not None
    set_threads(resolved["threads"])
    return load_tokenizer(
        Path(folder.path),
        max_length=resolved["max_length"],
        prompt=resolved["prompt"],
        lowercase=folder.lowercase,
        trust_remote_code=spec["trust_remote_code"],
        add_special_tokens=folder.add_special_tokens,
        marker=folder.marker,
    )


def open_tokenizers(folders: Sequence[ModelFolder], plan: Plan) -> list[Tokenizer]:
    """One a model; models that cut and prompt the same tokenizer alike share it, so texts go through it once."""
    known: dict[tuple[Any, ...], Tokenizer] = {}
    tokenizers = []
    for folder, one in zip(folders, plan.passes, strict=True):
        chat = folder.scorer and repr(folder.scorer.chat)
        settings = (
            one.resolved["max_length"],
            one.resolved["prompt"],
            folder.lowercase,
            folder.add_special_tokens,
            chat,
        )
        key = (folder.tokenizer_fingerprint(), *settings, folder.marker, folder.reads and folder.root)
        if key not in known:
            known[key] = open_tokenizer(folder, one.resolved, plan.spec)
        tokenizers.append(known[key])
    return tokenizers


def open_planned_encoder(
    folder: ModelFolder,
    plan_spec: Mapping[str, Any],
    resolved: Mapping[str, Any],
    kinds: Sequence[OutputKind] = ("dense",),
) -> Encoder:
    """The encoder of these outputs, opened with what was resolved. Only this imports torch, and not for the fake."""
    if folder.scorer is not None:
        return scoring.open_scoring_encoder(folder, plan_spec, resolved)
    if folder.kind == "fake":
        fake: Encoder = registry.get("encoders", "fake")(folder.name, dim=resolved["dim"])
        return fake
    if folder.kind == "lexical":
        from embedctl.encoders.lexical import LexicalEncoder

        name = with_avg_len(folder.name, resolved["avg_len"]) if resolved.get("avg_len") else folder.name
        return LexicalEncoder(replace(folder, name=name))
    if folder.muvera is not None and "dense" in kinds:
        from embedctl.encoders.muvera import MuveraEncoder

        inner = open_planned_encoder(replace(folder, muvera=None), plan_spec, resolved, ("multivector",))
        return MuveraEncoder(inner, folder.muvera, for_queries=folder.for_queries, kinds=kinds)
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
        outputs=tuple(kinds),
        sparse_top_k=plan_spec.get("sparse_top_k"),
        sparse_threshold=plan_spec.get("sparse_threshold"),
        pool_factor=plan_spec.get("pool_factor"),
    )


def feed_rules(tokenizer: Tokenizer, padded: bool) -> FeedRules:
    most: int | None = getattr(tokenizer, "max_sequences", None)
    return FeedRules(
        tokenize=tokenizer,
        pack=lambda tokens, budget: list(make_batches(tokens, budget, padded=padded, max_sequences=most)),
    )


def text_rules(plan: Plan, feeds: Sequence[tuple[Tokenizer, bool]]) -> TextRules:
    """feeds: for each model its tokenizer, and whether its encoder pads."""
    tokenizer = feeds[0][0]
    rule = plan.spec["chunk"]
    kind, _, size = (rule or "").partition(":")
    overlong = plan.spec["on_overlong"]
    longest, paired = plan.resolved["max_length"], scoring.of_pairs(plan.spec)
    return TextRules(
        unique=unique_texts,
        feeds=[feed_rules(own, padded) for own, padded in feeds],
        chunk=pairs.passages
        if paired
        else _spans(cast(Kind, kind), int(size), plan.spec["overlap"], tokenizer)
        if rule
        else None,
        on_overlong=overlong,
        overlong=_spans("tokens", longest, 0, tokenizer) if overlong == "chunk" else None,
        piece=pairs.pair_at if paired else stretch,
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


def vector_rules(plan: Plan, ranges: Callable[[str, np.ndarray], np.ndarray | None]) -> VectorRules:
    """`ranges` gives an output's int8 ranges: the plan's or, for standard input, those of the first window."""
    types = {output.name: output.vector_type for output in plan.outputs}

    def store(name: str, values: Values) -> tuple[Values, dict[int, str]]:
        kind = types[name]
        if isinstance(values, Sparse):
            return values, {}
        if isinstance(values, Multivector):
            return _stored_multivector(values, kind)
        if kind in ("int8", "uint8"):
            return quantize(values, kind, ranges(name, values)), {}
        over = np.flatnonzero(overflows(values, kind)).tolist()
        if over:
            return values, dict.fromkeys(over, f"the vector does not fit in {kind}")
        return quantize(values, kind, None), {}

    pool = None
    if plan.spec["chunk_pool"]:
        normalise = bool(plan.model["normalised"])
        pool = lambda vectors, document, weights: pool_chunks(vectors, document, weights, normalise)  # noqa: E731
    return VectorRules(store=store, pool=pool, candidates=scoring.ranking(plan))


def _stored_multivector(values: Multivector, kind: str) -> tuple[Multivector, dict[int, str]]:
    over = np.flatnonzero(overflows(values.vectors, kind))
    if len(over):
        rows = np.unique(np.searchsorted(values.offsets, over, side="right") - 1).tolist()
        return values, dict.fromkeys(rows, f"a vector does not fit in {kind}")
    return Multivector(offsets=values.offsets, vectors=quantize(values.vectors, kind, None)), {}
