"""The ladder as a picture: rung after rung, and each thing turned off alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 9.0
DOTS_AN_INCH = 200
"""So 1,800 pixels wide, of which a page shows 900: text of 9 points is then 12 pixels high."""

_MEASURED, _PRODUCT, _PREDICTED = "#4c78a8", "#2a9d5c", "#e45756"
_STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#8a8f98"}


def draw(result: dict[str, Any], path: Path) -> None:
    """PNG of a measured result."""
    steps = [r for r in result["steps"] if "articles_per_second" in r]
    product = next(r["articles_per_second"] for r in steps if r["kind"] == "product")
    rungs = [r for r in steps if r["kind"] == "cumulative"]
    alone = sorted((r for r in steps if r["kind"] == "alone"), key=lambda r: r["articles_per_second"])
    alone.append(next(r for r in steps if r["kind"] == "product"))
    about = result["about"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, 1.9 + 0.27 * (len(rungs) + len(alone))), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[len(rungs), len(alone)])
        _bars(above, rungs, "Cumulative: from everything off, one thing turned on after the other")
        _bars(below, alone, "Alone: the product with only this one thing turned off")
        for axes in (above, below):
            axes.axvline(product, color=_PRODUCT, linewidth=0.8, linestyle=":")
        below.set_xlabel("articles a second (logarithmic)")
        figure.suptitle(f"The ladder on {_article(about['gpu'])}, AG News text, commit {about['commit']}", fontsize=11)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_AN_INCH)


def _article(gpu: str) -> str:
    return f"an {gpu}" if gpu.startswith("NVIDIA") else gpu


def _bars(axes: Axes, records: list[dict[str, Any]], title: str) -> None:
    rates = [r["articles_per_second"] for r in records]
    colors = [_PRODUCT if r["kind"] == "product" else _MEASURED for r in records]
    places = list(range(len(records)))
    axes.barh(places, rates, color=colors, height=0.7)
    marks = []
    for place, (record, rate) in enumerate(zip(records, rates, strict=True)):
        predicted = expected(record, records)
        if predicted is not None:
            marks.append((predicted, place))
        behind = max(rate, predicted or 0)  # whichever ends further right
        axes.annotate(f"{rate:,.0f}", (behind, place), (5, 0), textcoords="offset points", va="center", fontsize=8)
    if marks:
        xs, ys = zip(*marks, strict=True)
        axes.scatter(xs, ys, marker="|", s=90, linewidths=1.8, color=_PREDICTED, zorder=3, label="predicted")
        axes.legend(loc="upper right", frameon=False, fontsize=8)
    axes.set_yticks(places, [r["name"] for r in records])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(100, max(rates) * 6)
    axes.set_title(title, loc="left", fontsize=10)


def expected(record: dict[str, Any], beside: list[dict[str, Any]]) -> float | None:
    """The predicted articles a second; for something turned off alone, from the product's measured rate."""
    if "predicted_articles_per_second" in record:
        return float(record["predicted_articles_per_second"])
    if "predicted_factor" not in record:
        return None
    product = next((r["articles_per_second"] for r in beside if r["kind"] == "product"), 0.0)
    return float(record.get("of_articles_per_second", product) / record["predicted_factor"])
