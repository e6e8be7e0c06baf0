"""The probe of a device's memory, on an encoder and a memory that are not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from embedctl.encoders.budget import FIRST_TOKENS, LEAST_TOKENS, MOST_TOKENS, Probe, batch_tokens, measure
from embedctl.encoders.fake import FakeEncoder
from embedctl.errors import EncoderError
from embedctl.job import passes
from embedctl.models.load import find_model
from embedctl.records import Batch
from embedctl.spec import JobSpec

GIB = 1 << 30


class Watched(FakeEncoder):
    """Remembers the batches it ran."""

    def __init__(self, name: str = "fake", lanes: int = 1) -> None:
        super().__init__(name)
        self.lanes = lanes
        self.seen: list[Batch] = []
        self.closed = False

    def encode(self, batch: Batch):
        self.seen.append(batch)
        return super().encode(batch)

    def close(self) -> None:
        self.closed = True


class Device:
    """A device that takes so many bytes for each token of the last batch."""

    def __init__(self, encoder: Watched, bytes_a_token: int, *, free: int = 9 * GIB, total: int = 10 * GIB) -> None:
        self.name, self.total = "Fake 10G", total
        self._encoder, self._bytes, self._free = encoder, bytes_a_token, free

    def free(self) -> int:
        return self._free

    def peak(self, run: Callable[[], object]) -> int:
        run()
        return self._encoder.seen[-1].num_tokens * self._bytes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "embedctl" / "budgets"


def probe_of(encoder: Watched, device: Device, **made_of: str) -> Probe:
    return Probe(open=lambda: encoder, memory=device, made_of={"model": "a", **made_of}, max_length=512)


def test_grows_to_its_share_of_the_free_memory() -> None:
    encoder = Watched()
    found = measure(encoder, Device(encoder, int(0.8 * 9 * GIB) // 20000), 512)
    assert found == 16384
    assert [b.num_tokens for b in encoder.seen] == [4096, 8192, 16384, 32768]
    assert {b.max_seqlen for b in encoder.seen} == {512}


def test_lanes_share_it() -> None:
    encoder = Watched(lanes=2)
    assert measure(encoder, Device(encoder, int(0.8 * 9 * GIB) // 20000), 512) == 8192


@pytest.mark.parametrize(
    ("holds", "expected"),
    [(10**9, MOST_TOKENS), (20000, 16384), (4096, 4096), (3000, 2048), (1024, LEAST_TOKENS), (10, LEAST_TOKENS)],
)
def test_stops_where_memory_ends(holds: int, expected: int) -> None:
    encoder = Watched(f"fake:oom_over={holds}")
    assert measure(encoder, Device(encoder, 1), 512) == expected


def test_sequences_fit_the_smallest_batch_and_the_model() -> None:
    encoder = Watched()
    measure(encoder, Device(encoder, 1), 1 << 30)
    assert encoder.seen[0].num_tokens == encoder.seen[0].max_seqlen == FIRST_TOKENS
    assert encoder.seen[-1].max_seqlen == 8192


def test_is_remembered_for_what_it_belongs_to(cache: Path) -> None:
    encoder = Watched("fake:oom_over=9000")
    probe = probe_of(encoder, Device(encoder, 1))
    assert batch_tokens(probe) == 8192
    assert encoder.closed
    again = replace(probe, open=lambda: pytest.fail("opened again"))
    assert batch_tokens(again) == 8192
    smaller = Watched("fake:oom_over=3000")
    for other in (
        probe_of(smaller, Device(smaller, 1), dtype="float32"),
        probe_of(smaller, Device(smaller, 1, total=9 * GIB)),
        replace(probe_of(smaller, Device(smaller, 1)), max_length=256),
    ):
        assert batch_tokens(other) == 2048
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"batch_tokens": "8192"}', '{"batch_tokens": 5}', '{"batch_tokens": 8192, "of": {}}'],
)
def test_a_broken_memory_is_ignored(cache: Path, content: str) -> None:
    encoder = Watched("fake:oom_over=9000")
    probe = probe_of(encoder, Device(encoder, 1))
    batch_tokens(probe)
    (place,) = cache.iterdir()
    place.write_text(content)
    encoder.seen.clear()
    assert batch_tokens(probe) == 8192
    assert encoder.seen
    assert json.loads(place.read_text())["batch_tokens"] == 8192


def test_a_device_that_others_use_is_not_remembered(cache: Path) -> None:
    encoder = Watched("fake:oom_over=9000")
    assert batch_tokens(probe_of(encoder, Device(encoder, 1, free=GIB))) == 8192
    assert not cache.exists()


def test_other_failures_are_told() -> None:
    class Broken(Watched):
        def encode(self, batch: Batch):
            raise EncoderError("no such kernel")

    encoder = Broken()
    with pytest.raises(EncoderError, match="no such kernel"):
        batch_tokens(probe_of(encoder, Device(encoder, 1)))
    assert encoder.closed


def test_only_a_gpu_without_a_budget_is_probed() -> None:
    minilm, cuda = find_model("minilm"), {"device": "cuda:0"}
    assert passes.device_decides(JobSpec(), minilm, cuda)
    assert not passes.device_decides(JobSpec(batch_tokens=4096), minilm, cuda)
    assert not passes.device_decides(JobSpec(), minilm, {"device": "cpu"})
    assert not passes.device_decides(JobSpec(), find_model("fake"), cuda)


def test_the_plan_holds_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the device itself: MiniLM's real encoder on the CPU, told that it is a GPU."""
    from embedctl.encoders import budget

    class Told(Device):
        def __init__(self, device: str) -> None:
            assert device == "cuda:0"
            super().__init__(Watched(), 1)

        def peak(self, run: Callable[[], object]) -> int:
            run()
            return GIB if (calls.append(1) or len(calls)) < 2 else 9 * GIB

    calls: list[int] = []
    monkeypatch.setattr(budget, "CudaMemory", Told)
    monkeypatch.setattr(passes, "_resolve", _as_cuda(passes._resolve))
    monkeypatch.setattr(passes.wiring, "open_planned_encoder", _on_cpu(passes.wiring.open_planned_encoder))
    (made,) = passes.passes_of(JobSpec(model=("minilm",)), [find_model("minilm")], "string")
    assert made.resolved["batch_tokens"] == FIRST_TOKENS
    assert len(calls) == 2


def _as_cuda(resolve: Callable[..., dict[str, object]]) -> Callable[..., dict[str, object]]:
    return lambda *args: {**resolve(*args), "device": "cuda:0"}


def _on_cpu(open_: Callable[..., object]) -> Callable[..., object]:
    return lambda folder, spec, resolved, kinds: open_(folder, spec, {**resolved, "device": "cpu", "threads": 1}, kinds)
