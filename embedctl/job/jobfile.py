"""Job files: TOML with one or more jobs, for `embedctl run`.

    [defaults]                       keys for every job of the file
    [job.NAME] or [[job]] + name     one job: `command` (by default embed) and the options of that command as keys

A file without `job` tables is one job, named after the file. `${NAME}` and `${NAME:-default}` in any text are taken
from the environment, `$$` is one dollar. Relative paths are taken from the file's folder. Refuses, before any job
starts: unknown keys and commands (the nearest is named), variables that are not set, two jobs of one name. An error
shows `${NAME}`, never what it stands for.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from embedctl.errors import UsageError
from embedctl.job.commands import SCORING, SCORING_KEYS
from embedctl.job.destination import default_destination
from embedctl.settings import from_table, resolve
from embedctl.spec import JobSpec

COMMAND = "embed"
"""What a job does when it does not say."""
_OWN = ("name", "command")
_TOP = ("defaults", "job")
_REFERENCE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|DSN|SIGNATURE", re.IGNORECASE)
_NAME = re.compile(r"[^\s/\"'\\]+")

Hide = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, validated. `folder`: where its relative paths start. `hide` puts `${NAME}` back in place of secrets."""

    name: str
    command: str
    spec: JobSpec
    file: Path
    folder: Path
    hide: Hide


def read(
    paths: Sequence[Path],
    flags: Mapping[str, Any],
    commands: Collection[str],
    environ: Mapping[str, str] = os.environ,
) -> list[Job]:
    """The jobs of all files, in order. Strength: flag, `EMBEDCTL_*` variable, the job's table, its file's defaults.

    :raises UsageError: see above; nothing has run then.
    """
    jobs: list[Job] = []
    for path in paths:
        for name, table in _tables(path, _parsed(path)):
            earlier = next((job for job in jobs if job.name == name), None)
            if earlier is not None:
                where = str(path) if earlier.file == path else f"{earlier.file} and {path}"
                raise UsageError(f"{where}: two jobs are named {name!r}", hint="give each a name of its own")
            jobs.append(_job(path, name, table, flags, commands, environ))
    return jobs


def chosen(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """The jobs of these names, in the files' order. :raises UsageError: no job of a name; the nearest is named."""
    names = [job.name for job in jobs]
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"--only: no job named {name!r}; there are {', '.join(names)}",
                hint=f"--only {near[0]}" if near else None,
            )
    return [job for job in jobs if not only or job.name in only]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        hint = "embedctl init corpus/ writes one" if isinstance(exc, FileNotFoundError) else None
        raise UsageError(f"{path}: cannot read the job file: {exc.strerror}", hint=hint) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}: not valid TOML: {exc}") from exc


def _tables(path: Path, content: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, keys) of each job of a file, its defaults underneath."""
    if not set(_TOP) & content.keys():
        return [(_named(path, content.get("name", path.stem)), dict(content))]
    for key in sorted(content.keys() - set(_TOP)):
        known = key.replace("-", "_") in {f.name for f in fields(JobSpec)}
        near = difflib.get_close_matches(key, _TOP, n=1)
        raise UsageError(
            f"{path}: unknown key {key!r} beside the tables {', '.join(_TOP)}",
            hint=f"put it into [defaults] or into a job: {key} = ..."
            if known
            else f"did you mean {near[0]!r}?"
            if near
            else None,
        )
    defaults, jobs = content.get("defaults", {}), content.get("job", {})
    if not isinstance(defaults, dict):
        raise UsageError(f"{path}: defaults: {defaults!r} is not a table", hint="[defaults]")
    if "name" in defaults:
        raise UsageError(f"{path}: defaults: a name is one job's own")
    listed = [(None, job) for job in jobs] if isinstance(jobs, list) else []
    named = list(jobs.items()) if isinstance(jobs, dict) else listed
    if not named or not all(isinstance(job, dict) for _, job in named):
        raise UsageError(f"{path}: no job in it", hint='[job.docs] with inputs = ["corpus.parquet"]')
    return [(_name_of(path, name, job), _under(defaults, job)) for name, job in named]


def _name_of(path: Path, name: str | None, job: Mapping[str, Any]) -> str:
    if name is None and "name" not in job:
        raise UsageError(f"{path}: a [[job]] without a name", hint='name = "docs"')
    if name is not None and "name" in job:
        raise UsageError(f"{path}: job.{name}: it has a name already; remove the key 'name'")
    return _named(path, job["name"] if name is None else name)


def _named(path: Path, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{path}: {name!r} is no name for a job: text without spaces, slashes and quotes")
    return name


def _under(defaults: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """The job's keys over the defaults, dashed and undashed spellings being one."""
    own = {key.replace("-", "_") for key in job}
    return {**{k: v for k, v in defaults.items() if k.replace("-", "_") not in own}, **job}


def _job(
    path: Path,
    name: str,
    table: Mapping[str, Any],
    flags: Mapping[str, Any],
    commands: Collection[str],
    environ: Mapping[str, str],
) -> Job:
    where = f"{path}: job {name}"
    used: dict[str, str] = {}
    keys = {
        k: _filled(v, f"{where}: {k}", environ, used) for k, v in table.items() if k != "name" or not isinstance(v, str)
    }
    command = keys.pop("command", COMMAND)
    if not isinstance(command, str) or command not in commands:
        near = difflib.get_close_matches(str(command), commands, n=1)
        raise UsageError(
            f"{where}: command {command!r} is not one of {', '.join(sorted(commands))}",
            hint=f'command = "{near[0]}"' if near else None,
        )
    base: dict[str, Any] = {"task": command} if command in SCORING else {}
    for key, value in keys.items():
        _check_key(key, command, where)
        try:
            base |= from_table({key: value}, where)
        except UsageError as exc:
            raise _in_words(exc, key, used) from exc
    try:
        spec = resolve(flags, base=base, environ=environ)
    except UsageError as exc:
        raise UsageError(f"{where}: {_hider(used)(str(exc))}", hint=exc.hint and _hider(used)(exc.hint)) from exc
    if not spec.inputs:
        raise UsageError(f"{where}: no input given", hint='inputs = ["corpus.parquet"]')
    with contextlib.chdir(path.absolute().parent):
        spec = _scored(spec, where) if command in SCORING else spec
    secrets = {value: text for value, text in used.items() if _SECRET.search(text)}
    return Job(name=name, command=command, spec=spec, file=path, folder=path.absolute().parent, hide=_hider(secrets))


def _check_key(key: str, command: str, where: str) -> None:
    name = key.replace("-", "_")
    if name == "task":
        raise UsageError(f"{where}: unknown key {key!r}", hint="command says what the job does")
    if name in SCORING_KEYS and command not in SCORING:
        raise UsageError(
            f"{where}: {key}: {command} does not take it, only {' and '.join(sorted(SCORING, reverse=True))}",
            hint='command = "rerank"',
        )


def _scored(spec: JobSpec, where: str) -> JobSpec:
    """With the defaults of the commands that give scores. :raises UsageError: no model."""
    if not spec.model:
        raise UsageError(f"{where}: no model given; {spec.task} has no default one", hint='model = "./reranker"')
    if spec.task == "rerank" and spec.query_column is None and spec.query_template is None:
        spec = replace(spec, query_column="query")
    if spec.to is None:
        spec = replace(spec, to=default_destination(spec.inputs).removesuffix("embeddings") + "scores")
    return spec


def _in_words(exc: UsageError, key: str, used: Mapping[str, str]) -> UsageError:
    """The complaint with `${NAME}` in place of what it stood for; a missing job key is not a missing option."""
    near = difflib.get_close_matches(key, _OWN, n=1, cutoff=0.75)
    hint = f"did you mean {near[0]!r}?" if near and "unknown key" in str(exc) else exc.hint
    return UsageError(_hider(used)(str(exc)), hint=hint)


def _filled(value: Any, where: str, environ: Mapping[str, str], used: dict[str, str]) -> Any:
    """The value with variables put in, `used` with what each gave."""
    if isinstance(value, list):
        return [_filled(item, where, environ, used) for item in value]
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match["name"], match["default"]
        if name is None:
            raise UsageError(
                f"{where}: {value!r} holds a broken reference", hint="${NAME}, ${NAME:-default}, or $$ for a dollar"
            )
        found = environ.get(name) or default
        if found is None:
            raise UsageError(
                f"{where}: the variable {name} is {'empty' if name in environ else 'not set'}",
                hint=f"export {name}=..., or give a default: ${{{name}:-...}}",
            )
        if environ.get(name):
            used[found] = f"${{{name}}}"
        return found

    return _REFERENCE.sub(put, value)


def _hider(values: Mapping[str, str]) -> Hide:
    """Puts the names back; the longest values first, since one may hold another."""
    longest = sorted((v for v in values if len(v) > 3), key=len, reverse=True)

    def hide(text: str) -> str:
        for value in longest:
            text = text.replace(value, values[value])
        return text

    return hide
