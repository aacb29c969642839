"""Shows a job as one HTML page that needs no network.

The page says what the job did, where its time went, and what to look at in its input.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..errors import UsageError, printable
from ..labelling.counts import LENGTHS, SCORES, THRESHOLDS, rows_above
from ..measures.accuracy import Confusion
from ..measures.examples import Sample
from ..output.look import QUANTILES, Facts, shown
from ..storage.disk import write_file
from . import plots
from .breakdown import MOMENTS, judge
from .facts import ModelFigures
from .job import JobReport
from .overlap import overlap_line
from .shares import interval_text
from .summary import LOOKED_AT, doubt, read_line, reasons
from .tables import device_name, figure, moment_text, ratio_text, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_VALUE = re.compile("<!-- by value -->.*?<!-- end of by value -->", re.DOTALL)
_MOST_CLASSES = 30
_MOST_QUARANTINED = 10
_CAUSE_COLORS = {
    "compute": plots.COLORS["compute"],
    "store": plots.COLORS["store"],
    "transfer": plots.COLORS["copy-in"],
    "ingest": plots.COLORS["ingest"],
    "reader": plots.COLORS["read"],
    "writer": plots.COLORS["write"],
    "hand-over": "#e45756",
    "imbalance": plots.COLORS["wait"],
}

_OF_GPUS = ("transfer", "ingest")
"""The causes that only a GPU can have."""

_MOST_MATRIX = 12  # classes
_MOST_LABELS = 8  # in the table of thresholds
_LAST_BIN = 0.99  # the last of SCORES, which the histogram adds to the bin before it, as its bins have one width
_LENGTHS = [f"{a:,}" if b == a + 1 else f"{a:,} to {b - 1:,}" for a, b in pairwise(LENGTHS)]
_LENGTHS += [f"{LENGTHS[-1]:,} and more"]
_SCORES = [f"{low:.2f} to {low + 0.05:.2f}" for low in SCORES if low != _LAST_BIN]
_MOST_PAIRS = 10


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart.

    Attributes
    ----------
    name, value, note : str
        The texts beside the bar.
    length : float
        The length of the bar as a share of the longest, from 0 to 1.

    """

    name: str
    value: str
    note: str
    length: float


def save_looked(name: str, tables: Sequence[Facts], path: str) -> None:
    """Show scores by value on the page of a job, in place of earlier ones, or on a new page.

    Raises UsageError if the file is not a page of a job, and OutputError if it cannot be written.

    name: the output folder, as the user named it. tables: the result of `look`. path: the file of the page.
    """
    about = {"name": name, "tables": tables, "quantiles": QUANTILES, "shown": shown, "version": version("broadsheet")}
    made = _environment().get_template("looked.html.j2").render(about)
    if os.path.isfile(path):
        section, before = _BY_VALUE.search(made), Path(path).read_text(errors="replace")
        made, found = _BY_VALUE.subn(lambda _: section[0] if section else "", before)
        if not found:
            raise UsageError(f"{path} is no page of a job: give another name")
    write_file(path, made.encode())


def page(report: JobReport) -> str:
    """Return the page of a job as HTML."""
    return _environment().get_template("page.html.j2").render(_content(report))


def _environment() -> Environment:
    """Return the environment of the templates. It escapes all text and every control character from the input."""
    options: dict[str, Any] = {
        "autoescape": True,
        "finalize": _finalize,
        "undefined": StrictUndefined,
        "trim_blocks": True,
    }
    environment = Environment(loader=PackageLoader("broadsheet.pipeline", "report"), **options)
    environment.filters |= {"figure": figure, "time": time_text, "moment": moment_text}
    environment.filters |= {"ratio": ratio_text, "interval": interval_text}
    return environment


def _finalize(value: Any) -> Any:
    """Return a value as the page shows it: a text made `printable`, but HTML from a macro as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _content(report: JobReport) -> dict[str, Any]:
    breakdown, rate = report.breakdown, report.articles_per_second
    ran = bool(breakdown.devices)
    gpu = ran and breakdown.devices[0].device.startswith("cuda")
    profile = report.run.profile
    # The template leaves out the section of a figure that is None or empty.
    return {
        "report": report,
        "breakdown": breakdown,
        "version": version("broadsheet"),
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.run.timeline.began)),
        "labels": _labels(report),
        "most_classes": _MOST_CLASSES,
        "lengths": _bars(_LENGTHS, report.tally.lengths),
        "scores": [(model, _histogram(model.bins), _by_threshold(model)) for model in report.models if model.bins],
        "samples": _samples(report),
        "gpu": gpu,
        "quarantined": reasons(report.results.first_quarantined(LOOKED_AT))[:_MOST_QUARANTINED],
        "moments": MOMENTS,
        "device_name": device_name,
        "causes": {name: color for name, color in _CAUSE_COLORS.items() if gpu or name not in _OF_GPUS},
        "read": read_line(report.run.read_by),
        "rest": max(0.0, report.run.seconds - sum(report.run.timings.values())),
        "matrix": _matrix(report.confusion),
        "pairs": report.confusion.mistakes(_MOST_PAIRS) if report.confusion else [],
        "learned": [line for model in report.models if (line := overlap_line(model.overlap))],
        "doubt": doubt(report.job, report.tally),
        "timeline": _picture(partial(plots.timeline, report.run.timeline, breakdown)) if ran else None,
        "throughput": _picture(partial(plots.throughput, report.run.timeline, breakdown, rate)) if ran else None,
        "roofline": profile and _picture(partial(plots.roofline, profile)),
        "kernels": profile and [judge(kernel, profile.ceilings) for kernel in profile.kernels],
    }


def _labels(report: JobReport) -> list[Bar]:
    shown = report.tally.labels.most_common(_MOST_CLASSES)
    most_rows = max((rows for _, rows in shown), default=1)
    return [Bar(name, f"{n:,}", f"{n / max(report.rows_written, 1):.1%}", n / most_rows) for name, n in shown]


def _histogram(bins: Sequence[int]) -> list[Bar]:
    """Return a histogram with bins of one width from the number of rows in the bins of SCORES."""
    last = SCORES.index(_LAST_BIN)
    return _bars(_SCORES, [*bins[: last - 1], bins[last - 1] + bins[last]])


def _samples(report: JobReport) -> list[tuple[str, list[Sample]]]:
    """Return sample rows of each label, the most frequent label first."""
    found: dict[str, list[Sample]] = {}
    for one in report.run.shown.samples:
        found.setdefault(one.label, []).append(one)
    return sorted(found.items(), key=lambda pair: -report.tally.labels[pair[0]])


def _matrix(confusion: Confusion | None) -> list[tuple[str, list[tuple[int, float]]]] | None:
    """Return each true class with its number of rows by label and their shares.

    Return None if there are many classes, or no row has a truth.
    """
    if confusion is None or not confusion.rows or len(confusion.classes) > _MOST_MATRIX:
        return None
    totals = confusion.counts.sum(axis=1).clip(min=1)
    return [
        (name, [(int(n), float(n / total)) for n in row])
        for name, row, total in zip(confusion.classes, confusion.counts, totals, strict=True)
    ]


def _bars(names: Sequence[str], rows: Sequence[int]) -> list[Bar]:
    """Return a histogram, from the first to the last bin that has rows."""
    occur = [i for i, n in enumerate(rows) if n]
    most_rows, total = max(rows, default=0), sum(rows)
    return [
        Bar(names[i], f"{rows[i]:,}", f"{rows[i] / total:.1%}", rows[i] / most_rows)
        for i in range(occur[0] if occur else 0, occur[-1] + 1 if occur else 0)
    ]


def _by_threshold(model: ModelFigures) -> tuple[list[str], list[tuple[float, int, list[float]]]]:
    """Return the most frequent labels, and what each threshold keeps.

    A threshold has the number of labels that it keeps, and the kept shares of all labels and of each frequent label.
    """
    labels = [name for name, _ in model.labels.most_common(_MOST_LABELS)]
    counts = [model.bins, *((model.scores or {})[name] for name in labels)]
    shares = [[n / sum(bins) for n in rows_above(bins)] for bins in counts]
    return labels, list(zip(THRESHOLDS, rows_above(model.bins), map(list, zip(*shares, strict=True)), strict=True))


def _picture(draw: Callable[[float], Figure]) -> dict[str, str]:
    """Return a drawing for desktop and one for mobile, as values of `src`."""
    drawn = {"wide": draw(plots.WIDE), "narrow": draw(plots.NARROW)}
    encoded = ((name, base64.b64encode(plots.to_svg(one).encode()).decode()) for name, one in drawn.items())
    return {name: f"data:image/svg+xml;base64,{svg}" for name, svg in encoded}
