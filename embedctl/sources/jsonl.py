"""JSON lines: one object a line, plain or compressed, from a file or standard input.

Enters: a file and byte offsets. Leaves: blocks. A line that is not a JSON object, or a value that does not fit its
column, is an error of that row alone. Column types are inferred from a bounded sample and fixed by the plan.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pyarrow as pa

from embedctl.errors import SourceError
from embedctl.records import RowBlock, Segment, SourceFile
from embedctl.sources.infer import Inference
from embedctl.sources.jsonfit import Fit, Json, Misfit, fitter, kind_of
from embedctl.sources.lines import Line, byte_segments, head, read_lines
from embedctl.sources.rows import Row, blocks_of_rows

SAMPLE_BYTES = 1 << 20
_TOO_LONG = "line is longer than 64 MiB"


class JsonlFormat:
    """Positions are decompressed byte offsets; plain files are cut at any byte, compressed ones are one segment."""

    name = "jsonl"

    def schema(self, file: SourceFile, sample_bytes: int = SAMPLE_BYTES) -> pa.Schema:
        """Columns in order of first appearance in the first `sample_bytes`, types inferred from the values there.

        :raises SourceError: the file cannot be read, or it is one JSON document over many lines.
        """
        inference = Inference()
        lines = list(_sample(file, sample_bytes))
        for content in lines:
            with contextlib.suppress(Misfit):
                inference.add(parse(content))
        if lines and not inference.num_rows:
            _refuse_document(file, lines[0])
        return inference.schema()

    def segments(self, file: SourceFile, target_bytes: int) -> list[Segment]:
        """Byte ranges; a line belongs to the one that holds its first byte."""
        return byte_segments(file, target_bytes)

    def read(
        self, file: SourceFile, segment: Segment, schema: pa.Schema, start: int | None = None
    ) -> Iterator[RowBlock]:
        """Rows of the segment from byte `start` on; compressed files and standard input are read up to there.

        :raises SourceError: the file cannot be read to its end; rows before that come first.
        """
        begin = segment.begin if start is None else max(start, segment.begin)
        lines = read_lines(file, begin, segment.end)
        cells = [(field.name, fitter(field)) for field in schema]
        rows = (_row(line, cells) for line in lines if line.too_long or not line.content.isspace())
        return blocks_of_rows(file, rows, schema)


def parse(content: bytes) -> dict[str, Json]:
    """One line as an object. :raises Misfit: with the reason."""
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        raise Misfit(f"line is not valid UTF-8 (byte {exc.start})") from None
    except json.JSONDecodeError as exc:
        raise Misfit(f"line is not JSON: {exc.msg} (character {exc.pos})") from None
    except RecursionError:
        raise Misfit("line is not JSON: nested too deeply") from None
    except Misfit:
        raise
    except ValueError as exc:  # whole numbers of thousands of digits
        raise Misfit(f"line is not JSON: {str(exc).partition(';')[0]}") from None
    if type(value) is not dict:
        raise Misfit(f"line is {kind_of(value)}, not a JSON object")
    return value


def _refuse_constant(word: str) -> float:
    raise Misfit(f"line is not JSON: {word} is not a JSON number")


def _row(line: Line, cells: list[tuple[str, Fit]]) -> Row:
    if line.too_long:
        return Row(line.offset, line.end, [None] * len(cells), _TOO_LONG, b"")
    try:
        record = parse(line.content)
    except Misfit as exc:
        return Row(line.offset, line.end, [None] * len(cells), str(exc), line.content)
    values: list[Json] = []
    error = None
    for name, fit in cells:
        value = record[name] if name in record else _at_path(record, name)
        if value is not None:
            try:
                value = fit(value)
            except Misfit as exc:
                error = error or str(exc)
                value = None
        values.append(value)
    return Row(line.offset, line.end, values, error, line.content)


def _at_path(record: dict[str, Json], name: str) -> Json:
    value: Json = record
    if "." not in name:
        return None
    for key in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _sample(file: SourceFile, sample_bytes: int) -> Iterator[bytes]:
    """Whole lines at the file's start; the last one only when it is known to be complete."""
    data = head(file, sample_bytes)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(data) == sample_bytes and len(lines) > 1:
        lines.pop()
    yield from (line for line in lines if line.strip())


def _refuse_document(file: SourceFile, data: bytes) -> None:
    """A `.json` file is often one document over many lines: say so, instead of a dead row for each line."""
    if data.lstrip()[:1] == b"[" or file.path.lower().endswith(".json"):
        raise SourceError(
            f"{file.uri}: is one JSON document, not one object a line",
            hint=f"jq -c '.[]' {file.uri} > {file.uri}l",
        )
