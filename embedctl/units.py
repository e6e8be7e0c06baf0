"""What people write for sizes, shares and durations, as numbers."""

from __future__ import annotations

import re

from embedctl.errors import UsageError

_SIZE = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def parse_size(text: str) -> int:
    """`8GiB`, `500MB`, `1024` to bytes. :raises ValueError: not a size."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size like 8GiB")
    return int(float(match[1]) * _SIZE.get((match[2] or "").lower(), 1))


_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """`4h`, `90m`, `1h30m`, `45s` to seconds. :raises UsageError: not a duration."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise UsageError(f"--time-limit: {text!r} is not a duration", hint="--time-limit 4h  or  --time-limit 1h30m")
    return sum(float(n) * _UNIT_S[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))


def parse_share(text: str) -> float:
    """`1%` or `0.01` to 0.01. :raises ValueError: not a number."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
