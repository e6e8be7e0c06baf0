"""Every kind of output, in every type that a store has for it, comes through a payload-only sync bit by bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedctl import job
from embedctl.events import Silent
from embedctl.job.destination import open_existing
from embedctl.outputs import OutputSpec
from embedctl.sinks import base, stored
from embedctl.sinks.columns import values_of
from embedctl.sinks.parts import output_array
from tests.sinks.whole import whole
from tests.sync.test_payload_stores import to as to
from tests.sync.world import World, counting, spec_of

SEVERAL = "fake:dim=8,sparse=1,multivector=1"
CASES = [
    ("qdrant-edge", SEVERAL, "float32"), ("qdrant-edge", "fake:dim=8", "float16"),
    ("qdrant-edge", "fake:dim=8", "uint8"),
    ("qdrant", SEVERAL, "float32"), ("qdrant", "fake:dim=64", "float16"),
    ("lancedb", SEVERAL, "float32"), ("lancedb", "fake:dim=16", "ubinary"), ("lancedb", "fake:dim=8", "float16"),
    ("pgvector", SEVERAL, "float32"), ("pgvector", "fake:dim=16", "binary"), ("pgvector", "fake:dim=16", "float16"),
    ("elastic", "fake:dim=16", "binary"), ("elastic", "fake:dim=8", "int8"),
    ("elastic", "fake:dim=8,sparse=1", "float32"),
    pytest.param("milvus", "fake:dim=8,sparse=1", "float32", marks=pytest.mark.slow),
]  # fmt: skip
each_case = pytest.mark.parametrize(("to", "model", "vector_type"), CASES, indirect=["to"])


def held(world: World, to: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Id and chunk -> all columns but what tells of the window."""
    _, found = open_existing(spec_of(world, to, **more))
    assert isinstance(found.sink, base.Scannable)
    rows = [row for batch in found.sink.scan() for row in batch.to_pylist()]
    found.sink.close()
    made = {
        f"{r['id']}#{r.get('chunk') or 0}": {n: v for n, v in r.items() if n not in ("_pos", "_hash")} for r in rows
    }
    assert len(made) == len(rows)
    return made


@each_case
def test_outputs_stay_as_they_are(
    to: str, model: str, vector_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"model": (model,), "vector_type": vector_type, "chunk": "tokens:4", "token_count": True, "create": True}
    world = World(tmp_path / "corpus", random.Random(3))
    world.split([world.row() for _ in range(24)], 3)
    job.sync(spec_of(world, to, **more), Silent())
    before = held(world, to, **more)
    for number in (3, 4, 17):
        world.every()[number]["lang"] = f"new {number}"
    world.edit_shuffle()
    encoded = counting(monkeypatch)
    assert job.sync(spec_of(world, to, **more), Silent(), dry_run=True).details["changes"]["payload"] == 3
    done = job.sync(spec_of(world, to, **more), Silent())
    assert (sum(encoded), done.details["changes"]["payload"]) == (0, 3)
    live = world.live()
    assert held(world, to, **more) == {k: {**row, "lang": live[row["id"]]["lang"]} for k, row in before.items()}


@pytest.mark.parametrize("to", ["pgvector", "lancedb", "qdrant-edge"], indirect=True)
def test_what_somebody_took_out_is_embedded_again(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "corpus", random.Random(5))
    world.split([world.row() for _ in range(24)], 3)
    spec = spec_of(world, to, create=True)
    job.sync(spec, Silent())
    before = held(world, to)
    _, found = open_existing(spec)
    assert isinstance(found.sink, base.Deletable)
    assert found.sink.delete(["r4"]) == 1
    found.sink.close()
    for number in (3, 4):
        world.every()[number]["lang"] = "new"
    world.write_all()
    encoded = counting(monkeypatch)
    job.sync(spec, Silent())
    assert sum(encoded) > 0
    found_now, live = held(world, to), world.live()
    assert found_now.keys() == before.keys()
    assert {k: row["lang"] for k, row in found_now.items()} == {k: live[row["id"]]["lang"] for k, row in before.items()}


def test_bits_are_told_apart_where_a_store_does_not() -> None:
    made = whole([OutputSpec(name="bits", kind="dense", dim=16, vector_type="binary")], 5)
    values = made.output.outputs["bits"]
    assert isinstance(values, np.ndarray)
    column = output_array((values.view(np.uint8) ^ 0x80).copy())
    known = stored.WindowRows(ids=made.output.ids, numbers=list(range(5)), units=[1] * 5, positions=[])
    found = stored.stored_of(known, np.arange(5), {"bits": column}, made.plan)
    back = found.outputs["bits"]
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, values)
    assert values_of(column, made.plan.outputs[0])[0].tolist() != values.tolist()
