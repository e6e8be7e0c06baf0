"""The same promises against a real Qdrant server, over REST and gRPC. Run with QDRANT_URL=http://localhost:6333.

QDRANT_GRPC_PORT names the other port (6334). Each test makes collections of its own name and drops them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("qdrant_client")
pytest.importorskip("qdrant_edge")

from embedctl.errors import UsageError
from embedctl.outputs import take
from embedctl.sinks.qdrant_alias import Aliases, with_collection
from tests.sinks.qdrant_kit import ALL, DENSE, Place, held, plan, window

URL = os.environ.get("QDRANT_URL")
pytestmark = pytest.mark.skipif(URL is None, reason="QDRANT_URL names no server")
IDS = [f"r{i}" for i in range(300)]


def address(kind: str, collection: str) -> str:
    parts = urlsplit(str(URL))
    if kind == "rest":
        return f"qdrant+{parts.scheme}://{parts.netloc}/{collection}"
    tls = "?tls=true" if parts.scheme == "https" else ""
    return f"qdrant://{parts.hostname}:{os.environ.get('QDRANT_GRPC_PORT', '6334')}/{collection}{tls}"


@pytest.fixture(params=["grpc", "rest"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    own = f"embedctl_test_{uuid.uuid4().hex[:12]}_"
    found = Place(kind=request.param, folder=tmp_path, uri_of=lambda name: address(request.param, own + name))
    yield found
    for sink in found.made:
        sink.close()
    aliases = Aliases(found.uri_of("docs"))
    for alias in [a for a in aliases.serving() if a.startswith(own)]:
        aliases.remove(alias)
    for collection in aliases.collections(own):
        aliases.drop(collection)
    aliases.close()


def test_every_row_once_in_every_output(there: Place) -> None:
    sink = there.sink(index_field=("lang:keyword", "n:integer"))
    sink.prepare(plan())
    records = [sink.write(window(1, IDS)) for _ in range(2)]
    sink.finish(plan(), records[:1])
    assert sink.count(records) == sink.total() == len(IDS)
    assert held(sink).keys() == set(IDS)
    written = window(1, IDS)
    for one in ALL:
        hits = sink.search({one.name: take(written.outputs[one.name], np.array([5]))}, limit=3, where=None, exact=True)
        assert hits[0]
    query = {o.name: take(written.outputs[o.name], np.array([11])) for o in ALL}
    assert sink.search(query, limit=3, where=None)[0][0].id == "r11"
    assert {h.kept["lang"] for h in sink.search(query, limit=50, where="lang = 'de'")[0]} == {"de"}
    assert sum(b.num_rows for b in sink.scan()) == len(IDS)
    assert sink.delete(["r1", "r2", "nobody"]) == 2
    assert sink.reconcile(records[:1]).lost == (records[0],)


def test_columns_of_true_and_false_are_conditions(there: Place) -> None:
    sink = there.sink()
    sink.prepare(plan((DENSE,)))
    sink.write(window(1, IDS, (DENSE,)))
    query = {"dense": np.ones((1, DENSE.dim), np.float32)}
    assert {h.kept["ok"] for h in sink.search(query, limit=50, where="NOT ok")[0]} == {False}


def test_the_first_position_wins_and_a_sync_replaces(there: Place) -> None:
    first = plan((DENSE,))
    sink = there.sink()
    sink.prepare(first)
    sink.write(window(2, ["a", "b"], (DENSE,)))
    sink.write(window(1, ["b", "c"], (DENSE,)))
    sink.write(window(2, ["a", "b"], (DENSE,)))
    wanted = np.asarray(window(1, ["b", "c"], (DENSE,)).outputs["dense"])[0]
    np.testing.assert_array_equal(np.float32(held(sink)["b"].vectors[""]), wanted)
    sink.prepare(replace(first, generation=2, changes=2))
    sink.write(window(7, ["b"], (DENSE,), generation=2))
    changed = np.asarray(window(7, ["b"], (DENSE,)).outputs["dense"])[0]
    np.testing.assert_array_equal(np.float32(held(sink)["b"].vectors[""]), changed)


def test_another_shape_is_refused_and_quantization_is_made(there: Place) -> None:
    sink = there.sink(quantization="scalar", shards=2)
    sink.prepare(plan((DENSE,)))
    layout = sink._engine.layout()
    assert layout is not None
    assert layout[""].quantization == "scalar"
    with pytest.raises(UsageError, match="size 8, this job needs 9"):
        there.sink().prepare(plan((replace(DENSE, dim=9),)))


def test_an_alias_moves(there: Place) -> None:
    for name in ("docs__a_1", "docs__a_2"):
        there.sink(name, state=name).prepare(plan((DENSE,)))
    one, two = (urlsplit(there.uri_of(n)).path.strip("/") for n in ("docs__a_1", "docs__a_2"))
    aliases, alias = Aliases(there.uri_of("docs__a_1")), one.removesuffix("__a_1")
    assert aliases.switch(alias, one) is None
    assert aliases.switch(alias, two) == one
    with pytest.raises(UsageError, match="is served as"):
        aliases.drop(two)
    assert with_collection(there.uri_of("x"), one) == there.uri_of("docs__a_1")
    aliases.close()
