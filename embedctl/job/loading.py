"""An execution that needs no encoder: windows come ready, and are committed as all others are.

Enters: a plan, its sink, and where the windows come from. Leaves: the generation finished. Reading goes on in a thread
of its own while the sink writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from embedctl.job.encoding import refuse_dead
from embedctl.job.execution import Execution, done_windows
from embedctl.models.folder import ModelFolder
from embedctl.outputs import Values
from embedctl.plan import Plan
from embedctl.records import Slice, WindowOutput, WindowRecord
from embedctl.sources.files import check_unchanged
from embedctl.stages.commit import Committer, VectorRules
from embedctl.stages.flow import Channel, stage

CHANNEL_BYTES = 128 << 20

OutputsOf = Callable[[Slice, Mapping[int, WindowRecord]], Iterator[WindowOutput]]
"""A slice and what of it is committed, by number -> the windows still to do, in order."""


@dataclass(slots=True)
class Loading(Execution):
    """`outputs_of` must be given."""

    outputs_of: OutputsOf | None = None

    def _encode(self, todo: Sequence[Slice], folders: Sequence[ModelFolder] | None) -> None:  # noqa: ARG002
        assert self.outputs_of is not None
        done, outputs_of = done_windows(self.plan, self.ledger), self.outputs_of
        self.commit_all(self.plan, (o for s in todo for o in outputs_of(s, done.get(s.index, {}))))

    def commit_all(self, plan: Plan, outputs: Iterator[WindowOutput], *, check_source: bool = True) -> None:
        """Commit these windows, in order. :raises EmbedctlError: the first failure; what was committed stays."""

        def unchanged(files: Sequence[int]) -> None:
            for index in files if check_source else ():
                check_unchanged(plan.files[index])

        committer = Committer(
            plan=plan,
            storage=self.storage,
            sink=self.sink,
            ledger=self.ledger,
            rules=VectorRules(store=_as_they_are, pool=None),
            check_dead=lambda dead: refuse_dead(dead, self.tally.rows.dead, self.spec, plan, self.storage.uri),
            check_source=unchanged,
            check_lease=self.lease.check,
        )
        channel: Channel[WindowOutput] = Channel(self.halt, CHANNEL_BYTES)

        def read() -> None:
            for output in self.meter.timed("read", outputs):
                channel.put(output, sum(v.nbytes for v in output.outputs.values()) + output.kept.nbytes)
            channel.close()

        with stage("read", self.halt, read):
            for output in channel:
                with self.meter.busy("write"):
                    record, dead = committer.commit_output(output)
                self.committed(record, dead)


def _as_they_are(_name: str, values: Values) -> tuple[Values, dict[int, str]]:
    return values, {}
