"""`WindowRecord` and `DeadRow` to JSON and back: the documented form in segments and part footers."""

from __future__ import annotations

from typing import Any

from embedctl.records import Cursor, DeadRow, FileBooks, WindowKey, WindowRecord

Json = dict[str, Any]


def record_to_json(record: WindowRecord) -> Json:
    """Keys are short words; books are rows of [file, read, written, skipped, duplicates, dead]."""
    return {
        "kind": "window",
        "key": [record.key.generation, record.key.slice, record.key.window],
        "revision": record.revision,
        "begin": [record.begin.segment, record.begin.position],
        "end": [record.end.segment, record.end.position],
        "last": record.last,
        "books": [[b.file, b.read, b.written, b.skipped, b.duplicates, b.dead] for b in record.books],
        "units": record.units,
        "tokens": record.tokens,
        "padded_tokens": record.padded_tokens,
        "truncated": record.truncated,
        "part": record.part,
        "replay": record.replay,
    }


def record_from_json(obj: Json) -> WindowRecord:
    """:raises KeyError, ValueError, TypeError: not such an object."""
    generation, slice_, window = obj["key"]
    return WindowRecord(
        key=WindowKey(generation=generation, slice=slice_, window=window),
        revision=obj["revision"],
        begin=Cursor(segment=obj["begin"][0], position=obj["begin"][1]),
        end=Cursor(segment=obj["end"][0], position=obj["end"][1]),
        last=obj["last"],
        books=tuple(
            FileBooks(file=f, read=r, written=w, skipped=s, duplicates=d, dead=x) for f, r, w, s, d, x in obj["books"]
        ),
        units=obj["units"],
        tokens=obj["tokens"],
        padded_tokens=obj["padded_tokens"],
        truncated=obj["truncated"],
        part=obj["part"],
        replay=obj["replay"],
    )


def dead_to_json(row: DeadRow, uri: str) -> Json:
    """One dead letter; `uri` is the file's, so that the letter can be read without the plan."""
    letter: Json = {"file": uri, "position": row.position, "id": row.id, "reason": row.reason}
    return letter if row.raw is None else {**letter, "raw": row.raw}


def dead_from_json(obj: Json, file: int) -> DeadRow:
    return DeadRow(file=file, position=obj["position"], id=obj["id"], reason=obj["reason"], raw=obj.get("raw"))
