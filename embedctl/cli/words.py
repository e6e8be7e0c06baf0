"""Progress, summaries and reports as lines of text. Pure: records enter, strings leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from embedctl.errors import RESUMABLE
from embedctl.events import Progress, Summary

MOST_LINES = 20
MOST_CELL = 60
CHANGES = {"added": "new", "changed": "changed", "payload": "with other columns only", "deleted": "vanished"}
STAGES = ("read", "tokenize", "encode", "write")


def duration(seconds: float) -> str:
    """`7s`, `2m05s`, `3h20m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def size(num_bytes: float) -> str:
    """`512 B`, `3.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def progress_words(now: Progress) -> str:
    """One line: rows, share, rate, dead, time left, slowest stage."""
    rows = f"{now.rows:,}" + (f"/{now.rows_total:,}" if now.rows_total else "") + " rows"
    parts = [rows]
    if now.tokens and now.elapsed_s > 0:
        parts.append(f"{now.tokens / now.elapsed_s:,.0f} tokens/s")
    parts.append(f"{now.dead:,} dead")
    left_s = seconds_left(now)
    if left_s is not None:
        parts.append(f"{duration(left_s)} left")
    if now.bottleneck:
        parts.append(f"slowest: {now.bottleneck}")
    return " · ".join(parts)


def seconds_left(now: Progress) -> float | None:
    """At the pace of this run, rows of earlier runs set apart; None where nothing is done or no end is known."""
    if now.rows_total:
        done, left = now.rows - now.resumed_rows, now.rows_total - now.rows
    elif now.bytes_total:
        done, left = now.bytes_read, now.bytes_total - now.bytes_read
    else:
        return None
    return max(left, 0) * now.elapsed_s / done if done > 0 else None


def summary_lines(summary: Summary) -> list[str]:
    """The end of a run for people, with the next command where there is one."""
    rows = summary.rows.to_json()
    parts = [f"{rows[k]:,} {k}" for k in rows if k != "read" and (rows[k] or k == "written")]
    total_s = summary.seconds.get("total", 0.0)
    encoded = summary.details.get("run_tokens", summary.tokens)
    rate = f" ({encoded / total_s:,.0f}/s)" if total_s > 0 and encoded else ""
    lines = [
        f"{summary.status}: {summary.destination}",
        f"  rows     {rows['read']:,} read = {' + '.join(parts)}",
        *_change_lines(summary.details),
        f"  vectors  {summary.units:,}",
        f"  tokens   {summary.tokens:,}{rate}, {summary.truncated:,} truncated, {summary.padding:.1%} padding",
        f"  seconds  {total_s:.1f}" + _stages(summary.seconds),
    ]
    if rows["dead"]:
        letters = summary.details.get("dead_letters")
        lines.append(f"  dead     {letters}" if isinstance(letters, str) else "  dead")
        again = "" if summary.details.get("loaded") else f"; after a fix: embedctl retry {summary.destination}"
        lines.append(f"  try: embedctl status {summary.destination} --dead{again}")
    if summary.exit_code in RESUMABLE:
        lines.append("  try: the same command again; it goes on where this one stopped")
    return lines


def _change_lines(details: Mapping[str, Any]) -> list[str]:
    """What a sync found: new, changed, only other columns, vanished; ids of a few where it only looked."""
    counts = details.get("changes")
    if not counts:
        return []
    told = [f"{counts[k] or 0:,} {word}" for k, word in CHANGES.items()]
    if "files_read" in counts:
        told.append(f"{counts['files_read']:,} files read, {counts['files_unread']:,} as they were")
    lines = [f"  changes  {', '.join(told)}"]
    for kind, ids in details.get("examples", {}).items():
        if ids:
            lines.append(f"    {CHANGES.get(kind, kind):<24} {', '.join(map(str, ids))}")
    return lines


def _stages(seconds: Mapping[str, float]) -> str:
    shown = [f"{stage} {seconds[stage]:.1f}" for stage in STAGES if stage in seconds]
    return f" (busy: {', '.join(shown)})" if shown else ""


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """A nested report, one line a value, lists of records one line a record."""
    flat = list(_flatten(report))
    width = max((len(key) for key, _ in flat), default=0)
    return [f"{key:<{width}}  {text}".rstrip() for key, text in flat]


def _flatten(report: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in report.items():
        name = f"{prefix}{str(key).replace('_', ' ')}"
        if isinstance(value, Mapping) and value and not _is_numbers(value):
            yield from _flatten(dict(islice(value.items(), MOST_LINES)), f"{name} ")
            if len(value) > MOST_LINES:
                yield name, f"and {len(value) - MOST_LINES:,} more; --json has all"
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            yield name, f"{len(value):,}"
            yield from (("", ", ".join(f"{k} {_plain(k, v)}" for k, v in item.items())) for item in value)
        else:
            yield name, _plain(str(key), value)


def _is_numbers(value: Mapping[str, Any]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value.values())


def _plain(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(k, v)}" for k, v in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, (int, float)) and key.endswith("_bytes"):
        return size(value)
    if isinstance(value, (int, float)) and key.endswith("_s") and "per" not in key:
        return duration(value)
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table_lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """A header and one line a row; an empty cell where there is nothing."""
    cells = [[column.replace("_", " ") for column in columns]]
    cells += [["" if row[c] is None else _plain(c, row[c]) for c in columns] for row in rows]
    return aligned(cells)


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of equally many cells, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def checks_lines(report: Mapping[str, Any]) -> list[str]:
    """`ok`, `FAILED` or `not checked` for each check, and a verdict."""
    word = {True: "ok", False: "FAILED", None: "not checked"}
    width = max((len(check["name"]) for check in report["checks"]), default=0)
    lines = [f"{word[c['ok']]:<11}  {c['name']:<{width}}  {c['detail']}".rstrip() for c in report["checks"]]
    passed = "all checks passed" if report.get("finished", True) else "sound so far, and not finished"
    return [*lines, passed if report["ok"] else "verify failed"]


def hit_columns(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rank, score, id, the chunk's place where there are chunks, and the kept columns."""
    chunked = any(hit["chunk"] is not None for hit in hits)
    kept = list(dict.fromkeys(name for hit in hits for name in hit["columns"]))
    return ["rank", "score", "id", *(["chunk", "span"] if chunked else []), *kept]


def hit_cells(hit: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """One line of a table of hits; text of kept columns on one line and shortened, control characters left out."""
    own = {"rank": hit["rank"], "score": f"{hit['score']:.4f}", "id": hit["id"], "chunk": hit["chunk"]}
    if hit["chunk"] is not None:
        own["span"] = f"{hit['char_start']}-{hit['char_end']}"
    taken = 5 if "span" in own else 3
    values = [own[name] for name in columns[:taken]] + [hit["columns"].get(name) for name in columns[taken:]]
    return ["" if value is None else _one_line(str(value)) for value in values]


def _one_line(text: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in " ".join(text[: 4 * MOST_CELL].split()))
    return line if len(line) <= MOST_CELL else f"{line[: MOST_CELL - 1]}…"
