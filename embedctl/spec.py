"""`JobSpec`: everything a user can ask of a job, validated once.

Bad values are errors that name the flag and what is allowed. None means "decide for me"; the plan holds the decision.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from embedctl.errors import UsageError
from embedctl.spec_media import check_media
from embedctl.spec_scoring import check_scoring
from embedctl.units import parse_duration

Kind = Literal["rows", "recipe", "tuning", "policy", "run"]
"""rows and recipe: fixed by the plan, part of what the numbers are. tuning: fixed by the plan, resolved by it.
policy: may change on a resume. run: about this invocation only, never in the plan."""

VECTOR_TYPES = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
ENGINES = ("auto", "torch", "onnx")
DTYPES = ("auto", "float32", "bfloat16", "float16")
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
DISTANCES = ("cosine", "dot", "euclidean", "manhattan")
QUANTIZATIONS = ("scalar", "binary", "product")
INDEXES = ("hnsw", "ivf", "none")
TASKS = ("embed", "rerank", "classify")
ACTIVATIONS = ("none", "sigmoid", "softmax")
OUTPUTS = ("dense", "sparse", "multivector")
LOG_FORMATS = ("text", "json")
FORMATS = ("parquet", "jsonl", "csv", "tsv", "arrow", "text", "file")

DEFAULT_MODEL = "all-MiniLM-L6-v2"


def _opt(kind: Kind, default: Any, *, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"kind": kind, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job. Frozen; the CLI, a TOML file and the Python API all build this."""

    inputs: tuple[str, ...] = _opt("run", ())
    to: str | None = _opt("run", None)
    format: str | None = _opt("rows", None, choices=FORMATS)

    task: str = _opt("recipe", "embed", choices=TASKS)
    text_column: str | None = _opt("recipe", None)
    text_template: str | None = _opt("recipe", None)
    image_column: str | None = _opt("recipe", None)
    audio_column: str | None = _opt("recipe", None)
    query_column: str | None = _opt("recipe", None)
    query_template: str | None = _opt("recipe", None)
    candidates_column: str | None = _opt("recipe", None)
    candidate_text: str | None = _opt("recipe", None)
    candidate_id: str | None = _opt("rows", None)
    top_k: int | None = _opt("rows", None)
    id_column: str | None = _opt("rows", None)
    keep: tuple[str, ...] = _opt("rows", ())
    vector_column: tuple[str, ...] = _opt("rows", ())
    where: str | None = _opt("rows", None)
    limit: int | None = _opt("rows", None)
    sample: float | None = _opt("rows", None)
    on_duplicate: str = _opt("rows", "first", choices=("first", "fail", "dead-letter", "keep"))

    chunk: str | None = _opt("recipe", None)
    overlap: int = _opt("recipe", 0)
    chunk_pool: str | None = _opt("recipe", None, choices=("mean",))

    model: tuple[str, ...] = _opt("recipe", ())
    revision: str | None = _opt("recipe", None)
    engine: str = _opt("recipe", "auto")
    prompt_name: str | None = _opt("recipe", None)
    prompt: str | None = _opt("recipe", None)
    pooling: str | None = _opt("recipe", None, choices=POOLINGS)
    max_length: int | None = _opt("recipe", None)
    dim: int | None = _opt("recipe", None)
    activation: str | None = _opt("recipe", None, choices=ACTIVATIONS)
    threshold: float = _opt("rows", 0.5)
    dtype: str = _opt("recipe", "auto", choices=DTYPES)
    on_overlong: str = _opt("recipe", "truncate", choices=("truncate", "chunk", "dead-letter"))
    trust_remote_code: bool = _opt("recipe", False)
    allow_pickle: bool = _opt("recipe", False)

    output: tuple[str, ...] = _opt("recipe", ())
    vector_type: str = _opt("recipe", "float32", choices=VECTOR_TYPES)
    sparse_top_k: int | None = _opt("recipe", None)
    sparse_threshold: float | None = _opt("recipe", None)
    pool_factor: float | None = _opt("recipe", None)
    muvera: str | None = _opt("recipe", None)
    token_count: bool = _opt("rows", False)
    truncated: bool = _opt("rows", False)

    device: str | None = _opt("tuning", None)
    attention: str | None = _opt("tuning", None)
    batch_tokens: int | None = _opt("tuning", None)
    threads: int | None = _opt("tuning", None)
    memory: int | None = _opt("tuning", None)
    compile: bool | None = _opt("tuning", None)
    window_rows: int = _opt("tuning", 8192)
    window_bytes: int = _opt("tuning", 8 << 20)
    slice_bytes: int = _opt("tuning", 64 << 20)

    on_error: str = _opt("policy", "dead-letter", choices=("dead-letter", "fail"))
    max_dead: str | None = _opt("policy", None)
    max_delete: str = _opt("policy", "5%")
    min_rows: int | None = _opt("policy", None)
    if_locked: str = _opt("policy", "fail", choices=("fail", "skip", "wait"))

    state: str | None = _opt("run", None)
    create: bool = _opt("run", False)
    distance: str | None = _opt("run", None, choices=DISTANCES)
    quantization: str | None = _opt("run", None, choices=QUANTIZATIONS)
    index: str | None = _opt("run", None, choices=INDEXES)
    index_field: tuple[str, ...] = _opt("run", ())
    on_disk: bool | None = _opt("run", None)
    shards: int | None = _opt("run", None)
    max_points_per_s: int | None = _opt("run", None)
    swap_alias: str | None = _opt("run", None)
    keep_old: int = _opt("run", 1)
    updated_column: str | None = _opt("run", None)
    keep_versions: int = _opt("run", 2)
    migrate: bool = _opt("run", False)
    time_limit: str | None = _opt("run", None)
    num_shards: int = _opt("run", 1)
    shard_index: int = _opt("run", 0)
    workers: int | None = _opt("run", None)
    offline: bool = _opt("run", False)
    log_format: str | None = _opt("run", None, choices=LOG_FORMATS)
    log_file: str | None = _opt("run", None)
    metrics_textfile: str | None = _opt("run", None)
    notify_url: str | None = _opt("run", None)
    notify_on: str = _opt("run", "always", choices=("always", "failure"))

    def __post_init__(self) -> None:
        for f in fields(self):
            value, choices = getattr(self, f.name), f.metadata["choices"]
            if choices and value is not None and value not in choices:
                near = difflib.get_close_matches(str(value), choices, n=1)
                raise UsageError(
                    f"{flag(f.name)}: {value!r} is not one of {', '.join(choices)}",
                    hint=f"{flag(f.name)} {near[0]}" if near else None,
                )
        _check_numbers(self)
        _check_pairs(self)

    def of_kind(self, *kinds: Kind) -> dict[str, Any]:
        """The fields of these kinds, JSON-ready, in declaration order."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields(self) if f.metadata["kind"] in kinds}

    @property
    def time_limit_s(self) -> float | None:
        """Seconds after which a run ends at the next window, or None."""
        return None if self.time_limit is None else parse_duration(self.time_limit)

    @property
    def chunk_rule(self) -> tuple[str, int] | None:
        """('tokens' | 'sentence' | 'semantic', tokens in a chunk), or None."""
        if self.chunk is None:
            return None
        kind, _, size = self.chunk.partition(":")
        return kind, int(size)

    @property
    def models(self) -> tuple[tuple[str | None, str], ...]:
        """(name or None, folder or known name) of each model, the default where none was given."""
        return tuple(_named(text) for text in self.model or (DEFAULT_MODEL,))

    def dead_limit(self) -> tuple[int | None, float | None]:
        """(rows, None) for `N`, (None, fraction) for `P%`, (None, None) without a limit."""
        if self.max_dead is None:
            return None, None
        if self.max_dead.endswith("%"):
            return None, float(self.max_dead[:-1]) / 100
        return int(self.max_dead), None


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def _jsonable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_numbers(spec: JobSpec) -> None:
    at_least = {
        "limit": 1, "overlap": 0, "max_length": 1, "dim": 1, "batch_tokens": 1, "threads": 1, "memory": 1 << 20,
        "window_rows": 1, "window_bytes": 1, "slice_bytes": 1, "num_shards": 1, "shard_index": 0, "workers": 1,
        "shards": 1, "max_points_per_s": 1, "keep_old": 0, "min_rows": 1, "sparse_top_k": 1,
        "top_k": 1, "sparse_threshold": 0, "pool_factor": 1, "keep_versions": 1,
    }  # fmt: skip
    for name, low in at_least.items():
        value = getattr(spec, name)
        if value is not None and not value >= low:  # nan is no number either
            raise UsageError(f"{flag(name)}: {value} is too small; at least {low}")
    if spec.sample is not None and not 0 < spec.sample <= 1:
        raise UsageError(f"--sample: {spec.sample:g} is out of range", hint="--sample 1%  or  --sample 0.01")
    if spec.shard_index >= spec.num_shards:
        raise UsageError(
            f"--shard-index: {spec.shard_index} must be below --num-shards {spec.num_shards}",
            hint=f"shards are counted from 0: 0 to {spec.num_shards - 1}",
        )
    if spec.max_dead is not None and not re.fullmatch(r"\d+|\d+(\.\d+)?%", spec.max_dead):
        raise UsageError(
            f"--max-dead: {spec.max_dead!r} is neither a count nor a share", hint="--max-dead 100  or  --max-dead 0.1%"
        )
    if not re.fullmatch(r"\d+|\d+(\.\d+)?%", spec.max_delete):
        raise UsageError(
            f"--max-delete: {spec.max_delete!r} is neither a count nor a share",
            hint="--max-delete 1000  or  --max-delete 10%",
        )
    if spec.time_limit is not None:
        parse_duration(spec.time_limit)
    if spec.chunk is not None and not re.fullmatch(r"(tokens|sentence|semantic):[1-9]\d*", spec.chunk):
        raise UsageError(
            f"--chunk: {spec.chunk!r} is not KIND:TOKENS",
            hint="--chunk tokens:400  (kinds: tokens, sentence, semantic)",
        )


def _check_pairs(spec: JobSpec) -> None:
    if spec.text_column is not None and spec.text_template is not None:
        raise UsageError("--text-column and --text-template: give one of them")
    if spec.prompt is not None and spec.prompt_name is not None:
        raise UsageError("--prompt and --prompt-name: give one of them")
    if spec.chunk is None and (spec.overlap or spec.chunk_pool):
        raise UsageError("--overlap and --chunk-pool need --chunk", hint="--chunk tokens:400")
    if spec.chunk_rule and spec.overlap >= spec.chunk_rule[1]:
        raise UsageError(f"--overlap: {spec.overlap} must be smaller than the chunk of {spec.chunk_rule[1]} tokens")
    if spec.notify_url is not None and not spec.notify_url.startswith(("http://", "https://")):
        raise UsageError("--notify-url: not an http:// or https:// address", hint="--notify-url https://host/hook")
    _check_engine(spec)
    _check_models(spec)
    check_scoring(spec)
    check_media(spec)


def _check_engine(spec: JobSpec) -> None:
    kind, colon, file = spec.engine.partition(":")
    if kind not in ENGINES or (colon and (kind != "onnx" or not file)):
        near = difflib.get_close_matches(kind, ENGINES, n=1)
        raise UsageError(
            f"--engine: {spec.engine!r} is not one of {', '.join(ENGINES)}, onnx:FILE",
            hint=f"--engine {near[0]}" if near else None,
        )


_PER_MODEL = ("revision", "prompt_name", "prompt", "pooling", "max_length", "dim", "output")
"""Settings that mean one model; each of several has its own folder's."""


def _check_models(spec: JobSpec) -> None:
    for kind in spec.output:
        if kind not in OUTPUTS:
            near = difflib.get_close_matches(kind, OUTPUTS, n=1)
            raise UsageError(
                f"--output: {kind!r} is not one of {', '.join(OUTPUTS)}", hint=f"--output {near[0]}" if near else None
            )
    if len(set(spec.output)) < len(spec.output):
        raise UsageError("--output: the same kind is asked for twice")
    names = [name for name, _ in spec.models]
    if len(names) == 1:
        return
    if None in names or len(set(names)) < len(names):
        raise UsageError(
            "--model: several models need a name each, all different", hint="--model dense=MODEL --model sparse=MODEL"
        )
    given = [flag(name) for name in _PER_MODEL if getattr(spec, name) not in (None, ())]
    if given:
        raise UsageError(f"{given[0]}: cannot be given for several models; each has its own folder's setting")


def _named(text: str) -> tuple[str | None, str]:
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_-]*)=(.+)", text)
    return (match[1], match[2]) if match else (None, text)
