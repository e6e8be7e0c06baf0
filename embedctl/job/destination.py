"""Where a job writes: the destination's sink, and the folder that keeps its plan, ledger and locks.

Enters: `--to` and `--state`. Leaves: a `Destination`. A path is a folder of Parquet with its state inside;
`scheme://...` is a store, opened by the sink of that name, with its state in `--state` or under
`$XDG_STATE_HOME/embedctl/`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from embedctl import plan as plans
from embedctl import registry
from embedctl.errors import UsageError
from embedctl.plan import Plan
from embedctl.sinks.base import Remembering, Sink
from embedctl.sinks.parquet import ParquetSink, job_in
from embedctl.sinks.parts import window_in
from embedctl.sources.files import STDIN
from embedctl.spec import JobSpec
from embedctl.storage import STATE, LocalStorage

_TABLE = re.compile(r"(?<=[?&]table=)[^&]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """`uri` as the user wrote it, without secrets. The sink is not prepared yet."""

    uri: str
    storage: LocalStorage
    sink: Sink


def open_destination(spec: JobSpec) -> Destination:
    """:raises UsageError: the destination exists and is something else than a job's, or there is no such store."""
    target = spec.to or default_destination(spec.inputs)
    if "://" in target:
        return _store(target, spec)
    path = Path(target)
    if path.exists() and not path.is_dir():
        raise UsageError(f"--to: {path} is a file, not a folder", hint="choose another destination with --to")
    if path.is_dir() and not (path / STATE).is_dir() and any(path.iterdir()) and not _holds_parts(path):
        raise UsageError(
            f"--to: {path} is not empty and was not made by embedctl", hint="choose a new folder with --to"
        )
    storage = LocalStorage(path)
    return Destination(uri=storage.uri, storage=storage, sink=ParquetSink(storage))


def _holds_parts(path: Path) -> bool:
    """Whether a folder without state holds what is left of a job."""
    return any(window_in(p.name) is not None and job_in(p) is not None for p in path.glob("*.parquet"))


def open_existing(spec: JobSpec) -> tuple[Plan, Destination]:
    """The newest plan of `spec.to` and the destination. :raises UsageError: nothing of embedctl's there."""
    assert spec.to is not None
    if "://" in spec.to:
        destination = _store(spec.to, spec)
    else:
        storage = LocalStorage(Path(spec.to))
        destination = Destination(uri=storage.uri, storage=storage, sink=ParquetSink(storage))
    plan = _newest(destination)
    if plan is not None:
        return plan, destination
    if "://" in spec.to and (behind := served(spec.to)) != spec.to:
        return open_existing(replace(spec, to=behind))
    with closing(destination.sink):
        refuse_lost(destination)
    if "://" not in spec.to and _holds_parts(Path(spec.to)):
        raise UsageError(
            f"{spec.to}: its plan is gone; only parts are left",
            hint="embedctl sync, or the command that made it, takes them over with the same settings",
        )
    near = [str(p) for p in sorted(Path(".").glob("*.embeddings")) if (p / STATE).is_dir()]
    raise UsageError(
        f"{without_secrets(spec.to)}: no embeddings made by embedctl there",
        hint=f"embedctl status {near[0]}" if near else "embedctl embed corpus.parquet",
    )


def refuse_lost(destination: Destination) -> None:
    """:raises UsageError: the store keeps a job's manifest, whose state is not here."""
    sink = destination.sink
    if isinstance(sink, Remembering) and sink.remembered() is not None:
        raise UsageError(
            f"{destination.uri}: its state is not in {destination.storage.root}",
            hint=f"embedctl state rebuild {destination.uri}, or name the state's folder with --state",
        )


def open_source(spec: JobSpec) -> Destination:
    """The store of `spec.to`, to be read, whoever wrote it; an alias gives the collection that it names."""
    assert spec.to is not None
    if "://" not in spec.to:
        raise UsageError(f"{spec.to}: is no store", hint="qdrant://localhost:6334/docs")
    return _store(served(spec.to), spec)


def served(target: str) -> str:
    """The URI of the collection that an alias names; the same URI where it is no alias."""
    scheme = urlsplit(target).scheme
    if scheme not in registry.names("aliases"):
        return target
    with closing(registry.get("aliases", scheme)(target)) as aliases:
        found = aliases.resolve(collection_of(target))
    return target if found is None else with_collection(target, found)


def collection_of(target: str) -> str:
    """The last part of a store's URI, or the table that it names, without its schema."""
    return _around(target)[1]


def with_collection(target: str, name: str) -> str:
    """The URI of another collection of the same store."""
    before, _, after = _around(target)
    return f"{before}{name}{after}"


def _around(target: str) -> tuple[str, str, str]:
    """What stands before a collection's name in its URI, the name, and what follows."""
    if (table := _TABLE.search(target)) is not None:
        schema, dot, name = table[0].rpartition(".")
        return f"{target[: table.start()]}{schema}{dot}", name, target[table.end() :]
    scheme, _, rest = target.partition("://")
    place, mark, query = rest.partition("?")
    folder, slash, name = place.rstrip("/").rpartition("/")
    schema, dot, table_name = name.rpartition(".") if scheme in ("postgresql", "postgres") else ("", "", name)
    return f"{scheme}://{folder}{slash}{schema}{dot}", table_name, f"{mark}{query}"


def _newest(destination: Destination) -> Plan | None:
    return plans.load(destination.storage) if (destination.storage.root / STATE).is_dir() else None


def default_destination(inputs: Sequence[str]) -> str:
    """`<stem>.embeddings` of the first input, in the current folder."""
    first = inputs[0] if inputs else "corpus"
    if first == STDIN:
        return "stdin.embeddings"
    path = Path(first.rstrip("/"))
    while any(c in path.name for c in "*?["):
        path = path.parent
    name = path.resolve().name or "corpus"
    return f"{name if path.is_dir() else name.split('.')[0] or name}.embeddings"


def state_of(spec: JobSpec) -> LocalStorage | None:
    """The folder that keeps the destination's state, None where there is none yet. Opens no store."""
    target = spec.to or default_destination(spec.inputs)
    storage = _state_storage(_absolute(target), spec) if "://" in target else LocalStorage(Path(target))
    return storage if (storage.root / STATE).is_dir() else None


def state_storage(spec: JobSpec) -> LocalStorage:
    """Where the state of the store `spec.to` is kept, there or not yet."""
    return _state_storage(_absolute(str(spec.to)), spec)


def _state_storage(target: str, spec: JobSpec) -> LocalStorage:
    uri = without_secrets(target)
    return LocalStorage(Path(spec.state) if spec.state else state_folder(uri), uri=uri)


def _store(target: str, spec: JobSpec) -> Destination:
    scheme = urlsplit(target).scheme
    target = _absolute(target)
    storage = _state_storage(target, spec)
    uri = storage.uri
    sink: Sink = registry.get("sinks", scheme)(target, storage, spec)
    return Destination(uri=uri, storage=storage, sink=sink)


def _absolute(target: str) -> str:
    """`scheme://./folder` names the same store, and so the same state, from every working folder."""
    scheme, _, rest = target.partition("://")
    return f"{scheme}://{Path(rest).resolve()}" if rest.startswith(("./", "../", "/")) else target


def without_secrets(uri: str) -> str:
    """The URI with user and password taken out."""
    return re.sub(r"(?<=://)[^/]*@", "", uri)


def state_folder(uri: str) -> Path:
    """Where the state of a store is kept by default: a folder a store, named by what it is."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", uri).strip("-")[:80]
    return Path(base) / "embedctl" / f"{readable}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"
