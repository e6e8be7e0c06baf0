"""What reranking and classifying plan and wire differently from embedding: texts of a row, models, outputs.

Enters: a `JobSpec` or a plan. Leaves: rules, folders, outputs and cards for the same job that embeds. Refuses: several
labels where candidates are ranked by one score, kept columns that have the name of a score's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedctl.encoders.base import Encoder
from embedctl.errors import UsageError
from embedctl.models.folder import ModelFolder
from embedctl.outputs import OutputSpec
from embedctl.plan import Plan
from embedctl.sinks.scores import SCORE, SCORES, column_names
from embedctl.sources.roles import is_json
from embedctl.spec import JobSpec
from embedctl.stages.rank import CANDIDATE, CANDIDATE_ID, RANK, Ranking
from embedctl.text.pairs import Candidates, PairRule, candidates_of
from embedctl.text.template import TextRule, text_rule
from embedctl.tokens.base import Tokenizer


def of_pairs(spec: Mapping[str, Any]) -> bool:
    """Whether each row has a query beside its text."""
    return bool(spec.get("query_column") or spec.get("query_template"))


def query_columns(spec: JobSpec) -> tuple[str, ...]:
    """The columns that the query is made of, () without one."""
    return query_rule(spec.of_kind("recipe")).columns if of_pairs(spec.of_kind("recipe")) else ()


def query_rule(spec: Mapping[str, Any]) -> TextRule:
    return text_rule(spec["query_column"], spec["query_template"])


def pair_rule(plan: Plan) -> PairRule:
    """How a row's texts are made. :raises UsageError: the candidates are no list of texts."""
    spec = plan.spec
    if spec["candidates_column"]:
        return PairRule(query=query_rule(spec), passage=_candidates(plan))
    passage = text_rule(None if spec["text_template"] else plan.text_columns[0], spec["text_template"])
    return PairRule(query=query_rule(spec), passage=passage)


def ranking(plan: Plan) -> Ranking | None:
    """How the candidates of a row are ranked; None where a row has one passage."""
    if not plan.spec.get("candidates_column"):
        return None
    return Ranking(score=plan.outputs[0].name, top_k=plan.spec["top_k"], ids=_candidates(plan).has_ids)


def _candidates(plan: Plan) -> Candidates:
    column, spec = plan.spec["candidates_column"], plan.spec
    field = plan.schema.field(column)
    return candidates_of(
        column, field.type, text=spec["candidate_text"], id=spec["candidate_id"], is_json=is_json(field)
    )


def resolved_of(spec: JobSpec, folder: ModelFolder) -> dict[str, Any]:
    """What is decided for a model that scores."""
    assert folder.scorer is not None
    activation = folder.scorer.activation_for(spec.task, len(folder.labels), spec.activation)
    return {"dim": len(folder.labels), "activation": activation}


def outputs_of(spec: JobSpec, name: str | None, folder: ModelFolder) -> tuple[OutputSpec, ...]:
    """The one output: `score` or `scores`, the model's own name before it where it has one."""
    count = len(folder.labels)
    if spec.candidates_column is not None and count > 1:
        raise UsageError(
            f"--candidates-column: {folder.name} gives {count} scores a pair ({', '.join(folder.labels[:3])}, ...), "
            "and candidates are ranked by one",
            hint="give a row a pair with --text-column, or a model with one label",
        )
    own = SCORE if count == 1 else SCORES
    return (
        OutputSpec(
            name=f"{name}_{own}" if name else own, kind="score", dim=count, similarity="none", labels=folder.labels
        ),
    )


def card_of(folder: ModelFolder, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader of the scores should know, beside what it should of vectors."""
    assert folder.scorer is not None
    return {
        "labels": list(folder.labels),
        "activation": resolved["activation"],
        "multi_label": folder.scorer.multi_label,
    }


def check_names(plan: Plan) -> None:
    """:raises UsageError: a kept column has a name that the scores use, or the candidates cannot be read."""
    taken: set[str] = set()
    for one in plan.passes:
        for output in one.outputs:
            taken |= set(column_names(output, multi_label=bool(one.model["multi_label"])))
    if plan.spec["candidates_column"]:
        taken |= {RANK, CANDIDATE, *([CANDIDATE_ID] if _candidates(plan).has_ids else [])}
    for name in plan.keep:
        if name in taken:
            raise UsageError(
                f"--keep: {name!r} is a column that the scores use themselves",
                hint="--model NAME=MODEL puts NAME_ before the columns of the scores",
            )


def open_pair_tokenizer(folder: ModelFolder, resolved: Mapping[str, Any], spec: Mapping[str, Any]) -> Tokenizer:
    """The model's tokenizer for a query and a passage."""
    from embedctl.tokens.pairs import FakePairTokenizer, load_chat_tokenizer, load_pair_tokenizer

    length, prompt = resolved["max_length"], resolved["prompt"]
    if folder.kind == "fake":
        return FakePairTokenizer(max_length=length, prompt=prompt)
    assert folder.path is not None
    assert folder.scorer is not None
    path, chat, trusted = Path(folder.path), folder.scorer.chat, spec["trust_remote_code"]
    if chat is None:
        return load_pair_tokenizer(
            path, max_length=length, prompt=prompt, lowercase=folder.lowercase, trust_remote_code=trusted
        )
    return load_chat_tokenizer(
        path, max_length=length, prompt=prompt, template=chat.template, structured=chat.structured,
        options=chat.options, trust_remote_code=trusted,
    )  # fmt: skip


def open_scoring_encoder(folder: ModelFolder, spec: Mapping[str, Any], resolved: Mapping[str, Any]) -> Encoder:
    """The encoder of a model that scores, opened with what was resolved."""
    if folder.kind == "fake":
        from embedctl.encoders.fake import FakeScores

        return FakeScores(folder.name, labels=len(folder.labels))
    from embedctl.encoders.scores import open_scorer

    return open_scorer(
        folder, activation_name=resolved["activation"], dtype=resolved["dtype"], device=resolved["device"],
        threads=resolved["threads"], attention=spec["attention"], compile=resolved["compile"],
    )  # fmt: skip
