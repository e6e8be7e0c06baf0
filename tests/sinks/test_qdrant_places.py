"""Collections of others, aliases, versions, limits and generations: what surrounds a load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("qdrant_edge")
pytest.importorskip("qdrant_client")

from qdrant_client import models

from embedctl.errors import SinkError, UsageError
from embedctl.outputs import OutputSpec
from embedctl.sinks import stores
from embedctl.sinks.qdrant_address import parse
from embedctl.sinks.qdrant_alias import Aliases, with_collection
from embedctl.sinks.qdrant_server import ServerEngine
from embedctl.sinks.qdrant_trouble import TooSlow, patiently
from embedctl.spec import JobSpec
from tests.sinks.qdrant_kit import DENSE, Place, held, place, plan, window

DENSES = (DENSE,)


@pytest.fixture(params=["grpc", "rest"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place(request.param, tmp_path) as found:
        yield found


def made(there: Place, *names: str) -> None:
    for name in names:
        sink = there.sink(name, state=name)
        sink.prepare(plan(DENSES))
        sink.close()


def test_an_alias_moves_in_one_call(there: Place) -> None:
    made(there, "docs__a_1", "docs__a_2", "other")
    aliases = Aliases(there.uri_of("docs__a_1"))
    assert aliases.resolve("docs") is None
    assert aliases.collections("docs__") == ["docs__a_1", "docs__a_2"]
    assert aliases.switch("docs", "docs__a_1") is None
    assert aliases.switch("docs", "docs__a_2") == "docs__a_1"
    assert aliases.switch("docs", "docs__a_2") == "docs__a_2"
    assert there.rig is not None
    assert there.rig.alias_calls == [["create docs"], ["delete docs", "create docs"]]
    with pytest.raises(UsageError, match="is served as docs, so it is kept"):
        aliases.drop("docs__a_2")
    aliases.drop("docs__a_1")
    aliases.drop("docs__a_1")
    assert aliases.collections() == ["docs__a_2", "other"]
    with pytest.raises(UsageError, match="is a collection, so it cannot be an alias"):
        aliases.switch("other", "docs__a_2")
    with pytest.raises(SinkError, match="doesn't exist"):
        aliases.switch("docs", "nowhere")
    assert aliases.serving() == {"docs": "docs__a_2"}
    served = there.sink("docs")
    assert served.total() == 0, "an alias can be read like a collection"
    aliases.remove("docs")
    assert aliases.serving() == {}
    aliases.close()


def test_what_an_alias_served_stays_when_the_switch_fails(there: Place) -> None:
    made(there, "a", "b")
    aliases = Aliases(there.uri_of("a"))
    aliases.switch("docs", "a")
    with pytest.raises(SinkError):
        aliases.switch("docs", "gone")
    assert aliases.resolve("docs") == "a"
    aliases.close()


def test_a_server_that_is_too_old_is_refused(there: Place) -> None:
    assert there.rig is not None
    there.rig.version = "1.15.4"
    with pytest.raises(UsageError, match=r"the server is Qdrant 1\.15\.4, which cannot keep") as caught:
        there.sink().prepare(plan(DENSES))
    assert caught.value.hint == "upgrade it to 1.16 or newer"


def test_a_limit_on_points_makes_batches_smaller(there: Place) -> None:
    assert there.rig is not None
    there.rig.max_points = 10
    sink = there.sink()
    sink.prepare(plan(DENSES))
    sink.write(window(1, [f"r{i}" for i in range(100)], DENSES))
    assert sink.total() == 100


def test_a_bad_point_is_named(there: Place) -> None:
    assert there.rig is not None
    there.rig.max_points = 0
    sink = there.sink()
    sink.prepare(plan(DENSES))
    with pytest.raises(SinkError, match=r"row 'r0' was refused: .*Limit exceeded"):
        sink.write(window(1, ["r0"], DENSES))


def test_two_timeouts_ask_for_less_at_once() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise TimeoutError("late")

    with pytest.raises(TooSlow):
        patiently("q", call, 60.0, divisible=True)
    assert len(calls) == 2


def test_slow_writes_come_in_smaller_batches(there: Place) -> None:
    sink = there.sink()
    sink.prepare(plan(DENSES))
    there.faults.share, there.faults.kinds = 0.5, ("408",)
    before = sink._engine.max_points
    sink.write(window(1, [f"r{i}" for i in range(300)], DENSES))
    there.faults.share = 0.0
    assert sink.total() == 300
    assert sink._engine.max_points <= before


def test_reads_are_tried_again(there: Place) -> None:
    sink = there.sink()
    sink.prepare(plan(DENSES))
    sink.write(window(1, ["a", "b"], DENSES))
    there.faults.share, there.faults.kinds = 0.4, ("503",)
    for _ in range(5):
        assert len(sink.search({"dense": np.ones((1, DENSE.dim), np.float32)}, limit=9, where=None)[0]) == 2
        assert sum(b.num_rows for b in sink.scan()) == 2


def test_named_outputs_arrive_once_though_a_third_of_the_requests_fail(there: Place) -> None:
    sink = there.sink()
    sink.prepare(plan())
    there.faults.share, there.faults.kinds = 0.3, ("503", "500", "wait_timeout", "lost", "reset")
    ids = [f"r{i}" for i in range(400)]
    sink._engine.max_points = 20
    record = sink.write(window(1, ids))
    there.faults.share = 0.0
    assert sum(n for kind, n in there.faults.seen.items() if kind != "fine") >= 3
    assert sink.count([record]) == sink.total() == 400
    found = held(sink)
    assert found.keys() == set(ids)
    written = np.asarray(window(1, ids).outputs["dense"])
    np.testing.assert_array_equal(np.float32([found[i].vectors["dense"] for i in ids]), written)
    assert all(set(p.vectors) == {"dense", "sparse", "tokens"} for p in found.values())


def test_shards_and_memory_are_as_asked(there: Place) -> None:
    sink = there.sink(shards=3, on_disk=False)
    sink.prepare(plan(DENSES))
    assert there.rig is not None
    config = there.rig.collections["docs"].made
    assert (config.shard_number, config.vectors.on_disk) == (3, False)


def test_a_sync_overwrites_older_generations_and_a_retry_does_not(there: Place) -> None:
    sink = there.sink()
    first = plan(DENSES)
    sink.prepare(first)
    sink.write(window(5, ["a", "b"], DENSES))
    sink.prepare(replace(first, generation=2, targets=((0, 0),)))
    sink.write(window(0, ["a", "new"], DENSES, generation=2))
    old = np.asarray(window(5, ["a", "b"], DENSES).outputs["dense"])
    np.testing.assert_array_equal(np.float32(held(sink)["a"].vectors[""]), old[0])
    sink.prepare(replace(first, generation=3, changes=3))
    record = sink.write(window(0, ["a"], DENSES, generation=3, first=50)).key
    changed = np.asarray(window(0, ["a"], DENSES).outputs["dense"])
    np.testing.assert_array_equal(np.float32(held(sink)["a"].vectors[""]), changed[0])
    sink.drop_rows(window(5, ["a", "b"], DENSES).record, replace(window(5, ["a", "b"], DENSES).record, revision=1), [0])
    assert held(sink).keys() == {"a", "b", "new"}, "what the sync wrote is not the old row's to take out"
    assert held(sink)["a"].payload["_pos"] == stores.position_number(record, 0)


def test_rows_that_a_killed_sync_took_out_do_not_make_older_windows_lost(there: Place) -> None:
    sink, first = there.sink(), plan(DENSES)
    sink.prepare(first)
    old = sink.write(window(1, ["a", "b"], DENSES))
    sink.prepare(replace(first, generation=2, changes=2))
    new = sink.write(window(0, ["c"], DENSES, generation=2))
    assert sink.delete(["a"]) == 1
    assert sink.reconcile([old, new]).lost == ()
    assert sink.delete(["c"]) == 1
    assert sink.reconcile([old, new]).lost == (new,)


def test_a_collection_without_points_changes_hands(there: Place) -> None:
    made(there, "docs")
    other = there.sink("docs", state="another")
    other.prepare(replace(plan(DENSES), job="another"))
    other.write(window(1, ["a"], DENSES))
    late = there.sink("docs", state="third")
    with pytest.raises(UsageError, match=r"holds the vectors of another job \(another, this is"):
        late.prepare(plan(DENSES))


def foreign(there: Place) -> None:
    """Made by somebody else: two named vectors and a sparse one, some missing, payloads of all sorts."""
    assert there.rig is not None
    dense = models.VectorParams(size=2, distance=models.Distance.EUCLID)
    half = models.VectorParams(size=3, distance=models.Distance.COSINE, datatype=models.Datatype.FLOAT16)
    there.rig.create(
        "theirs",
        models.CreateCollection(vectors={"a": dense, "id": half}, sparse_vectors={"s": models.SparseVectorParams()}),
    )
    sparse = models.SparseVector(indices=[7, 4_000_000_000], values=[0.5, 1.0])
    uid = "6ba7b811-9dad-11d1-80b4-00c04fd430c8"
    points = [
        models.PointStruct(
            id=1, vector={"a": [1.0, 2.0], "s": sparse}, payload={"id": "x", "n": 1, "m": {"k": [1, None]}}
        ),
        models.PointStruct(id=2**63 + 5, vector={"id": [1.0, 0.0, 0.0]}, payload={"n": 2.5, "mixed": "t", "e": []}),
        models.PointStruct(id=uid, vector={"a": [0.0, 0.0]}, payload={"mixed": {"q": 1}, "big": 2**62}),
    ]
    there.rig.upsert("theirs", points, None)


def test_a_collection_of_others_is_read_whole(there: Place) -> None:
    foreign(there)
    sink = there.sink("theirs")
    outputs = {o.name: o for o in sink.contents()}
    assert outputs["a"] == OutputSpec(name="a", kind="dense", dim=2, similarity="euclidean")
    assert outputs["id"].vector_type == "float16"
    assert outputs["s"].kind == "sparse"
    batches = list(sink.scan(batch_rows=1))
    assert len({b.schema for b in batches}) == 1
    table = pa.Table.from_batches(batches).to_pylist()
    assert sink.total() == len(table) == 3
    rows = {row["n"]: row for row in table}
    assert [row["mixed"] for row in table if row["mixed"]] == ['"t"', '{"q": 1}']
    assert rows[1.0]["id_payload"] == "x"
    assert rows[1.0]["m"] == {"k": [1, None]}
    assert rows[1.0]["s"] == {"indices": [7, 4_000_000_000], "values": [0.5, 1.0]}
    assert rows[2.5]["a"] is None
    assert rows[None]["big"] == 2**62


def test_rows_of_a_collection_of_others_go_by_point_id(there: Place) -> None:
    foreign(there)
    sink = there.sink("theirs")
    assert sink.delete(["1", "6ba7b811-9dad-11d1-80b4-00c04fd430c8"]) == 2
    assert sink.total() == 1


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("qdrant://h/c", "qdrant://h:6334/c"),
        ("qdrant+http://h:1/some/where/c%20d", "qdrant+http://h:1/some/where/c%20d"),
        ("qdrant+https://x.cloud.qdrant.io/c", "qdrant+https://x.cloud.qdrant.io:6333/c"),
        ("qdrant://[::1]:7/c", "qdrant://[::1]:7/c"),
    ],
)
def test_addresses(uri: str, shown: str) -> None:
    assert parse(uri).name == shown
    assert parse(with_collection(uri, "a b")).collection == "a b"


def test_a_key_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="would be seen by others") as caught:
        parse("qdrant+http://u:hidden@h:1/c")
    assert "hidden" not in str(caught.value)
    assert caught.value.hint == "set QDRANT_API_KEY"


def test_tls_where_it_is_asked_for_or_sure() -> None:
    assert [parse(u).tls for u in ("qdrant://h/c", "qdrant://h/c?tls=true", "qdrant://x.cloud.qdrant.io/c")] == [
        False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("qdrant://h", "is not qdrant://HOST[:PORT]/COLLECTION"),
        ("qdrant://h/a/b", "is not qdrant://HOST[:PORT]/COLLECTION"),
        ("qdrant://h:x/c", "is not qdrant://HOST[:PORT]/COLLECTION"),
        ("qdrant://h/c?colour=red", "'colour=red' is not known"),
        ("qdrant+https://h/c?ca=/no/such.pem", "ca=/no/such.pem: no such file"),
    ],
)
def test_addresses_that_are_none(uri: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(uri)
    assert words in str(caught.value)


def test_a_custom_authority_reaches_the_client(tmp_path: Path) -> None:
    from embedctl.sinks.qdrant_address import connect

    ca = tmp_path / "ca.pem"
    ca.write_bytes(b"not really one")
    client = connect(parse(f"qdrant://h/c?tls=true&ca={ca}"))
    assert client._client._grpc_options["root_certificates"] == b"not really one"
    client.close()


def test_the_engine_asks_for_nothing_before_it_must() -> None:
    engine = ServerEngine(parse("qdrant://nowhere.invalid/c"))
    assert engine.name == "qdrant://nowhere.invalid:6334/c"
    engine.close()
    assert JobSpec(shards=2).shards == 2
