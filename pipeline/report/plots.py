"""Draws the pictures of a job, a profile and an evaluation with Matplotlib."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..errors import printable
from ..measures.accuracy import Confusion
from ..measures.reliability import Reliability
from ..storage.disk import write_file
from ..telemetry.profile import Profile
from ..telemetry.spans import Span
from .breakdown import Breakdown, Judged, judge
from .tables import device_name
from .tables import figure as in_words
from .timeline import Timeline, overlap, union

WIDE, NARROW = 9.6, 4.0
"""The width of a picture for desktop and for mobile, in inches."""

COLORS = {
    "read": "#4c78a8",
    "ingest": "#1d3557",
    "wait": "#c9ccd1",
    "copy-in": "#72b7b2",
    "compute": "#2a9d5c",
    "copy-out": "#b279a2",
    "write": "#f2a541",
    "store": "#9d755d",
}
"""The color of each lane, in the order of the timeline's rows."""

_BOUND_COLORS = {"compute": "#2a9d5c", "memory": "#4c78a8", "latency": "#e45756"}
_MOST_DEVICES = 32
_MOST_NUMBERED = 20
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "text.parse_math": False,  # a name with dollar signs is no formula
}


def timeline(job: Timeline, breakdown: Breakdown, width: float) -> Figure:
    """Draw a row for each lane of each device. The darker a moment, the larger the share of it with an active span."""
    # Compute the color of each lane at each moment.
    of_lane: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in job.spans:
        of_lane[span.where, span.lane].append(span)
    devices = breakdown.devices[:_MOST_DEVICES]
    lanes = [name for name in COLORS if any(of_lane[d.where, name] for d in devices)]
    begin, end = _window(breakdown)
    edges = job.began + np.linspace(begin, end, 1 + int(width * 100))
    picture = np.ones((len(devices) * len(lanes), len(edges) - 1, 3))
    names: list[str] = []
    for device in devices:
        for lane in lanes:
            share = overlap(union(of_lane[device.where, lane]), edges) / np.diff(edges)
            strength = np.where(share > 0, 0.25 + 0.75 * share, 0.0)[:, None]
            color = np.array(mpl.colors.to_rgb(COLORS[lane]))
            picture[len(names)] = 1 - strength * (1 - color)
            names.append(lane)

    # Draw a panel for each device.
    height = 0.2 * len(names) + 0.24 * len(devices) + 0.6
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        panels = drawn.subplots(len(devices), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, device) in enumerate(zip(panels, devices, strict=True)):
            rows = picture[number * len(lanes) : (number + 1) * len(lanes)]
            axes.imshow(rows, aspect="auto", interpolation="nearest", extent=(begin, end, len(lanes) - 0.5, -0.5))
            axes.set_yticks(range(len(lanes)), lanes, fontsize=8)
            axes.tick_params(axis="y", length=0)
            title = f"{printable(device_name(device))}, busy {device.busy:.0%}"
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=3)
            axes.hlines(np.arange(len(lanes) - 1) + 0.5, begin, end, color="white", linewidth=1.5)
        panels[-1].set_xlabel("seconds since the start")
    return drawn


def throughput(job: Timeline, breakdown: Breakdown, mean: float, width: float) -> Figure:
    """Draw articles per second over time.

    The articles of a chunk are spread evenly over the time in which the chunk was classified.
    """
    begin, end = _window(breakdown)
    infers = [s for s in job.spans if s.lane == "infer"]
    edges = np.linspace(begin, end, 1 + int(np.clip(len(infers), 8, 120)))
    finished_rows = np.zeros(len(edges))
    for span in infers:
        share = (edges + job.began - span.start) / max(span.seconds, 1e-9)
        finished_rows += job.rows[span.chunk] * share.clip(0, 1)
    rate = np.diff(finished_rows) / np.diff(edges)
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(width, 2.2), layout="constrained")
        axes = drawn.add_subplot(xlabel="seconds since the start", ylabel="articles a second")
        axes.stairs(rate, edges, fill=True, color=COLORS["compute"], alpha=0.35)
        axes.stairs(rate, edges, color=COLORS["compute"], linewidth=1.2)
        axes.axhline(mean, color="#555", linewidth=0.8, linestyle=(0, (4, 3)))
        text = axes.annotate(f"mean {mean:,.0f}", (end, mean), (-2, 3), textcoords="offset points", ha="right")
        text.set_bbox({"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1})
        axes.set_xlim(begin, end)
        axes.set_ylim(0, max(float(rate.max()), mean, 1.0) * 1.15)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return drawn


def roofline(profile: Profile, width: float = WIDE) -> Figure:
    """Draw every kernel with arithmetic by its FLOP per byte and its FLOP/s, under the measured ceilings."""
    judged = [judge(k, profile.ceilings) for k in profile.kernels if k.flop]
    peak, bandwidth = profile.ceilings.flop_per_second, profile.ceilings.bytes_per_second
    xs = np.array([j.intensity for j in judged])
    span = np.geomspace(min(xs.min(), peak / bandwidth) / 3, max(xs.max(), peak / bandwidth) * 3, 200)
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(width, max(0.42 * width, 3.2)), layout="constrained")
        axes = drawn.add_subplot(xlabel="FLOP a byte, over the least bytes", ylabel="FLOP a second")
        axes.loglog(span, np.minimum(span * bandwidth, peak), color="#333", linewidth=1.4)
        axes.annotate(in_words(peak, "FLOP/s"), (peak / bandwidth, peak), (2, 4), textcoords="offset points")
        start = (span[0], span[0] * bandwidth)
        axes.annotate(in_words(bandwidth, "B/s"), start, (0, -13), textcoords="offset points")
        for j in judged:
            axes.plot(j.intensity, j.flop_per_second, "o", color=_BOUND_COLORS[j.bound], markersize=6)
        for place, names in _labels(judged):
            axes.annotate(names, place, (0, -8), textcoords="offset points", fontsize=8, ha="center", va="top")
        axes.set_ylim(min(j.flop_per_second for j in judged) / 6, peak * 3)
        handles = [Patch(color=color, label=f"{bound}-bound") for bound, color in _BOUND_COLORS.items()]
        axes.legend(handles=handles, loc="lower right", frameon=False)
        axes.yaxis.set_major_formatter(lambda value, _: in_words(value))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the default formatter writes powers as formulas
        axes.grid(which="major", color="#e3e5e8", linewidth=0.6)
        axes.set_axisbelow(True)
    return drawn


def _labels(judged: list[Judged]) -> list[tuple[tuple[float, float], str]]:
    """Return the labels of the kernels and their positions.

    Kernels close to each other share a label below the lowest of them. It has their names and rates, the highest first,
    in the order of their dots.
    """
    groups: list[list[Judged]] = []
    for j in sorted(judged, key=lambda j: j.intensity):
        last = groups[-1][-1] if groups else None
        if last and j.intensity < 2 * last.intensity and 1 / 3 < j.flop_per_second / last.flop_per_second < 3:
            groups[-1].append(j)
        else:
            groups.append([j])
    labels = []
    for group in groups:
        middle, lowest = np.exp(np.mean(np.log([j.intensity for j in group]))), min(j.flop_per_second for j in group)
        names = [
            f"{j.kernel.name}, {in_words(j.flop_per_second, 'FLOP/s')}" if len(group) > 1 else j.kernel.name
            for j in sorted(group, key=lambda j: -j.flop_per_second)
        ]
        labels.append(((float(middle), lowest), "\n".join(names)))
    return labels


def confusion_matrix(confusion: Confusion) -> Figure:
    """Draw the number of rows by true class (downwards) and label, each shaded by its share of the true class."""
    names = [printable(name) for name in confusion.classes]
    side = max(4.0, 0.5 * len(names) + 2)
    shares = confusion.counts / confusion.counts.sum(axis=1, keepdims=True).clip(min=1)
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(side + 0.6, side), layout="constrained")
        axes = drawn.add_subplot(xlabel="labelled", ylabel="true class")
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"accuracy {confusion.accuracy:.2%} of {confusion.rows:,} rows")
        if len(names) <= _MOST_NUMBERED:
            for i, row in enumerate(confusion.counts):
                for j, count in enumerate(row):
                    color = "white" if shares[i, j] > 0.5 else "black"
                    axes.text(j, i, f"{count:,}", ha="center", va="center", color=color)
    return drawn


def recall_by_share(recalls: Sequence[tuple[float, float]], chain: tuple[float, float], promised: float) -> Figure:
    """Draw the recall of a chain over the share of texts that its encoder is asked about.

    The recall is the share of what the encoder alone finds. The encoder is asked about the best texts by the first
    model.

    Parameters
    ----------
    recalls : sequence of (float, float)
        The share of asked texts and the recall, for each share.
    chain : (float, float)
        The share of asked texts and the recall of the chain.
    promised : float
        The recall that the chain promises.

    """
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(5.2, 4.2), layout="constrained")
        axes = drawn.add_subplot(xlabel="texts that the encoder is asked about", ylabel="recall")
        axes.plot([0, 1], [0, 1], color="#8a8f98", linestyle=(0, (4, 3)), label="texts drawn at random")
        axes.axhline(promised, color="#8a8f98", linewidth=0.8, label=f"promised: {100 * promised:.3g}%")
        axes.plot(*zip(*recalls, strict=True), color=COLORS["compute"], label="the best by the first model")
        axes.plot(*chain, "o", color="#e45756", label=f"the chain: {chain[1]:.1%} found, {chain[0]:.1%} asked")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
        axes.legend(loc="lower right", frameon=False)
    return drawn


def reliability_diagram(reliability: Reliability, before: Reliability | None) -> Figure:
    """Draw the accuracy by score, as bars over the bins, and the number of rows in each bin.

    before: the reliability without the temperature, which is drawn as a line; None to leave it out.
    """
    # Draw the accuracy of each bin, with its interval.
    some = [b for b in reliability.bins if b.rows]
    with mpl.rc_context(_STYLE):
        drawn = Figure(figsize=(4.6, 5.2), layout="constrained")
        axes, below = drawn.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        axes.plot([0, 1], [0, 1], color="#8a8f98", linestyle=(0, (4, 3)), label="as they should be")
        label = f"scores: calibration error {reliability.expected_error:.4f}"
        left, width = [b.low for b in some], [b.high - b.low for b in some]
        look = {"align": "edge", "edgecolor": "white"}
        shares = [b.accuracy for b in some]
        axes.bar(left, shares, width, color=COLORS["compute"], label=label, **look)
        middle = [(b.low + b.high) / 2 for b in some]
        reach = [[b.accuracy - b.interval.low for b in some], [b.interval.high - b.accuracy for b in some]]
        name = "95% confidence interval"
        axes.errorbar(middle, shares, reach, fmt="none", ecolor="#3b3f46", elinewidth=1, capsize=2, label=name)
        if before is not None:
            others = [b for b in before.bins if b.rows]
            name = f"without temperature: {before.expected_error:.4f}"
            places = [b.score for b in others], [b.accuracy for b in others]
            axes.plot(*places, "o-", color=COLORS["write"], markersize=4, label=name)
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of labels that are right")
        axes.legend(loc="upper left", frameon=False)
        # Draw the number of rows of each bin below.
        below.bar(left, [b.rows for b in some], width, color="#c9ccd1", **look)
        below.set(xlabel="score of the label", ylabel="rows")
        below.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return drawn


def save_png(drawn: Figure, path: str | Path) -> None:
    """Write a picture as PNG. Raises OutputError."""
    picture = io.BytesIO()
    with mpl.rc_context(_STYLE):
        drawn.savefig(picture, format="png", dpi=150)
    write_file(path, picture.getvalue())


def to_svg(drawn: Figure) -> str:
    """Return a picture as SVG text. Its letters are outlines, so that it looks the same everywhere."""
    text = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.fonttype": "path", "svg.hashsalt": "broadsheet"}):
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _window(breakdown: Breakdown) -> tuple[float, float]:
    begin = min(d.moments["input started"] for d in breakdown.devices)
    return begin, begin + breakdown.window
