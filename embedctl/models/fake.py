"""Options of the fake model, read from its name: `fake:dim=16,sleep_ms=5,nan=7,zero=8,oom_over=100`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from embedctl.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """dim of the vectors; max_length of a text in tokens. A sequence that holds token `nan` gives NaN, one that holds
    `zero` gives zeros; a batch of more than `oom_over` tokens is out of memory; each batch sleeps `sleep_ms`."""

    dim: int = 16
    max_length: int = 256
    nan: int | None = None
    zero: int | None = None
    oom_over: int | None = None
    sleep_ms: int = 0


def fake_options(name: str) -> FakeOptions:
    """:raises ModelError: an option that does not exist, or a value that is not a whole number."""
    known = [f.name for f in fields(FakeOptions)]
    options: dict[str, int] = {}
    for item in filter(None, name.partition(":")[2].split(",")):
        key, _, value = item.partition("=")
        if key not in known or not value.isdigit():
            raise ModelError(
                f"--model: {item!r} is not an option of the fake model; it has: {', '.join(known)}", hint="fake:dim=16"
            )
        options[key] = int(value)
    if options.get("dim", 1) < 1 or options.get("max_length", 3) < 3:
        raise ModelError("--model: the fake model needs dim of at least 1 and max_length of at least 3")
    return FakeOptions(**options)
