"""Flags, `EMBEDCTL_*` variables and TOML files -> one `JobSpec`.

Precedence: flag, then variable, then file, then default. Refuses unknown keys, the nearest named, and values of another
type, told what was expected.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from embedctl.errors import UsageError
from embedctl.spec import JobSpec, flag
from embedctl.units import parse_share, parse_size


def resolve(
    flags: Mapping[str, Any],
    *,
    config: Path | None = None,
    base: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobSpec:
    """One spec from flags (None: not given), `EMBEDCTL_*` variables and a TOML file, in this order of strength.

    :param base: what stands under all of them, as `from_table` gives it.
    :raises UsageError: unknown key (the nearest is named), wrong type, value out of range.
    """
    known = {f.name for f in fields(JobSpec)}
    merged: dict[str, Any] = dict(base or {})
    if config is not None:
        merged |= from_table(_read_toml(config), str(config))
    for key, text in (os.environ if environ is None else environ).items():
        name = key.removeprefix("EMBEDCTL_").lower()
        if key.startswith("EMBEDCTL_") and name in known:
            merged[name] = _coerce(name, text, key)
    merged |= {k: _coerce(k, v, flag(k)) for k, v in flags.items() if v is not None}
    return JobSpec(**merged)


def from_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of a `JobSpec` from the keys of a TOML table, dashed or not, each in its own type.

    :raises UsageError: unknown key (the nearest is named), wrong type; `where` says in which file and table.
    """
    known, out = {f.name for f in fields(JobSpec)}, {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"embedctl run {where}" if name == "job" else f"did you mean {near[0]!r}?" if near else None
            raise UsageError(f"{where}: unknown key {key!r}", hint=hint)
        out[name] = _coerce(name, value, f"{where}: {name}")
    return out


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"--config: cannot read {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"--config: {path} is not valid TOML: {exc}") from exc


_BYTES = {"memory", "window_bytes", "slice_bytes"}


def _coerce(name: str, value: Any, where: str) -> Any:
    """Bring a flag's, variable's or TOML value to the field's type, or say what was expected."""
    want = _field_type(name)
    try:
        if name == "model":
            return (value,) if isinstance(value, str) else tuple(map(str, value))
        if want is tuple:
            items = value.split(",") if isinstance(value, str) else list(value)
            return tuple(
                s for item in items for s in (str(item).split(",") if name in ("keep", "output") else [str(item)]) if s
            )
        if name == "sample":
            return parse_share(str(value))
        if name in _BYTES:
            return parse_size(str(value))
        if want is bool:
            return _as_bool(value)
        if want is float and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return float(value)
        if want is int and isinstance(value, (str, int)) and not isinstance(value, bool):
            return int(value)
        if want is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
    except (ValueError, TypeError, OverflowError):
        pass
    raise UsageError(f"{where}: {value!r} is not {_wanted(name, want)}")


def _wanted(name: str, want: type) -> str:
    if name in _BYTES:
        return "a size like 8GiB"
    if name == "sample":
        return "a share like 1% or 0.01"
    return {int: "a whole number", float: "a number", bool: "yes or no", tuple: "a list"}.get(want, "text")


def _as_bool(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _field_type(name: str) -> type:
    hint = typing.get_type_hints(JobSpec)[name]
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    return tuple if typing.get_origin(hint) is tuple else hint
