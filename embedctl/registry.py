"""Name -> "module:attribute", imported when first asked for.

Third parties add theirs by entry points in the groups `embedctl.formats`, `embedctl.encoders`, `embedctl.sinks`.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from embedctl.errors import UsageError

_BUILT_IN: dict[str, dict[str, str]] = {
    "formats": {
        "parquet": "embedctl.sources.parquet:ParquetFormat",
        "jsonl": "embedctl.sources.jsonl:JsonlFormat",
        "csv": "embedctl.sources.csv:CsvFormat",
        "tsv": "embedctl.sources.csv:TsvFormat",
        "arrow": "embedctl.sources.arrow:ArrowFormat",
        "text": "embedctl.sources.text:TextFormat",
        "file": "embedctl.sources.single:FileFormat",
    },
    "encoders": {
        "torch_varlen": "embedctl.encoders.torch_varlen:TorchVarlenEncoder",
        "padded": "embedctl.encoders.padded:PaddedEncoder",
        "onnx": "embedctl.encoders.onnx:OnnxEncoder",
        "static": "embedctl.encoders.static:StaticEncoder",
        "fake": "embedctl.encoders.fake:FakeEncoder",
    },
    "sinks": {
        "parquet": "embedctl.sinks.parquet:ParquetSink",
        "memory": "embedctl.sinks.memory:MemorySink",
        "qdrant": "embedctl.sinks.qdrant_server:open_server",
        "qdrant+http": "embedctl.sinks.qdrant_server:open_server",
        "qdrant+https": "embedctl.sinks.qdrant_server:open_server",
        "qdrant-edge": "embedctl.sinks.qdrant_edge:open_edge",
        "lancedb": "embedctl.sinks.lancedb:open_lancedb",
        "postgresql": "embedctl.sinks.pgvector:open_pgvector",
        "postgres": "embedctl.sinks.pgvector:open_pgvector",
        "milvus": "embedctl.sinks.milvus:open_milvus",
        "milvus+https": "embedctl.sinks.milvus:open_milvus",
        "milvus-lite": "embedctl.sinks.milvus:open_lite",
        "elasticsearch": "embedctl.sinks.elastic:open_elastic",
        "elasticsearch+https": "embedctl.sinks.elastic:open_elastic",
        "opensearch": "embedctl.sinks.elastic:open_elastic",
        "opensearch+https": "embedctl.sinks.elastic:open_elastic",
    },
    "aliases": {
        "qdrant": "embedctl.sinks.qdrant_alias:Aliases",
        "qdrant+http": "embedctl.sinks.qdrant_alias:Aliases",
        "qdrant+https": "embedctl.sinks.qdrant_alias:Aliases",
        "qdrant-edge": "embedctl.sinks.edge_alias:FolderAliases",
        "postgresql": "embedctl.sinks.pgvector_alias:TableAliases",
        "postgres": "embedctl.sinks.pgvector_alias:TableAliases",
    },
}


def names(kind: str) -> list[str]:
    """All known names of a kind, built in and by entry point."""
    return sorted({*_BUILT_IN[kind], *(ep.name for ep in entry_points(group=f"embedctl.{kind}"))})


def get(kind: str, name: str) -> Any:
    """The registered object. :raises UsageError: no such name; the nearest is named."""
    target = _BUILT_IN[kind].get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return getattr(import_module(module), attribute)
    for entry in entry_points(group=f"embedctl.{kind}"):
        if entry.name == name:
            return entry.load()
    near = difflib.get_close_matches(name, names(kind), n=1)
    raise UsageError(
        f"no {kind.removesuffix('s')} named {name!r}; known: {', '.join(names(kind))}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )
