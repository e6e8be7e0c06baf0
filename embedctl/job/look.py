"""A first look at a corpus, for `embedctl init`: which column is the text, which the id, and what else could be.

Enters: inputs as the user typed them. Leaves: a `Look`. Reads the schemas and the first rows of the first files.
Refuses standard input, and a corpus in which nothing holds text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from embedctl import registry
from embedctl.errors import UsageError
from embedctl.records import Segment, SourceFile
from embedctl.sources.conform import path_type
from embedctl.sources.drift import FileSchema, is_text_like
from embedctl.sources.files import STDIN, discover
from embedctl.sources.schema import RESERVED_NAMES, column_names, read_schemas, resolve_schema

MOST_ROWS = 1000
MOST_FILES = 4
_IDS = ("id", "key", "uri", "url", "path", "slug", "name", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`text` is chosen, `texts` are the others that hold text, `id` is chosen or None, `unique` are columns that look
    like ids and do not repeat in the sample, `scalars` could be kept. `sample`: the first text, for people to see."""

    files: int
    size_bytes: int
    formats: tuple[str, ...]
    rows: int
    text: str
    texts: tuple[str, ...]
    id: str | None
    id_repeats: bool
    unique: tuple[str, ...]
    scalars: tuple[str, ...]
    sample: str


def look(inputs: Sequence[str], format: str | None = None) -> Look:
    """:raises UsageError, SourceError: no file, nothing that holds text, standard input."""
    if STDIN in inputs:
        raise UsageError("init cannot look at standard input: it can be read only once", hint="save it to a file first")
    files = discover(inputs, format)
    readers = {name: registry.get("formats", name)() for name in sorted({f.format for f in files})}
    schemas = read_schemas(files, readers)
    names = column_names(schemas)
    rows = _sample(files, readers, schemas, names)
    text, texts = _texts(files, readers, schemas, rows)
    id_ = resolve_schema(files, readers, text_columns=[text], schemas=schemas).id_column
    unique = [n for n in names if n in rows and _is_unique(rows[n])]
    return Look(
        files=len(files),
        size_bytes=sum(f.size_bytes for f in files),
        formats=tuple(readers),
        rows=max(map(len, rows.values()), default=0),
        text=text,
        texts=tuple(n for n in texts if n != id_),
        id=id_,
        id_repeats=id_ is not None and id_ in rows and not _is_unique(rows[id_]),
        unique=tuple(n for n in unique if n != text and any(word in n.lower() for word in _IDS)),
        scalars=tuple(n for n in names if n not in (text, id_) and n not in RESERVED_NAMES and _is_scalar(schemas, n)),
        sample=next((v for v in rows.get(text, []) if isinstance(v, str) and v.strip()), ""),
    )


def _texts(
    files: Sequence[SourceFile],
    readers: Mapping[str, Any],
    schemas: Sequence[FileSchema],
    rows: Mapping[str, list[Any]],
) -> tuple[str, tuple[str, ...]]:
    """The text column, the longest where names do not tell, and the others that could be it."""
    lengths = {
        name: sum(len(v) for v in values if isinstance(v, str)) / max(1, len(values))
        for name, values in rows.items()
        if any(isinstance(v, str) and v.strip() for v in values)
    }
    by_length = sorted(lengths, key=lambda n: -lengths[n])
    try:
        chosen = resolve_schema(files, readers, schemas=schemas).text_columns[0]
    except UsageError:
        if not by_length:
            raise
        chosen = by_length[0]
    return chosen, tuple(n for n in by_length if n != chosen)


def _sample(
    files: Sequence[SourceFile], readers: Mapping[str, Any], schemas: Sequence[FileSchema], names: Sequence[str]
) -> dict[str, list[Any]]:
    """The first values of every column that is text or a whole number, as Python values."""
    out: dict[str, list[Any]] = {}
    by_index = {s.file.index: s for s in schemas}
    for file in files[:MOST_FILES]:
        wanted = [n for n in names if n in by_index[file.index].schema.names and _is_scalar([by_index[file.index]], n)]
        schema = pa.schema([pa.field(n, _read_as(by_index[file.index], n)) for n in wanted])
        for column, values in _first_rows(file, readers[file.format], schema):
            out.setdefault(column, []).extend(values)
    return out


def _first_rows(file: SourceFile, reader: Any, schema: pa.Schema) -> Iterator[tuple[str, list[Any]]]:
    if not schema.names or not file.size_bytes:
        return
    left = MOST_ROWS
    for block in reader.read(file, Segment(file=file.index), schema, 0):
        batch = block.columns.slice(0, left)
        for name in schema.names:
            yield name, batch.column(name).to_pylist()
        left -= batch.num_rows
        if left <= 0:
            return


def _read_as(schema: FileSchema, name: str) -> pa.DataType:
    type_ = path_type(schema.schema, name)
    return type_ if type_ is not None and pa.types.is_integer(type_) else pa.string()


def _is_scalar(schemas: Sequence[FileSchema], name: str) -> bool:
    types = [t for s in schemas if (t := path_type(s.schema, name)) is not None]
    return bool(types) and all(is_text_like(t) or pa.types.is_integer(t) for t in types)


def _is_unique(values: Sequence[Any]) -> bool:
    return bool(values) and None not in values and len(set(values)) == len(values)
