"""MUVERA's settings: how a text's many vectors become one of fixed size, so that any index of dense vectors finds it.

Enters: `--muvera`. Leaves: a frozen record that knows the size. Refused: unknown names, numbers that make no vector.
Source: Dhulipala and others, 2024, arXiv 2405.19504.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from embedctl.errors import UsageError

DEFAULT = "default"
_HINT = "--muvera default, or --muvera k_sim=5,dim_proj=16,r_reps=20"
_MOST = {"k_sim": 12, "dim_proj": 1 << 12, "r_reps": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Muvera:
    """2^k_sim cells, each summed up in dim_proj numbers, r_reps times. The library's own defaults."""

    k_sim: int = 5
    dim_proj: int = 16
    r_reps: int = 20

    @property
    def width(self) -> int:
        """Numbers of the vector."""
        return self.r_reps * (1 << self.k_sim) * self.dim_proj


def muvera_of(text: str) -> Muvera:
    """:raises UsageError: not `default`, and not settings of the names above."""
    found: dict[str, int] = {}
    known = [f.name for f in fields(Muvera)]
    for part in [] if text == DEFAULT else text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in known or not value.isdecimal() or not 1 <= int(value) <= _MOST[name]:
            told = " and ".join(f"{n} of 1 to {_MOST[n]}" for n in known)
            raise UsageError(f"--muvera: {part!r} is not one of its settings: {told}", hint=_HINT)
        found[name] = int(value)
    return Muvera(**found)
