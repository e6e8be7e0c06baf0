"""The JSON Schema of job files, from `JobSpec` and the options' help, so that editors know what `embedctl run` takes.

Keys may be spelt with dashes or underscores; editors offer the dashed ones. Any value may be text with `${NAME}` in it.
"""

from __future__ import annotations

import types
import typing
from dataclasses import Field, fields
from typing import Any

from embedctl.cli.options import OPTIONS
from embedctl.cli.score_options import SCORE_OPTIONS
from embedctl.job.commands import COMMANDS
from embedctl.job.jobfile import COMMAND
from embedctl.spec import JobSpec

_VARIABLE = {"type": "string", "pattern": r"\$\{"}
_SIZES = frozenset({"memory", "window_bytes", "slice_bytes"})
_SHOWN = {**SCORE_OPTIONS, **OPTIONS}
_KEYS = [f for f in fields(JobSpec) if f.name in _SHOWN or f.name == "inputs"]
_NAME = {"type": "string", "pattern": r"^[^\s/\"'\\]+$"}


def job_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a whole job file."""
    job, named = {"$ref": "#/$defs/job"}, {"$ref": "#/$defs/named"}
    several = {
        "type": "object",
        "required": ["job"],
        "additionalProperties": False,
        "properties": {
            "defaults": {"$ref": "#/$defs/defaults", "description": "Keys for every job of this file."},
            "job": {
                "description": "The jobs, run in order: [job.NAME] tables, or [[job]] with a name.",
                "anyOf": [
                    {"type": "object", "minProperties": 1, "propertyNames": _NAME, "additionalProperties": job},
                    {"type": "array", "minItems": 1, "items": named},
                ],
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "embedctl job file",
        "anyOf": [several, {"$ref": "#/$defs/alone"}],
        "$defs": {
            "defaults": _table({}),
            "job": _table({}),
            "named": _table({"name": _NAME}, required=["name"]),
            "alone": _table({"name": _NAME}),
        },
    }


def _table(extra: dict[str, Any], required: typing.Sequence[str] = ()) -> dict[str, Any]:
    command = {
        "description": f"What the job does. Default: {COMMAND}.",
        "anyOf": [{"enum": sorted(COMMANDS)}, _VARIABLE],
    }
    return {
        "type": "object",
        "properties": {**extra, "command": command, **{f.name.replace("_", "-"): _value(f) for f in _KEYS}},
        "patternProperties": {f"^{f.name}$": _value(f) for f in _KEYS if "_" in f.name},
        "required": list(required),
        "additionalProperties": False,
    }


def _value(field: Field[Any]) -> dict[str, Any]:
    """What one key may hold, as `spec.from_table` takes it."""
    option = _SHOWN.get(field.name)
    shown: dict[str, Any] = {"description": option.help if option else "Files, folders, globs or URIs."}
    if field.default not in (None, ()):
        shown["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    return {**shown, "anyOf": [*_kinds(field), _VARIABLE]}


def _kinds(field: Field[Any]) -> list[dict[str, Any]]:
    choices = field.metadata["choices"]
    hint = typing.get_type_hints(JobSpec)[field.name]
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    if choices:
        return [{"enum": list(choices)}]
    if typing.get_origin(hint) is tuple:
        return [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    if field.name in _SIZES:
        return [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([kKmMgGtT]i?)?[bB]?\s*$"},
        ]
    if field.name == "sample":
        return [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "string", "pattern": r"^[\d.]+%?$"}]
    if hint is bool:
        return [{"type": "boolean"}]
    if hint is int:
        return [{"type": "integer", "minimum": 0}]
    if hint is float:
        return [{"type": "number"}]
    return [{"type": "string"}, {"type": "number"}] if field.name == "max_dead" else [{"type": "string"}]
