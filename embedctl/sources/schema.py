"""Which columns a job reads, of which types, before it starts.

Enters: the files, and the columns the user named. Leaves: one schema that every file can be read with. Refused: a
column that is missing, types that do not agree between files, names that the output uses itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from embedctl.errors import UsageError
from embedctl.records import SourceFile
from embedctl.sources.base import Format
from embedctl.sources.conform import path_type
from embedctl.sources.contents import content_field, hold_bytes
from embedctl.sources.drift import FileSchema, is_text_like, unify
from embedctl.sources.jsonl import SAMPLE_BYTES, JsonlFormat
from embedctl.sources.keep import parse_keep
from embedctl.sources.roles import AnyField, mark_id, mark_json

ID_NAMES = ("id", "_id", "docid")
TEXT_NAMES = ("text", "content", "body", "document", "passage", "abstract")
RESERVED_NAMES = frozenset({"id", "embedding", "chunk", "char_start", "char_end", "token_count", "truncated"})
_TOTAL_SAMPLE_BYTES = 64 << 20
_MIN_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSchema:
    """schema: what readers are asked for, each needed column once; the id column is a marked string.

    keep: output columns in the user's order, without the id column, which the output has anyway.
    """

    schema: pa.Schema
    text_columns: tuple[str, ...]
    id_column: str | None
    keep: tuple[str, ...]
    where_columns: tuple[str, ...]


def read_schemas(files: Sequence[SourceFile], formats: Mapping[str, Format]) -> list[FileSchema]:
    """The schema of every file: footers of Parquet and Arrow files, the first bytes of others.

    :raises SourceError: a file cannot be opened or is not of its format.
    """
    num_samples = sum(1 for f in files if f.format == JsonlFormat.name) or 1
    sample_bytes = max(_MIN_SAMPLE_BYTES, min(SAMPLE_BYTES, _TOTAL_SAMPLE_BYTES // num_samples))

    def read(file: SourceFile) -> FileSchema:
        format = formats[file.format]
        sampled = isinstance(format, JsonlFormat)
        schema = format.schema(file, sample_bytes) if isinstance(format, JsonlFormat) else format.schema(file)
        return FileSchema(file=file, schema=schema, sampled=sampled)

    if len(files) == 1:  # without a pool, which would wait for a read of standard input that never ends
        return [read(files[0])]
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="schema") as pool:
        return list(pool.map(read, files))


def column_names(schemas: Iterable[FileSchema]) -> list[str]:
    """All top-level columns of the corpus, in order of first appearance."""
    return list(dict.fromkeys(name for s in schemas for name in s.schema.names))


def resolve_schema(
    files: Sequence[SourceFile],
    formats: Mapping[str, Format],
    *,
    text_columns: Sequence[str] | None = None,
    template: bool = False,
    id_column: str | None = None,
    keep: Sequence[str] = (),
    where_columns: Iterable[str] = (),
    schemas: Sequence[FileSchema] | None = None,
    queries: Sequence[str] = (),
    candidates: str | None = None,
    content_flag: str | None = None,
) -> ResolvedSchema:
    """Choose and check the columns of a job.

    :param text_columns: None chooses one. Without `template` there is one, and it must hold text; with it, any scalars.
    :param keep: names, dotted paths into structs, `name:type` (string, int64, float64, bool), or `*`.
    :param schemas: what `read_schemas` gave, when the caller has it already.
    :param queries: columns of a second text, any scalars. candidates: a column of lists. content_flag: the flag that
        named the text column, which holds pictures or sounds.
    :raises UsageError: a column is missing, of a wrong type or reserved, or types differ between files.
    :raises SourceError: a file cannot be opened.
    """
    known = [s for s in (read_schemas(files, formats) if schemas is None else schemas) if s.schema.names]
    names = column_names(known)
    id_column = _id_column(known, id_column)
    texts = tuple(text_columns) if text_columns is not None else (_text_column(known, names, id_column, queries),)
    where = tuple(dict.fromkeys(where_columns))
    kept = parse_keep(keep, names, texts, id_column, reserved=RESERVED_NAMES)
    if not known:
        return _of_nothing((*texts, *queries), id_column, kept, where, candidates)
    fields = _fields(known, names, texts, template, kept, where, content_flag)
    fields |= {q: _template_field(known, names, q, "--query-column") for q in queries if q not in texts}
    if candidates is not None:
        fields[candidates] = _list_field(known, names, candidates)
    if id_column is not None:
        fields[id_column] = _id_field(known, names, id_column)
    return ResolvedSchema(
        schema=pa.schema(list(fields.values())),
        text_columns=texts,
        id_column=id_column,
        keep=tuple(n for n in kept if n != id_column),
        where_columns=where,
    )


def _fields(
    known: Sequence[FileSchema],
    names: Sequence[str],
    texts: Sequence[str],
    template: bool,
    kept: Mapping[str, pa.DataType | None],
    where: Sequence[str],
    content_flag: str | None,
) -> dict[str, AnyField]:
    """The field of every needed column but the id; of several uses the first decides: text, keep, where."""
    text_field = _template_field if template else _text_field
    if content_flag is not None:
        fields = {n: content_field(n, _present(known, names, n, content_flag), content_flag) for n in texts}
    else:
        fields = {name: text_field(known, names, name) for name in texts}
    flags = {**dict.fromkeys(where, "--where"), **dict.fromkeys(kept, "--keep")}
    for name in (*kept, *where):
        if name not in fields:
            fields[name] = _field(known, names, name, flags[name], kept.get(name))
    return fields


def _of_nothing(
    texts: tuple[str, ...],
    id_column: str | None,
    kept: Mapping[str, pa.DataType | None],
    where: tuple[str, ...],
    candidates: str | None,
) -> ResolvedSchema:
    """A corpus without a single row: all that is asked for exists, as empty strings columns."""
    names = dict.fromkeys([*texts, *kept, *where, *([id_column] if id_column else [])])
    fields = [pa.field(name, kept.get(name) or pa.string()) for name in names]
    fields += [pa.field(candidates, pa.list_(pa.string()))] if candidates is not None else []
    return ResolvedSchema(
        schema=pa.schema([mark_id(f) if f.name == id_column else f for f in fields]),
        text_columns=texts,
        id_column=id_column,
        keep=tuple(n for n in kept if n != id_column),
        where_columns=where,
    )


def _id_column(known: Sequence[FileSchema], wanted: str | None) -> str | None:
    if wanted is not None or not known:
        return wanted
    for name in ID_NAMES:
        if all(name in s.schema.names and _may_be_id(s, path_type(s.schema, name)) for s in known):
            return name
    return None


def _may_be_id(schema: FileSchema, type_: pa.DataType | None) -> bool:
    return schema.sampled or (type_ is not None and (is_text_like(type_) or pa.types.is_integer(type_)))


def _text_column(
    known: Sequence[FileSchema], names: Sequence[str], id_column: str | None, queries: Sequence[str]
) -> str:
    if not known:
        return TEXT_NAMES[0]
    names = [n for n in names if n not in queries]
    texts = [n for n in names if n != id_column and all(_may_hold_text(s, n) for s in known)]
    # A column of a telling name is meant even where some file holds something else in it: that is told as drift.
    named = [n for n in TEXT_NAMES if n in names and any(_may_hold_text(s, n) or s.sampled for s in known)]
    if named:
        return named[0]
    if len(texts) == 1:
        return texts[0]
    what = f"{len(texts)} hold text: {', '.join(texts)}" if texts else f"none of {', '.join(names)} holds text"
    contents = hold_bytes(known, names)
    if contents and set(texts) <= set(contents):
        hint = f"--image-column {contents[0]}, if it holds pictures"
    else:
        hint = f"--text-column {texts[0]}" if texts else f"--text-template '{{{names[0]}}}' takes any scalar"
    raise UsageError(f"--text-column: which column is the text? {what}", hint=hint)


def _may_hold_text(s: FileSchema, name: str) -> bool:
    type_ = path_type(s.schema, name)
    return s.sampled if type_ is None else is_text_like(type_)


def _text_field(known: Sequence[FileSchema], names: Sequence[str], name: str) -> AnyField:
    present = _present(known, names, name, "--text-column")
    for s, type_ in present:
        if not s.sampled and not is_text_like(type_):
            raise UsageError(
                f"--text-column: column {name!r} of {s.file.uri} is {type_}, not text",
                hint=f"--text-template '{{{name}}}' takes any scalar",
            )
    return pa.field(name, pa.string())


def _template_field(
    known: Sequence[FileSchema], names: Sequence[str], name: str, flag: str = "--text-template"
) -> AnyField:
    field = _field(known, names, name, flag, None)
    if all(s.sampled for s in known):
        # A value of another kind further down must not kill the row: its JSON text is as good in a template.
        return field if pa.types.is_string(field.type) else mark_json(pa.field(name, pa.string()))
    if pa.types.is_nested(field.type):
        raise UsageError(f"{flag}: column {name!r} is {field.type}; it takes scalars only")
    return pa.field(name, pa.string()) if is_text_like(field.type) else field


def _list_field(known: Sequence[FileSchema], names: Sequence[str], name: str) -> AnyField:
    """JSON text where types come from a sample: lists further down may hold items of other kinds."""
    field = _field(known, names, name, "--candidates-column", None)
    return mark_json(pa.field(name, pa.string())) if all(s.sampled for s in known) else field


def _id_field(known: Sequence[FileSchema], names: Sequence[str], name: str) -> AnyField:
    present = _present(known, names, name, "--id-column")
    for s, type_ in present:
        if not _may_be_id(s, type_):
            raise UsageError(
                f"--id-column: column {name!r} of {s.file.uri} is {type_}; an id is text or a whole number"
            )
    # A sample proves nothing about the ids after it, and an unsigned id may not fit int64.
    numbers = all(not s.sampled and pa.types.is_integer(t) and t != pa.uint64() for s, t in present)
    return mark_id(pa.field(name, pa.string()), numbers=numbers)


def _field(
    known: Sequence[FileSchema], names: Sequence[str], name: str, flag: str, forced: pa.DataType | None
) -> AnyField:
    present = _present(known, names, name, flag)
    if forced is not None:
        field = pa.field(name, forced)
        return mark_json(field) if pa.types.is_string(forced) else field
    return unify(name, [s for s, _ in present])


def _present(
    known: Sequence[FileSchema], names: Sequence[str], name: str, flag: str
) -> list[tuple[FileSchema, pa.DataType]]:
    """The files that have the column. Sampled files may lack it: a key can come later. Others must have it."""
    found = [(s, path_type(s.schema, name)) for s in known]
    if all(type_ is None for _, type_ in found):
        near = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"{flag}: no column {name!r}; the corpus has {', '.join(names) or 'no columns'}",
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    for s, type_ in found:
        if s.schema.names.count(name) > 1:
            raise UsageError(f"{flag}: column {name!r} is there twice in {s.file.uri}", hint="rename one of the two")
        if type_ is None and not s.sampled:
            raise UsageError(
                f"{flag}: column {name!r} is missing in {s.file.uri}; it has {', '.join(s.schema.names)}",
                hint="leave the file out, or give it the column",
            )
    return [(s, type_) for s, type_ in found if type_ is not None]
