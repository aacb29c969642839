"""A job as one HTML page that needs no network: what it did, where its time went, and what to look at in its input."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.accuracy import LENGTHS
from pipeline.report import plots
from pipeline.report.breakdown import MOMENTS
from pipeline.report.breakdown_table import device_name, moment_text
from pipeline.report.job import JobReport
from pipeline.report.roofline import judge
from pipeline.report.roofline_table import figure, time_text
from pipeline.visible import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CLASSES = 30
_QUARANTINED = 10
_CAUSE_COLORS = {
    "compute": plots.COLORS["compute"],
    "transfer": plots.COLORS["copy-in"],
    "reader": plots.COLORS["read"],
    "writer": plots.COLORS["write"],
    "hand-over": "#e45756",
    "imbalance": plots.COLORS["wait"],
}


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart. length: its share of the longest."""

    name: str
    value: str
    note: str
    length: float


def save_page(report: JobReport, path: str) -> None:
    """Write the page of a finished job. Raises OSError."""
    Path(path).write_text(page(report), encoding="utf-8")


def page(report: JobReport) -> str:
    """The page as HTML. Everything that comes from the input is escaped, and its control characters are visible."""
    environment = Environment(
        loader=PackageLoader("pipeline", "report"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"figure": figure, "time": time_text, "moment": moment_text, "ratio": _ratio}
    return environment.get_template("page.html.j2").render(_content(report))


def _finalize(value: Any) -> Any:
    """A value as the page shows it: a text visible, HTML that a macro made as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _content(report: JobReport) -> dict[str, Any]:
    breakdown = report.breakdown
    ran = bool(breakdown.devices)
    profile = report.run.profile
    return {
        "report": report,
        "breakdown": breakdown,
        "version": version("broadsheet"),
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.run.timeline.began)),
        "labels": _labels(report),
        "more_labels": max(0, len(report.tally.labels) - _MOST_CLASSES),
        "lengths": _lengths(report),
        "quarantined": report.results.first_quarantined(_QUARANTINED),
        "moments": MOMENTS,
        "device_name": device_name,
        "causes": _CAUSE_COLORS,
        "timeline": _picture(partial(plots.timeline, report.run.timeline, breakdown)) if ran else None,
        "throughput": _picture(partial(plots.throughput, report.run.timeline, breakdown)) if ran else None,
        "roofline": profile and _picture(partial(plots.roofline, profile)),
        "kernels": profile and [judge(kernel, profile.ceilings) for kernel in profile.kernels],
    }


def _labels(report: JobReport) -> list[Bar]:
    shown = report.tally.labels.most_common(_MOST_CLASSES)
    most = max((rows for _, rows in shown), default=1)
    return [Bar(name, f"{n:,}", f"{n / max(report.rows_written, 1):.1%}", n / most) for name, n in shown]


def _lengths(report: JobReport) -> list[Bar]:
    """The classes from the shortest to the longest that occurs."""
    ends = [*LENGTHS[1:], None]
    names = [_range(begin, end) for begin, end in zip(LENGTHS, ends, strict=True)]
    occur = [i for i, n in enumerate(report.tally.lengths) if n]
    most = max(report.tally.lengths) or 1
    total = max(report.rows_written, 1)
    return [
        Bar(
            names[i],
            f"{report.tally.lengths[i]:,}",
            f"{report.tally.lengths[i] / total:.1%}",
            report.tally.lengths[i] / most,
        )
        for i in range(occur[0] if occur else 0, occur[-1] + 1 if occur else 0)
    ]


def _range(begin: int, end: int | None) -> str:
    if end is None:
        return f"{begin:,} and more"
    return f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}"


def _ratio(value: float) -> str:
    """Three decimals; a class that never occurs has no precision or recall."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def _picture(draw: Callable[[float], Figure]) -> dict[str, str]:
    """A drawing for desktop and one for mobile, as values of `src`."""
    return {
        name: _source(plots.to_svg(draw(width))) for name, width in (("wide", plots.WIDE), ("narrow", plots.NARROW))
    }


def _source(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
