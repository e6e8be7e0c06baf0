"""The two ends of a contender's process, with a small peer written on the spot."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from embedctl.bench import rounds
from embedctl.bench.client import Contestant, PeerFailed
from embedctl.bench.contenders import Contender
from embedctl.bench.corpora import Corpus

PEER = """
import os, sys, time
import numpy as np

class Peer:
    info = {"version": "1"}
    last = {"encode_s": 0.5}
    def encode(self, texts, size):
        print("a library that prints")
        if size == 99:
            raise ValueError("no such size\\nand more")
        if size == 98:
            os._exit(3)
        if size == 97:
            time.sleep(60)
        time.sleep(0.02 if size == 2 else 0.1)
        return np.array([[len(t), 1.0] for t in texts])

def load(settings):
    if settings.get("absent"):
        raise ImportError("it is not installed")
    return Peer()
"""


@pytest.fixture
def peer(tmp_path: Path):
    file = tmp_path / "peer.py"
    file.write_text(PEER, encoding="utf-8")
    contestant = Contestant(sys.executable, file, cpus=None, env={})
    yield contestant
    contestant.close()


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    texts = ("a", "bb", "ccc")
    file = tmp_path / "texts.json"
    file.write_text(json.dumps(texts), encoding="utf-8")
    return Corpus(name="some", file=str(file), texts=texts, lengths=(3, 4, 5))


def test_loads_tunes_and_measures(peer, corpus, tmp_path):
    assert peer.ask({"do": "load", "settings": {}}, timeout_s=60)["info"] == {"version": "1"}
    tuned = peer.ask({"do": "tune", "corpus": corpus.file, "texts": 2, "sizes": [1, 2, 3]}, timeout_s=60)
    assert tuned["size"] == 2
    saved = tmp_path / "v.npy"
    told = peer.ask({"do": "round", "corpus": corpus.file, "size": 2, "save": str(saved)}, timeout_s=60)
    assert told["wall_s"] >= 0.02
    assert told["encode_s"] == 0.5
    assert np.load(saved).tolist() == [[1, 1], [2, 1], [3, 1]]
    assert peer.peak_bytes() > 1 << 20
    assert peer.cpu_s() > 0


def test_a_refusal_is_told_in_one_line_and_the_process_goes_on(peer, corpus):
    with pytest.raises(PeerFailed, match=r"^ImportError: it is not installed$"):
        peer.ask({"do": "load", "settings": {"absent": True}}, timeout_s=60)
    peer.ask({"do": "load", "settings": {}}, timeout_s=60)
    with pytest.raises(PeerFailed, match=r"^ValueError: no such size$"):
        peer.ask({"do": "round", "corpus": corpus.file, "size": 99}, timeout_s=60)
    assert peer.ask({"do": "round", "corpus": corpus.file, "size": 2}, timeout_s=60)["wall_s"] > 0


def test_a_dead_process_is_told_with_its_last_words(peer, corpus):
    peer.ask({"do": "load", "settings": {}}, timeout_s=60)
    with pytest.raises(PeerFailed, match=r"a library that prints|its process ended"):
        peer.ask({"do": "round", "corpus": corpus.file, "size": 98}, timeout_s=60)


def test_a_slow_one_is_ended_and_nothing_is_left_running(peer, corpus):
    peer.ask({"do": "load", "settings": {}}, timeout_s=60)
    pid = peer._process.pid
    with pytest.raises(PeerFailed, match="no answer within 0 s"):
        peer.ask({"do": "round", "corpus": corpus.file, "size": 97}, timeout_s=0.3)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _contender(name: str, *sizes: int) -> Contender:
    return Contender(name=name, environment="x", peer="x", sizes=sizes)


def test_rounds_tell_medians_cosines_and_who_failed(peer, corpus, tmp_path):
    peer.ask({"do": "load", "settings": {}}, timeout_s=60)
    running = {"good": peer, "bad": peer, "gone": PeerFailed("pip refused")}
    contenders = [_contender("good", 2, 3), _contender("bad", 99), _contender("gone", 2)]
    limits = rounds.Limits(rounds=3, tune_texts=3, reference_texts=2, timeout_s=60)
    rows = rounds.reference_rows(corpus, limits)
    assert rows.tolist() == [0, 2]
    reference = np.array([[1, 1], [3, 1]], dtype=np.float32)
    good, bad, gone = rounds.measure(
        running, contenders, corpus, reference, rows, limits=limits, scratch=tmp_path, say=lambda line: None
    )
    told = good.to_json(corpus)
    assert (told["status"], told["size"], len(told["wall_s"]), told["wrong"]) == ("ok", 2, 3, False)
    assert told["tokens_per_s"] == pytest.approx(12 / sorted(told["wall_s"])[1])
    assert told["encode_tokens_per_s"] == pytest.approx(24)
    assert told["cosine"]["min"] == pytest.approx(1.0)
    assert bad.to_json(corpus)["reason"] == "ValueError: no such size"
    assert gone.to_json(corpus)["reason"] == "pip refused"
    assert gone.to_json(corpus)["tokens_per_s"] is None


def test_wrong_vectors_are_marked(peer, corpus, tmp_path):
    peer.ask({"do": "load", "settings": {}}, timeout_s=60)
    limits = rounds.Limits(rounds=1, tune_texts=3, reference_texts=3, timeout_s=60)
    for reference in (np.array([[1, -1]] * 3, dtype=np.float32), np.ones((3, 5), dtype=np.float32)):
        [result] = rounds.measure(
            {"good": peer}, [_contender("good", 2)], corpus, reference, np.arange(3),
            limits=limits, scratch=tmp_path, say=lambda line: None,
        )  # fmt: skip
        assert result.to_json(corpus)["wrong"]
