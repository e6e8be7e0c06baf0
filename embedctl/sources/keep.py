"""What `--keep` asks for.

Enters: names, `name:type`, or `*`, and the corpus' columns. Leaves: the kept columns. Refused: a type that cannot be
forced, a name that the output uses itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from embedctl.errors import UsageError

OVERRIDES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}


def parse_keep(
    keep: Sequence[str], names: Sequence[str], texts: Sequence[str], id_column: str | None, *, reserved: Collection[str]
) -> dict[str, pa.DataType | None]:
    """Kept column -> the type the user forced, or None. reserved: names that the output uses itself.

    :raises UsageError: see the module.
    """
    out: dict[str, pa.DataType | None] = {}
    for item in keep:
        if item == "*":
            for other in names:
                if other not in texts and other != id_column:
                    out.setdefault(other, None)
            continue
        name, colon, type_name = item.rpartition(":")
        if item in names or not colon:
            out[item] = None
        elif type_name in OVERRIDES:
            out[name] = OVERRIDES[type_name]
        else:
            raise UsageError(
                f"--keep: {item!r} asks for type {type_name!r}; allowed: {', '.join(OVERRIDES)}",
                hint=f"--keep {name}:string",
            )
    for name in out:
        if name in reserved and name != id_column:
            raise UsageError(
                f"--keep: {name!r} is a name the output uses itself; reserved: {', '.join(sorted(reserved))}",
                hint="--id-column id" if name == "id" else "leave it out, or rename it in the corpus",
            )
    return out
