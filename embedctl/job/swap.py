"""`--swap-alias NAME`: load beside what readers of NAME see, then move the name in one step.

Enters: a job whose destination is a store with aliases. Leaves: `NAME__<recipe8>_<generation>` filled and checked, the
alias on it, older collections beyond `--keep-old` removed with their state. A run that fails touches nothing that is
served; the same command finds its own collection again, and does nothing when that is finished and served. Refused: a
store without aliases, a NAME that is a collection.
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from embedctl import failpoints, registry
from embedctl import plan as plans
from embedctl.errors import EXIT_NEW_DEAD, EXIT_OK, UsageError
from embedctl.events import Listener, Summary
from embedctl.job import finalise as ending
from embedctl.job import planning
from embedctl.job.destination import collection_of, state_storage, with_collection, without_secrets
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.sinks.base import Aliases
from embedctl.sources.files import discover, snapshot
from embedctl.spec import JobSpec
from embedctl.storage import LocalStorage

Run = Callable[[JobSpec, Listener], Summary]
IsOurs = Callable[[Plan, LocalStorage], bool]
"""Whether a collection's plan, kept in this state, is the very job that is asked for."""
Recipe = Callable[[], str]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def swapped(spec: JobSpec, listener: Listener, run: Run, is_ours: IsOurs, recipe: Recipe) -> Summary:
    """Run the job into a collection of its own, and serve it. `recipe`: the job's, asked only for a new collection.

    :raises UsageError: see above. And all that `run` raises; what is served stays as it was.
    """
    name, target = _checked(spec)
    place = state_storage(replace(spec, to=with_collection(target, f"{name}__swap")))
    aliases: Aliases = registry.get("aliases", urlsplit(target).scheme)(target)
    with closing(aliases), locks.lease(place, names=["swap"], wait=spec.if_locked == "wait", listener=listener):
        aliases.check(name)
        swap = Swap(spec=spec, name=name, target=target, aliases=aliases)
        collection = swap.begun(is_ours) or swap.fresh(recipe())
        summary = run(swap.spec_of(collection), listener)
        if summary.exit_code not in (EXIT_OK, EXIT_NEW_DEAD) or not summary.status.endswith("done"):
            return summary
        failpoints.hit("before-swap")
        before = aliases.switch(name, collection)
        failpoints.hit("after-swap")
        if before != collection:
            listener.note(f"{name} now serves {collection}" + (f", after {before}" if before else ""))
        dropped = swap.drop_old(collection)
        details = {"alias": name, "collection": collection, "served_before": before, "dropped": dropped}
        return replace(summary, details={**summary.details, **details})


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One alias and the collections that were made for it."""

    spec: JobSpec
    name: str
    target: str
    aliases: Aliases

    def collections(self) -> list[str]:
        """Those of the name, older ones first."""
        found = [c for c in self.aliases.collections(f"{self.name}__") if self._generation(c)]
        return sorted(found, key=lambda c: (self._generation(c), c))

    def begun(self, is_ours: IsOurs) -> str | None:
        """The newest collection that this very job has begun or finished."""
        for collection in reversed(self.collections()):
            storage = self._storage(collection)
            plan = plans.load(storage)
            if plan is not None and is_ours(plan, storage):
                return collection
        return None

    def fresh(self, recipe: str) -> str:
        """The name of a new collection: its generation follows all that are there."""
        last = max((self._generation(c) for c in self.collections()), default=0)
        return f"{self.name}__{recipe[:8]}_{last + 1}"

    def spec_of(self, collection: str) -> JobSpec:
        """The job with this collection as its destination."""
        state = str(Path(self.spec.state) / collection) if self.spec.state else None
        return replace(
            self.spec, to=with_collection(self.target, collection), state=state, create=True, swap_alias=None
        )

    def drop_old(self, served: str) -> list[str]:
        """Remove collections older than the one that is served, but the newest `--keep-old` that were finished."""
        older = [c for c in self.collections() if self._generation(c) < self._generation(served)]
        finished = [c for c in older if self._is_finished(c)]
        kept = set(finished[len(finished) - self.spec.keep_old :] if self.spec.keep_old else [])
        dropped = [c for c in older if c not in kept]
        for collection in dropped:
            self.aliases.drop(collection)
            shutil.rmtree(self._storage(collection).root, ignore_errors=True)
        return dropped

    def _is_finished(self, collection: str) -> bool:
        storage = self._storage(collection)
        plan = plans.load(storage)
        # Without a state here it was made from another machine: what it holds is not ours to judge.
        return plan is None or ending.is_finalised(plan, Ledger(storage).contents)

    def _storage(self, collection: str) -> LocalStorage:
        return state_storage(self.spec_of(collection))

    def _generation(self, collection: str) -> int:
        """0: not a collection of this name."""
        match = re.fullmatch(re.escape(self.name) + r"__[0-9a-f]{8}_([1-9]\d*)", collection)
        return int(match[1]) if match else 0


def _checked(spec: JobSpec) -> tuple[str, str]:
    """The alias and the URI of the store. :raises UsageError: see the module's first lines."""
    name, target = str(spec.swap_alias), spec.to or ""
    scheme = urlsplit(target).scheme
    if "://" not in target or scheme not in registry.names("aliases"):
        raise UsageError(
            f"--swap-alias: {without_secrets(target) or 'the destination'} is no store with aliases",
            hint=f"--to qdrant://localhost:6334/{name} --swap-alias {name}",
        )
    if not _NAME.fullmatch(name):
        raise UsageError(f"--swap-alias: {name!r} is not a name of letters, digits, dots, _ and -")
    if spec.num_shards > 1:
        raise UsageError("--num-shards: with --swap-alias a job is one run", hint="leave it out, or use --workers")
    if scheme != "qdrant-edge" and not urlsplit(target).path.strip("/"):  # a server alone: the name is ours to give
        target = f"{target.rstrip('/')}/{name}"
    if collection_of(target) != name:
        raise UsageError(
            f"--to: with --swap-alias the URI ends in the alias, and {collection_of(target)!r} is not {name!r}",
            hint=f"--swap-alias {collection_of(target)}"
            if name.endswith(f".{collection_of(target)}")
            else f"--to {without_secrets(with_collection(target, name))} --swap-alias {name}",
        )
    return name, target


def embed_swapped(spec: JobSpec, listener: Listener, run: Run) -> Summary:
    """`swapped` for a job that embeds: its own collection is of the same settings, files and weights."""
    files = discover(spec.inputs, spec.format)

    @functools.cache
    def recipe() -> str:
        return planning.draft(spec, files).plan.recipe

    def is_ours(plan: Plan, storage: LocalStorage) -> bool:
        first = plans.load(storage, 1) or plan
        same = not plan.is_loaded and plan.snapshot == snapshot(files) and not plans.contradictions(first, spec)
        return same and plan.recipe == recipe()

    return swapped(spec, listener, run, is_ours, recipe)
