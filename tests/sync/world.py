"""A corpus that people edit at night, and the plain answer to what a destination of it must hold."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedctl import failpoints, job
from embedctl.encoders.fake import FakeEncoder
from embedctl.events import Silent, Summary
from embedctl.spec import JobSpec

Row = dict[str, Any]
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("lang", pa.string()), ("n", pa.int64())])


class Killed(BaseException):
    """What stands for SIGKILL in this process: nothing after it runs but clean-up that a real kill would skip."""


@dataclass
class World:
    """Files of rows under `folder`. Every write gives a file a later time, whatever the clock says."""

    folder: Path
    chance: random.Random
    kind: str = "jsonl"
    files: dict[str, list[Row]] = field(default_factory=dict)
    clock: int = 1_700_000_000
    born: int = 0

    def row(self, text: str | None = None) -> Row:
        self.born += 1
        text = text or f"row {self.born} says {self.chance.randrange(1 << 30)}"
        return {"id": f"r{self.born}", "text": text, "lang": "en", "n": self.born}

    def write(self, name: str) -> None:
        path = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "parquet":
            pq.write_table(pa.Table.from_pylist(self.files[name], schema=SCHEMA), path, row_group_size=7)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in self.files[name]))
        self.clock += 1
        os.utime(path, (self.clock, self.clock))

    def write_all(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in self.files:
            self.write(name)

    def split(self, rows: list[Row], count: int) -> None:
        """Lay the rows out over `count` files, anew."""
        size = max(1, -(-len(rows) // count))
        end = "parquet" if self.kind == "parquet" else "jsonl"
        self.files = {f"s{i:03d}.{end}": rows[i * size : (i + 1) * size] for i in range(count)}
        self.write_all()

    def every(self) -> list[Row]:
        return [row for name in sorted(self.files) for row in self.files[name]]

    def live(self) -> dict[str, Row]:
        """Id -> the row that must be embedded: the first that can be."""
        found: dict[str, Row] = {}
        for row in self.every():
            if row["text"] is not None:
                found.setdefault(row["id"], row)
        return found

    def edit(self, name: str) -> None:
        """One edit of this name, somewhere."""
        getattr(self, f"edit_{name}")()

    def _somewhere(self) -> tuple[str, list[Row]]:
        name = self.chance.choice([n for n in sorted(self.files) if self.files[n]] or sorted(self.files))
        return name, self.files[name]

    def edit_add(self) -> None:
        name, rows = self._somewhere()
        rows.insert(self.chance.randint(0, len(rows)), self.row())
        self.write(name)

    def edit_change(self) -> None:
        name, rows = self._somewhere()
        if rows:
            self.chance.choice(rows)["text"] = f"changed {self.chance.randrange(1 << 30)}"
        self.write(name)

    def edit_payload(self) -> None:
        name, rows = self._somewhere()
        if rows:
            self.chance.choice(rows)["lang"] = f"l{self.chance.randrange(1 << 30)}"
        self.write(name)

    def edit_delete(self) -> None:
        name, rows = self._somewhere()
        if rows:
            rows.pop(self.chance.randrange(len(rows)))
        self.write(name)

    def edit_null(self) -> None:
        name, rows = self._somewhere()
        if rows:
            self.chance.choice(rows)["text"] = None
        self.write(name)

    def edit_twice(self) -> None:
        """An id that stands in two places, with other text."""
        _, rows = self._somewhere()
        if rows:
            copy = {**self.chance.choice(rows), "text": f"again {self.chance.randrange(1 << 30)}"}
            name, other = self._somewhere()
            other.insert(self.chance.randint(0, len(other)), copy)
            self.write(name)

    def edit_shuffle(self) -> None:
        rows = self.every()
        self.chance.shuffle(rows)
        self.split(rows, len(self.files))

    def edit_resplit(self) -> None:
        self.split(self.every(), self.chance.randint(1, 6))

    def edit_touch(self) -> None:
        name, _ = self._somewhere()
        self.write(name)

    def edit_drop_file(self) -> None:
        if len(self.files) > 1:
            name, _ = self._somewhere()
            del self.files[name]
            (self.folder / name).unlink()


EDITS = ("add", "change", "payload", "delete", "null", "twice", "shuffle", "resplit", "touch", "drop_file")


def spec_of(world: World, to: Path | str, **more: Any) -> JobSpec:
    """Small windows, so that a few rows make many; deletes are free."""
    asked: dict[str, Any] = {
        "inputs": (str(world.folder),), "to": str(to), "model": ("fake:dim=4",), "keep": ("lang", "n"),
        "id_column": "id", "text_column": "text", "window_rows": 8, "slice_bytes": 600, "max_delete": "100%",
    }  # fmt: skip
    return JobSpec(**{**asked, **more})


def rows_in(folder: Path) -> dict[str, Row]:
    """Id -> what the parts of a Parquet destination hold of it; each id once."""
    found: dict[str, Row] = {}
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            key = f"{row['id']}#{row.get('chunk') or 0}"
            assert key not in found, key
            found[key] = row
    return found


def fresh_rows(world: World, folder: Path, **more: Any) -> dict[str, Row]:
    """What a full run over the corpus as it is now gives."""
    shutil.rmtree(folder, ignore_errors=True)
    job.embed(spec_of(world, folder, **more), Silent())
    return rows_in(folder)


def counting(monkeypatch: Any) -> list[int]:
    """A list that grows by the number of sequences of each batch the fake encoder takes."""
    counts: list[int] = []
    real = FakeEncoder.encode

    def encode(self: FakeEncoder, batch: Any) -> Any:
        counts.append(len(batch.units))
        return real(self, batch)

    monkeypatch.setattr(FakeEncoder, "encode", encode)
    return counts


def killed_at(monkeypatch: Any, passes: int, call: Callable[[], Summary]) -> Summary | None:
    """Run, and die at the `passes`-th failpoint of any name; None when it died."""
    left = passes

    def hit(_name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", hit)
        try:
            return call()
        except Killed:
            return None


def more_deletes(spec: JobSpec, limit: str) -> JobSpec:
    return replace(spec, max_delete=limit)
