"""What goes wrong between a client and its server, drawn from a seed."""

from __future__ import annotations

import random
import threading
from collections import Counter

KINDS = ("429", "503", "408", "500", "wait_timeout", "lost", "reset", "stall")


class Faults:
    """share of the requests that write fail, each in one of `kinds`. `always` is what every one of them meets."""

    def __init__(self, share: float = 0.0, kinds: tuple[str, ...] = KINDS, seed: int = 1, stall_s: float = 1.5) -> None:
        self.share, self.kinds, self.stall_s = share, kinds, stall_s
        self.seen: Counter[str] = Counter()
        self._chance, self._lock = random.Random(seed), threading.Lock()

    def draw(self) -> str | None:
        with self._lock:
            kind = self._chance.choice(self.kinds) if self._chance.random() < self.share else None
            self.seen[kind or "fine"] += 1
            return kind
