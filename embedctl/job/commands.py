"""What a job of a job file can do: its command's name -> the function that runs it, imported when it is wanted.

Each takes a `JobSpec` and a listener, and gives a `Summary`. A new command is one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from embedctl.events import Listener, Summary
from embedctl.spec import JobSpec

COMMANDS = {
    "embed": "embedctl.job.run:embed",
    "sync": "embedctl.job.sync:sync",
    "load": "embedctl.job.transfer:load",
    "rerank": "embedctl.job.run:embed",
    "classify": "embedctl.job.run:embed",
}
SCORING = frozenset({"rerank", "classify"})
"""Commands that are the `task` of the same name; the keys below are theirs alone."""
SCORING_KEYS = frozenset({
    "query_column", "query_template", "candidates_column", "candidate_text", "candidate_id", "top_k", "activation",
    "threshold",
})  # fmt: skip

Call = Callable[[JobSpec, Listener], Summary]


def call_of(command: str) -> Call:
    """The function of a known command."""
    module, _, name = COMMANDS[command].partition(":")
    call: Call = getattr(import_module(module), name)
    return call
