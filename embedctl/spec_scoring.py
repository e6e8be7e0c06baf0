"""What may be asked of reranking and classifying together, and what only of embedding.

Enters: a `JobSpec`. Refuses, naming the flag: settings that contradict each other, or that mean nothing to the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedctl.errors import UsageError

if TYPE_CHECKING:
    from embedctl.spec import JobSpec

_ONLY_EMBED = ("chunk", "chunk_pool", "pooling", "dim", "output")
_ONLY_SCORES = (
    "query_column", "query_template", "candidates_column", "candidate_text", "candidate_id", "top_k", "activation",
)  # fmt: skip


def check_scoring(spec: JobSpec) -> None:
    """:raises UsageError: see the module."""
    embeds = spec.task == "embed"
    for name in _ONLY_SCORES if embeds else _ONLY_EMBED:
        if getattr(spec, name) not in (None, ()):
            where = "embedctl rerank and classify" if embeds else "embedctl embed"
            raise UsageError(f"--{name.replace('_', '-')}: only {where} can take it")
    if embeds:
        return
    if spec.vector_type != "float32":
        raise UsageError(f"--vector-type: {spec.vector_type} is for vectors; scores are float32")
    if spec.on_overlong == "chunk":
        raise UsageError(
            "--on-overlong: a text that is scored cannot be cut into chunks", hint="--on-overlong truncate"
        )
    if not 0 <= spec.threshold <= 1:
        raise UsageError(f"--threshold: {spec.threshold:g} is out of range; scores are between 0 and 1")
    if spec.query_column is not None and spec.query_template is not None:
        raise UsageError("--query-column and --query-template: give one of them")
    _check_candidates(spec)


def _check_candidates(spec: JobSpec) -> None:
    if spec.candidates_column is not None:
        if spec.task == "classify":
            raise UsageError("--candidates-column: only embedctl rerank takes several texts a row")
        if spec.text_column or spec.text_template:
            raise UsageError("--candidates-column holds the passages: leave out --text-column and --text-template")
        return
    for name in ("top_k", "candidate_text", "candidate_id"):
        if getattr(spec, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')}: it is for rows of a query with a list of candidates",
                hint="--candidates-column NAME",
            )
