"""bench.json as one picture: a panel a model, a bar a contender, ceilings as lines. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedctl.errors import UsageError

OWN, PEER, WRONG = "#1f6f8b", "#b8c4cc", "#d9a5a5"
_STYLES = {"operators": "--", "products": ":"}


def draw(bench: Mapping[str, Any], corpus: str, file: Path) -> None:
    """Write `file` (PNG): tokens/s on this corpus, fastest on top. :raises UsageError: matplotlib is not installed."""
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]
    except ImportError as exc:
        raise UsageError("the plot needs matplotlib", hint="pip install 'embedctl[bench]'") from exc
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(m, found["corpora"][corpus]) for m, found in bench["models"].items() if corpus in found["corpora"]]
    if not panels:
        return
    most = max(len(_rows(measured)) for _, measured in panels)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6.4 * len(panels), 1.4 + 0.34 * most), squeeze=False, layout="constrained"
    )
    for axis, (model, measured) in zip(axes[0], panels, strict=True):
        _panel(axis, model, measured)
    machine = bench["machine"]
    figure.suptitle(
        f"Embedding {corpus} text, tokens per second (more is better)\n"
        f"{machine['processor']}, {machine['threads']} threads",
        fontsize=11,
    )
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _rows(measured: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted((c for c in measured["contenders"] if c["tokens_per_s"]), key=lambda c: c["tokens_per_s"])


def _panel(axis: Any, model: str, measured: Mapping[str, Any]) -> None:
    rows = _rows(measured)
    colours = [WRONG if r["wrong"] else OWN if r["name"].startswith("embedctl") else PEER for r in rows]
    names = [r["name"] + (" (wrong vectors)" if r["wrong"] else "") for r in rows]
    bars = axis.barh(names, [r["tokens_per_s"] for r in rows], color=colours, height=0.72)
    labels = [f"{r['tokens_per_s']:,.0f}" for r in rows]
    axis.bar_label(bars, labels=labels, padding=4, fontsize=8)
    _lines(axis, measured.get("roofline") or {}, rows)
    axis.set_title(model, fontsize=10, loc="left")
    axis.tick_params(axis="y", length=0, labelsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.margins(x=0.12)


def _lines(axis: Any, roofline: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    found = roofline.get("bfloat16") or next(iter(roofline.values()), None)
    if not found or not rows:
        return
    names = {"operators": "operators alone", "products": "matrix products alone"}
    for key, style in _STYLES.items():
        rate = found["tokens_per_s"].get(key)
        if rate:
            axis.axvline(rate, linestyle=style, color="#555555", linewidth=1, label=names[key])
    axis.legend(loc="lower right", fontsize=8, framealpha=1.0, edgecolor="none", title="ceilings", title_fontsize=8)
