"""Where the ids of a delete stand until it is finished: what tells that one was begun."""

from __future__ import annotations

from embedctl.plan import Plan
from embedctl.storage import STATE, LocalStorage


def name_of(generation: int) -> str:
    return f"{STATE}/deletes/g{generation:04d}.json.zst"


def is_begun(storage: LocalStorage, plan: Plan) -> bool:
    """Whether the ids of this generation's delete are still to be taken out."""
    return storage.read(name_of(plan.generation)) is not None
