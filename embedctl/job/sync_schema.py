"""The columns of a corpus that may have changed, held to those of the last plan.

Enters: the last plan, the files that will be read, and all of them. Leaves: the schema to read with, and whether files
that did not change must be read too. Refused: another type of a kept column, or an id column that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from embedctl import registry
from embedctl.errors import GuardRefused, PlanMismatch, UsageError
from embedctl.job.media import content_flag_of
from embedctl.plan import Plan
from embedctl.records import SourceFile
from embedctl.sources.roles import is_number_id
from embedctl.sources.schema import column_names, read_schemas, resolve_schema
from embedctl.sources.where import columns_of


def schema_of(
    last: Plan, changed: Sequence[SourceFile], files: Sequence[SourceFile], updated_column: str | None
) -> tuple[pa.Schema, bool]:
    """(schema, whether every file must be read because a column's type means other texts now).

    :raises GuardRefused: the id column vanished. :raises PlanMismatch: kept columns or ids are of another type now.
    """
    found = None
    for some in (changed, files):
        try:
            found = _resolved(last, some, updated_column)
        except UsageError:  # a column that the changed files lack may stand in the others
            if some is files or len(changed) == len(files):
                raise
            continue
        if found is None or found.equals(last.schema, check_metadata=True):
            return last.schema, False
    assert found is not None
    _check_same_output(last, found)
    return found, True


def _resolved(last: Plan, files: Sequence[SourceFile], updated_column: str | None) -> pa.Schema | None:
    """None where there is not a row to tell by."""
    formats = {name: registry.get("formats", name)() for name in sorted({f.format for f in files})}
    schemas = read_schemas(files, formats) if files else []
    names = column_names(schemas)
    if not names:
        return None
    where = last.spec["where"]
    needed = set(columns_of(where, names)) if where else set()
    keep = list(last.spec["keep"])
    try:
        return resolve_schema(
            files,
            formats,
            text_columns=last.text_columns,
            template=last.spec["text_template"] is not None,
            id_column=last.id_column,
            keep=list(last.keep) if "*" in keep else keep,
            where_columns=sorted(needed | ({updated_column} if updated_column else set())),
            schemas=schemas,
            content_flag=content_flag_of(last),
        ).schema
    except UsageError as exc:
        if not str(exc).startswith("--id-column: no column") and "is missing in" not in str(exc):
            raise
        if not str(exc).startswith("--id-column:"):
            raise
        raise GuardRefused(
            f"the id column is gone, so no row can be told from another: {exc}",
            hint="bring the column back; nothing was changed",
        ) from exc


def _check_same_output(last: Plan, found: pa.Schema) -> None:
    for name in last.keep:
        before, now = last.schema.field(name).type, found.field(name).type
        if before != now:
            raise PlanMismatch(
                f"--keep: column {name!r} is {now} now, the destination holds {before}",
                hint="embed all again beside the old with --migrate, or choose another destination with --to",
            )
    assert last.id_column is not None
    if last.resolved["id_type"] == "int64" and not is_number_id(found.field(last.id_column)):
        raise PlanMismatch(
            f"--id-column: {last.id_column!r} holds text now, the destination whole numbers",
            hint="embed all again beside the old with --migrate, or choose another destination with --to",
        )
