"""What every source format must keep to. Inherit `SourceContract`, give it files, and pytest does the rest.

Enters: a `Format` and files with rows the author knows. Leaves: a verdict. A third party's format takes it as is:

    class TestMine(SourceContract):
        format = MyFormat()

        @pytest.fixture
        def file(self, tmp_path): ...          # at least 40 rows, one of them unreadable, one long, some short
        expected_errors = {7: "not valid"}     # row number in the file -> a part of the reason
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.base import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS, Format
from embedctl.sources.files import discover


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Blocks laid end to end."""

    positions: list[int]
    cells: list[dict[str, object]]
    errors: dict[int, str]
    next_positions: list[int]

    def after(self, count: int) -> Rows:
        """The rows past the first `count`."""
        return Rows(
            positions=self.positions[count:],
            cells=self.cells[count:],
            errors={i - count: reason for i, reason in self.errors.items() if i >= count},
            next_positions=self.next_positions[count:],
        )


class SourceContract:
    """Inherit this; define `format`, `file` and, where the file has unreadable rows, `expected_errors`."""

    format: ClassVar[Format]
    expected_errors: ClassVar[Mapping[int, str]] = {}

    def test_the_schema_is_exact(self, file: SourceFile) -> None:
        schema = self.format.schema(file)
        for wanted in (schema, pa.schema(list(reversed(list(schema)))), pa.schema([schema.field(0)])):
            for block in self._blocks(file, wanted):
                assert block.columns.schema == wanted

    def test_blocks_are_bounded_and_whole(self, file: SourceFile) -> None:
        last = -1
        for block in self._blocks(file, self.format.schema(file)):
            n = block.columns.num_rows
            assert 0 < n <= MAX_BLOCK_ROWS
            assert n == 1 or block.columns.nbytes <= 2 * MAX_BLOCK_BYTES
            assert block.file == file.index
            assert block.positions.dtype == np.int64
            assert len(block.positions) == n
            assert last < int(block.positions[0])
            assert (np.diff(block.positions) > 0).all()
            last = int(block.positions[-1])
            assert block.next_position > last
            assert all(0 <= row < n for row in block.errors)
            block.columns.validate(full=True)

    def test_bad_rows_are_errors_of_their_own(self, file: SourceFile) -> None:
        rows = self._rows(file, self.format.schema(file))
        assert rows.errors.keys() == self.expected_errors.keys()
        for row, reason in self.expected_errors.items():
            assert reason in rows.errors[row]

    def test_segments_have_no_gap_and_no_overlap(self, file: SourceFile) -> None:
        for target_bytes in (1, 100, 1000, 1 << 30):
            segments = self.format.segments(file, target_bytes)
            assert segments
            assert segments[0].begin == 0
            for a, b in itertools.pairwise(segments):
                assert a.end == b.begin
            assert {s.file for s in segments} == {file.index}

    def test_segments_read_as_the_whole(self, file: SourceFile) -> None:
        schema = self.format.schema(file)
        whole = self._rows(file, schema)
        for target_bytes in (64, 500, 10_000):
            segments = self.format.segments(file, target_bytes)
            parts = [self._rows(file, schema, segment=s) for s in segments]
            assert [p for part in parts for p in part.positions] == whole.positions
            assert [c for part in parts for c in part.cells] == whole.cells
            assert sum(len(part.errors) for part in parts) == len(whole.errors)

    def test_a_restart_at_every_position_gives_the_rest(self, file: SourceFile) -> None:
        schema = self.format.schema(file)
        whole = self._rows(file, schema)
        for i in _some(len(whole.positions)):
            assert self._rows(file, schema, start=whole.positions[i]) == whole.after(i)

    def test_a_restart_after_every_block_gives_the_rest(self, file: SourceFile) -> None:
        schema = self.format.schema(file)
        whole = self._rows(file, schema)
        done = 0
        for block in self._blocks(file, schema):
            done += len(block.positions)
            assert self._rows(file, schema, start=block.next_position).cells == whole.cells[done:]

    def test_a_restart_inside_every_segment_gives_its_rest(self, file: SourceFile) -> None:
        schema = self.format.schema(file)
        for segment in self.format.segments(file, 700):
            rows = self._rows(file, schema, segment=segment)
            for i in _some(len(rows.positions)):
                assert self._rows(file, schema, segment=segment, start=rows.positions[i]) == rows.after(i)

    def test_two_readings_agree(self, file: SourceFile) -> None:
        schema = self.format.schema(file)
        assert self._rows(file, schema) == self._rows(file, schema)

    def _blocks(
        self, file: SourceFile, schema: pa.Schema, segment: Segment | None = None, start: int | None = None
    ) -> list[RowBlock]:
        return list(self.format.read(file, segment or Segment(file=file.index), schema, start))

    def _rows(
        self, file: SourceFile, schema: pa.Schema, segment: Segment | None = None, start: int | None = None
    ) -> Rows:
        return lay_out(self._blocks(file, schema, segment, start))


def lay_out(blocks: Sequence[RowBlock]) -> Rows:
    """Blocks as plain rows. `next_positions` holds, for each row, where its successor is known to be, or -1."""
    positions: list[int] = []
    cells: list[dict[str, object]] = []
    errors: dict[int, str] = {}
    for block in blocks:
        errors |= {len(positions) + row: reason for row, reason in block.errors.items()}
        positions += block.positions.tolist()
        cells += block.columns.to_pylist()
    return Rows(positions=positions, cells=cells, errors=errors, next_positions=[*positions[1:], -1][: len(positions)])


def source_file(path: Path, format: str | None = None) -> SourceFile:
    """One file as the plan would see it."""
    return discover([str(path)], format)[0]


def _some(count: int) -> list[int]:
    """All of a few, or the ends and a spread of many."""
    if count <= 60:
        return list(range(count))
    return sorted({*range(5), *range(count - 5, count), *range(0, count, max(count // 40, 1))})
