"""modules.json, and the ways a Router leads: which modules texts of the corpus go through, and which queries do.

Enters: a sentence-transformers folder. Leaves: two lists of entries, the same one twice where there is one way only.
Refuses: paths out of the folder, a Router of which no way is the documents'.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedctl.errors import ModelError
from embedctl.models import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of modules.json."""

    type: str
    path: Path

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    documents: tuple[Entry, ...]
    queries: tuple[Entry, ...]


def read_entries(root: Path) -> Ways:
    """:raises ModelError: modules.json is not a list of modules, or see the module."""
    path = root / "modules.json"
    listed = files.read_json(path)
    if not isinstance(listed, list) or not listed or not all(isinstance(m, dict) and "type" in m for m in listed):
        raise ModelError(f"{path}: not a list of modules")
    entries = tuple(Entry(type=str(m["type"]), path=_inside(root, root, str(m.get("path", "")))) for m in listed)
    if entries[0].kind not in ("Router", "Asym"):
        return Ways(documents=entries, queries=entries)
    return _routed(root, entries[0].path, entries[1:])


def _inside(root: Path, folder: Path, relative: str) -> Path:
    path = folder / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise ModelError(f"{root / 'modules.json'}: module path {relative!r} leads out of the folder")
    return path


def _routed(root: Path, path: Path, rest: tuple[Entry, ...]) -> Ways:
    config = files.read_object(path / "router_config.json", missing_ok=True) or files.read_object(path / "config.json")
    types, structure = config.get("types"), config.get("structure")
    if not isinstance(types, dict) or not isinstance(structure, dict) or not structure:
        raise ModelError(f"{path}: the Router's config has no types and structure")
    routes = {
        name: tuple(Entry(type=str(types[m]), path=_inside(root, path, m)) for m in members) + rest
        for name, members in structure.items()
    }
    parameters = config.get("parameters") or {}
    documents, queries = (_route(parameters, routes, task) for task in ("document", "query"))
    if documents is None and len(set(routes.values())) == 1:
        documents = next(iter(routes))
    if documents is None:
        raise ModelError(
            f"{path}: the Router has the routes {', '.join(routes)} with different modules; "
            "which of them corpus texts take is not understood"
        )
    return Ways(documents=routes[documents], queries=routes[queries or documents])


def _route(parameters: Mapping[str, Any], routes: Mapping[str, object], task: str) -> str | None:
    """The way of texts of this task, asked for in the order in which sentence-transformers does."""
    mappings = {ast.literal_eval(key): way for key, way in (parameters.get("route_mappings") or {}).items()}
    for asked in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if asked in mappings:
            return str(mappings[asked])
    for name in (task, "text", parameters.get("default_route")):
        if name in routes:
            return str(name)
    return None
