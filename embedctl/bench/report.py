"""bench.json as a Markdown table, and the README's block from it. Pure: the object enters, text leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VERSION = 1
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
_CORPORA = {
    "skewed": "real text, skewed lengths",
    "short": "8 to 32 tokens",
    "long": "all longer than the model takes",
    "worst": "short, a few of the longest strewn in",
}
_COLUMNS = ("", "tokens/s", "docs/s", "tokens per CPU s", "peak MiB", "cosine mean (min)", "embedctl is")


def markdown(bench: Mapping[str, Any]) -> str:
    """Machine, one table a model and corpus, the ceilings, the whole job, and who was not run."""
    lines = [*_machine(bench)]
    for model, found in bench["models"].items():
        for name, corpus in found["corpora"].items():
            lines += ["", f"**{model}, {_CORPORA.get(name, name)}** ({_size(corpus)})", "", *_table(corpus)]
            lines += _ceilings(corpus)
    lines += _whole(bench.get("whole") or {})
    absent = _absent(bench)
    if absent:
        lines += ["", "Not run: " + "; ".join(f"{name}: {reason}" for name, reason in absent.items()) + "."]
    return "\n".join(lines) + "\n"


def fill(readme: Path, bench: Mapping[str, Any]) -> bool:
    """Put the table between the README's markers; whether anything changed. :raises ValueError: no markers there."""
    before = readme.read_text(encoding="utf-8")
    if BEGIN not in before or END not in before.partition(BEGIN)[2]:
        raise ValueError(f"{readme}: no place for the table: write {BEGIN} and {END} where it should stand")
    head, _, rest = before.partition(BEGIN)
    after = f"{head}{BEGIN}\n{markdown(bench)}{END}{rest.partition(END)[2]}"
    if after != before:
        readme.write_text(after, encoding="utf-8")
    return after != before


def ratio_lines(corpus: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The contenders with `ratio`: how many times faster embedctl is. None where either has no rate."""
    own = next((c["tokens_per_s"] for c in corpus["contenders"] if c["tokens_per_s"]), None)
    return [
        {**c, "ratio": own / c["tokens_per_s"] if own and c["tokens_per_s"] else None} for c in corpus["contenders"]
    ]


def _machine(bench: Mapping[str, Any]) -> Iterator[str]:
    machine = bench["machine"]
    features = ", ".join(machine["features"]) or "no AVX"
    rounds = f"medians of {bench['rounds']} interleaved rounds"
    yield f"{machine['processor']}, {machine['threads']} threads ({features}); {rounds}."
    if bench["quick"]:
        yield ""
        yield "A quick run, to see that everything works: its numbers mean little."


def _size(corpus: Mapping[str, Any]) -> str:
    mean = corpus["tokens"] / max(corpus["texts"], 1)
    return (
        f"{corpus['texts']:,} texts, {corpus['tokens']:,} tokens, {mean:.0f} on average, cut at {corpus['max_length']}"
    )


def _table(corpus: Mapping[str, Any]) -> Iterator[str]:
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|---|" + "---:|" * (len(_COLUMNS) - 1)
    for row in corpus["contenders"]:
        if row["status"] == "ok":
            yield "| " + " | ".join(_cells(row)) + " |"


def _cells(row: Mapping[str, Any]) -> list[str]:
    cosine = row["cosine"]
    agrees = "-" if cosine["mean"] is None else f"{_cosine(cosine['mean'])} ({_cosine(cosine['min'])})"
    return [
        row["name"] + (" **wrong**" if row["wrong"] else ""),
        f"{row['tokens_per_s']:,.0f}",
        f"{row['documents_per_s']:,.0f}",
        f"{row['tokens_per_cpu_s']:,.0f}" if row["tokens_per_cpu_s"] else "-",
        f"{row['peak_bytes'] / (1 << 20):,.0f}" if row["peak_bytes"] else "-",
        agrees,
        f"{row['ratio']:.2f}x" if row["ratio"] else "-",
    ]


def _cosine(value: float) -> str:
    """Five digits, never rounded up to one that it is not."""
    return f"{int(value * 1e5) / 1e5:.5f}"


def _ceilings(corpus: Mapping[str, Any]) -> list[str]:
    lines = []
    for dtype, found in (corpus.get("roofline") or {}).items():
        parts = [
            f"{name} {rate:,.0f} tokens/s"
            + (f" ({found['reached'][key]:.2f} reached)" if found["reached"].get(key) else "")
            for key, name in (("operators", "operators alone"), ("products", "matrix products alone"))
            if (rate := found["tokens_per_s"][key])
        ]
        lines.append(f"Ceiling in {dtype}: {'; '.join(parts)}.")
    return ["", *lines] if lines else []


def _whole(whole: Mapping[str, Any]) -> Iterator[str]:
    job = whole.get("job")
    if job:
        yield ""
        yield (
            f"Whole job, file to committed Parquet, {job['job']['rows']:,} rows: {job['ratio']['wall']:.2f} times "
            f"encoding alone ({job['ratio']['wall_with_start']:.2f} with its start of {job['start_s']:.1f} s); "
            f"{job['job']['peak_bytes'] >> 20:,} MiB at most, "
            f"{job['encoder_peak_bytes'] >> 20:,} MiB for an encoder alone."
        )
    pipeline = whole.get("pipeline")
    if pipeline:
        rate = pipeline["tokens_per_s"]["pipeline"]
        yield ""
        yield f"The pipeline without an encoder: {rate:,.0f} tokens/s, {pipeline['ratio']:.2f} of the tokenizer alone."
    for found in whole.get("memory") or []:
        yield ""
        yield (
            f"{found['rows']:,} short rows: {found['peak_bytes'] >> 20:,} MiB at most, "
            f"{found['over_encoder_bytes'] / (1 << 20):+,.0f} MiB to an encoder alone."
        )
    if whole.get("help_s"):
        yield ""
        yield f"`embedctl --help`: {whole['help_s']:.2f} s."
    failed = whole.get("not_run") or {}
    if failed:
        yield ""
        yield "Not run: " + "; ".join(f"{name}: {reason}" for name, reason in failed.items()) + "."


def _absent(bench: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for model, held in bench["models"].items():
        for corpus, measured in held["corpora"].items():
            for row in measured["contenders"]:
                if row["status"] != "ok":
                    found.setdefault(f"{row['name']} ({model}, {corpus})", row["reason"].rstrip("."))
    return found
