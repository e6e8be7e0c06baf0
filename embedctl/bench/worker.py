"""The process in which one contender runs. Speaks JSON lines on stdin and stdout; needs numpy and the peer's library
only.

Started as `python -P worker.py PEER.py`. Enters: `load`, `tune`, `round`, `stop`. Leaves: one object a request, `ok`
false with the reason where the peer refused. What libraries print goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Peer(Protocol):
    """A loaded library. `size` is its batch size in its own unit; 0 where it has none."""

    info: Mapping[str, Any]

    def encode(self, texts: Sequence[str], size: int) -> Any:
        """float32 (N, dim) in the order of the texts, in numpy."""
        ...


Load = Callable[[Mapping[str, Any]], Peer]


def main(peer_file: str) -> None:
    """Serve until `stop` or the end of stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = Server(_load_of(peer_file))
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "stop":
            break
        try:
            answer = {"ok": True, **server.answer(request)}
        except BaseException as exc:
            answer = {"ok": False, "error": _words(exc)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # engines with servers of their own may wait for ever when asked to end in order


class Server:
    """Holds the loaded peer and the corpora it was shown."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._peer: Peer | None = None
        self._texts: dict[str, list[str]] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """:raises ValueError: a request that is not known."""
        if request["do"] == "load":
            begun = time.perf_counter()
            self._peer = self._load(request["settings"])
            return {"seconds": time.perf_counter() - begun, "info": dict(self._peer.info)}
        assert self._peer is not None, "load comes first"
        if request["do"] == "tune":
            return self._tune(self._peer, request)
        if request["do"] == "round":
            return self._round(self._peer, request)
        raise ValueError(f"{request['do']!r} is not a request")

    def _tune(self, peer: Peer, request: Mapping[str, Any]) -> dict[str, Any]:
        """The batch size that encodes the corpus fastest, each tried after a warm-up of its own."""
        texts = self._corpus(request["corpus"])[: request["texts"]]
        seconds: dict[int, float] = {}
        for size in request["sizes"]:
            peer.encode(texts[: max(1, len(texts) // 4)], size)
            begun = time.perf_counter()
            peer.encode(texts, size)
            seconds[size] = time.perf_counter() - begun
        return {"size": min(seconds, key=lambda s: seconds[s]), "seconds": seconds}

    def _round(self, peer: Peer, request: Mapping[str, Any]) -> dict[str, Any]:
        texts = self._corpus(request["corpus"])
        begun = time.perf_counter()
        vectors = peer.encode(texts, request["size"])
        wall_s = time.perf_counter() - begun
        if request.get("save"):
            import numpy as np

            np.save(request["save"], np.asarray(vectors, dtype=np.float32))
        return {"wall_s": wall_s, **dict(getattr(peer, "last", {}))}

    def _corpus(self, path: str) -> list[str]:
        if path not in self._texts:
            self._texts[path] = json.loads(Path(path).read_text(encoding="utf-8"))
        return self._texts[path]


def _load_of(peer_file: str) -> Load:
    spec = importlib.util.spec_from_file_location("bench_peer", peer_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_peer"] = module
    spec.loader.exec_module(module)
    load: Load = module.load
    return load


def _words(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")


if __name__ == "__main__":
    main(sys.argv[1])
