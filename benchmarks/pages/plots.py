"""The plots of the pages: the ladder, and the latency of servers by rate."""

from __future__ import annotations

import statistics
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

WIDTH = 9.0
DOTS_AN_INCH = 200
"""A plot is then 1,800 pixels wide. A page shows it with 900 pixels, so that text of 9 points is 12 pixels high."""

_GREY = "#8a8f98"
_MEASURED, _PRODUCT, _PREDICTED = "#4c78a8", "#2a9d5c", "#e45756"
_SERVERS = (_PRODUCT, _MEASURED, _PREDICTED, "#b279a2")
_STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _GREY}


def ladder(result: dict[str, Any], file: Path) -> None:
    """Draw the rungs above, and below them the product with one thing turned off."""
    # Sort the steps.
    steps = [r for r in result["steps"] if "articles_per_second" in r]
    product = next(r["articles_per_second"] for r in steps if r["kind"] == "product")
    rungs = [r for r in steps if r["kind"] == "cumulative"]
    alone = sorted((r for r in steps if r["kind"] == "alone"), key=lambda r: r["articles_per_second"])
    alone.append(next(r for r in steps if r["kind"] == "product"))
    about = result["about"]
    # Draw both parts, with the product as a line.
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, 1.9 + 0.27 * (len(rungs) + len(alone))), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[len(rungs), len(alone)])
        _bars(above, rungs, "Cumulative: from everything off, one thing turned on after the other")
        _bars(below, alone, "Alone: the product with only this one thing turned off")
        for axes in (above, below):
            axes.axvline(product, color=_PRODUCT, linewidth=0.8, linestyle=":")
        below.set_xlabel("articles a second (logarithmic)")
        gpu = about["gpu"] if "gpu" in about else about["gpus"][0]
        figure.suptitle(f"The ladder on one {gpu}, AG News text, commit {about['commit']}", fontsize=11)
        figure.savefig(file, dpi=DOTS_AN_INCH)


def _bars(axes: Axes, records: list[dict[str, Any]], title: str) -> None:
    """Draw a bar with its rate for each step, and a mark for each prediction."""
    rates = [r["articles_per_second"] for r in records]
    colors = [_PRODUCT if r["kind"] == "product" else _MEASURED for r in records]
    places = list(range(len(records)))
    axes.barh(places, rates, color=colors, height=0.7)
    marks = []
    for place, (record, rate) in enumerate(zip(records, rates, strict=True)):
        predicted = _expected(record, records)
        if predicted is not None:
            marks.append((predicted, place))
        right = max(rate, predicted or 0)
        axes.annotate(f"{rate:,.0f}", (right, place), (5, 0), textcoords="offset points", va="center", fontsize=8)
    if marks:
        xs, ys = zip(*marks, strict=True)
        axes.scatter(xs, ys, marker="|", s=90, linewidths=1.8, color=_PREDICTED, zorder=3, label="predicted")
        axes.legend(loc="upper right", frameon=False, fontsize=8)
    axes.set_yticks(places, [r["name"] for r in records])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(100, max(rates) * 6)
    axes.set_title(title, loc="left", fontsize=10)


def _expected(record: dict[str, Any], beside: list[dict[str, Any]]) -> float | None:
    """Return the predicted articles per second, or None.

    The prediction for something turned off is a factor, which applies to the product's measured rate.
    """
    if "predicted_articles_per_second" in record:
        return float(record["predicted_articles_per_second"])
    if "predicted_factor" not in record:
        return None
    product = next((r["articles_per_second"] for r in beside if r["kind"] == "product"), 0.0)
    return float(record.get("of_articles_per_second", product) / record["predicted_factor"])


def serving(result: dict[str, Any], file: Path) -> None:
    """Draw the 99th percentile of the latency of each server, at each rate that was tried."""
    stacks = result["stacks"]
    sizes = list(dict.fromkeys(row["each"] for row in stacks))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, 3.4 * len(sizes)), layout="constrained")
        for axes, size in zip(figure.subplots(len(sizes), squeeze=False)[:, 0], sizes, strict=True):
            rows = [row for row in stacks if row["each"] == size]
            for row, color in zip(rows, _SERVERS, strict=False):
                _latency(axes, row, color)
            axes.axhline(rows[0]["target_ms"], color=_GREY, linewidth=0.8, linestyle=":", label="target")
            axes.set(xscale="log", yscale="log", ylabel="p99 of answers, ms")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_minor_formatter(NullFormatter())
            axes.set_title(f"{size} article{'s' * (size > 1)} a request", fontsize=10, loc="left")
            axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set_xlabel("requests a second (logarithmic)")
        figure.savefig(file, dpi=DOTS_AN_INCH)


def _latency(axes: Axes, row: dict[str, Any], color: str) -> None:
    """Draw a point for each rate that was tried, hollow if a request got no answer, and a line through the medians."""
    runs = [[step for step in run["steps"] if step["answered"]] for run in row["rounds"]]
    for step in (step for run in runs for step in run):
        whole = not (step["refused"] or step["failed"] or step["not_sent"])
        axes.scatter(
            step["rate"], step["p99_ms"], s=12, facecolors=color if whole else "none", edgecolors=color, lw=0.8
        )
    beside = [step for step in zip_longest(*runs) if sum(point is not None for point in step) > len(runs) / 2]
    answered = [[point for point in step if point is not None] for step in beside]
    rates = [statistics.median(point["rate"] for point in step) for step in answered]
    slowest = [statistics.median(point["p99_ms"] for point in step) for step in answered]
    axes.plot(rates, slowest, color=color, linewidth=1, label=row["stack"])
