"""Options of the fake model, read from its name: `fake:dim=16,sleep_ms=5,nan=7,zero=8,oom_over=100`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from embedctl.errors import ModelError
from embedctl.outputs import OutputKind

VOCABULARY = 30000
"""Numbers of its sparse vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """dim of the vectors; max_length of a text in tokens. A sequence that holds token `nan` gives NaN, one that holds
    `zero` gives zeros; a batch of more than `oom_over` tokens is out of memory; each batch sleeps `sleep_ms`.
    dense, sparse, multivector: 1 for the kinds of output it gives."""

    dim: int = 16
    max_length: int = 256
    nan: int | None = None
    zero: int | None = None
    oom_over: int | None = None
    sleep_ms: int = 0
    dense: int = 1
    sparse: int = 0
    multivector: int = 0

    @property
    def kinds(self) -> tuple[OutputKind, ...]:
        every: tuple[OutputKind, ...] = ("dense", "sparse", "multivector")
        return tuple(kind for kind in every if getattr(self, kind))


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
    found = FakeOptions(**options)
    if not found.kinds:
        raise ModelError("--model: the fake model must give something", hint="fake:sparse=1")
    return found
