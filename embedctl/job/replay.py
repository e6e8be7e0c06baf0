"""Standard input read again on a resume: a rolling hash proves that it is the same as far as it was committed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from embedctl.errors import PlanMismatch
from embedctl.records import RowBlock, SourceFile, WindowRecord
from embedctl.stages.windows import Blocks


class Replay:
    """Hashes every row's raw bytes in order. `digest(offset)` tells the hash of all rows before `offset`."""

    def __init__(self, committed: Iterable[WindowRecord]) -> None:
        self._expected = {r.end.position if not r.last else -1: r.replay for r in committed}
        self._hash = hashlib.blake2b(digest_size=16)
        self._digests: dict[int, str] = {}

    def digest(self, offset: int) -> str:
        found = self._digests[offset]
        self._digests = {o: d for o, d in self._digests.items() if o >= offset}
        return found

    def watch(self, blocks: Blocks) -> Blocks:
        """The same blocks from `start` on; all before it is read too, hashed and compared.

        :raises PlanMismatch: the input differs from what was committed, or ends too early.
        """

        def watched(file: SourceFile, begin: int, end: int | None, start: int) -> Iterator[RowBlock]:
            self._digests[begin] = self._hash.hexdigest()
            for block in blocks(file, begin, end, begin):
                self._take(block)
                wanted = np.flatnonzero(block.positions >= start)
                if len(wanted):
                    yield _tail(block, int(wanted[0]))
            if self._expected.keys() - {-1}:
                raise PlanMismatch(
                    f"standard input ended before byte {min(self._expected.keys() - {-1})}, up to which "
                    "it was committed",
                    hint="feed the same input again, or start a new job with another --to",
                )

        return watched

    def confirm(self, blocks: Blocks, file: SourceFile, last: WindowRecord) -> None:
        """Read all of standard input for a finished job. :raises PlanMismatch: it is not what was committed."""
        end = 0
        for block in self.watch(blocks)(file, 0, None, 0):
            end = block.next_position
        if self.digest(end) != last.replay:
            raise PlanMismatch(
                "standard input differs from what this finished job was made of",
                hint="start a new job with another --to",
            )

    def _take(self, block: RowBlock) -> None:
        assert block.raw is not None
        for position, raw in zip(block.positions.tolist(), block.raw, strict=True):
            self._note(position)
            self._hash.update(len(raw).to_bytes(8, "little") + raw)
        self._note(block.next_position)

    def _note(self, offset: int) -> None:
        """All rows before `offset` are hashed."""
        self._digests[offset] = self._hash.hexdigest()
        expected = self._expected.pop(offset, None)
        if expected is not None and expected != self._digests[offset]:
            raise PlanMismatch(
                f"standard input differs from what was committed before byte {offset}",
                hint="feed the same input again, or start a new job with another --to",
            )


def _tail(block: RowBlock, first: int) -> RowBlock:
    if first == 0:
        return block
    return RowBlock(
        file=block.file,
        positions=block.positions[first:],
        columns=block.columns.slice(first),
        next_position=block.next_position,
        errors={i - first: reason for i, reason in block.errors.items() if i >= first},
        raw=None if block.raw is None else block.raw[first:],
    )
