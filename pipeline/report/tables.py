"""Prints the tables of a report, a profile and an evaluation to a terminal of 80 columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, OverflowMethod, RenderableType
from rich.table import Table

from ..errors import counted
from ..measures.accuracy import ClassFigures, Confusion, LabelCounts, LabelFigures
from ..measures.intervals import CONFIDENCE, Interval
from ..measures.reliability import Reliability
from ..measures.thresholds import Threshold
from ..telemetry.profile import Profile
from .breakdown import MOMENTS, Breakdown, DeviceTimes, judge
from .console import PlainConsole
from .shares import accuracy_text

_MOST_CLASSES = 20
_UNBOUNDED = 10_000  # columns
_OWN_COLUMN = 4
"""Up to this number of devices have a column each. For more devices, the table gives the first, median and last."""


def new_table(
    *columns: RenderableType, overflow: OverflowMethod = "fold", padding: tuple[int, int, int, int] = (0, 1, 0, 1)
) -> Table:
    """Return an empty table, whose first column is aligned to the left and whose other columns to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow=overflow)
    return table


def ratio_text(value: float, interval: Interval | None = None) -> str:
    """Return a ratio with three decimals, and an interval with two; a dash if the ratio is not defined.

    The precision of a class that is never given, and the recall of a class that never occurs, are not defined.
    """
    if math.isnan(value):
        return "–"
    return f"{value:.3f}" + ("" if interval is None else f" ({interval.low:.2f}–{interval.high:.2f})")


def print_breakdown(breakdown: Breakdown, console: PlainConsole) -> None:
    """Print the table of moments, throughput and busy share, and the verdict in one line, if there is one."""
    if breakdown.devices:
        few = len(breakdown.devices) <= _OWN_COLUMN
        console.print(_own_columns(breakdown) if few else _summary(breakdown))
        console.print(
            f"{breakdown.devices[0].device.partition(':')[0].upper().replace('CUDA', 'GPU')} busy {breakdown.busy:.0%} "
            "from first input to last output"
        )
    if breakdown.verdict:
        console.print(breakdown.verdict, style="bold")


def _own_columns(breakdown: Breakdown) -> Table:
    table = new_table("seconds from start", *(Group(d.host, _device(d)) for d in breakdown.devices))
    for name in MOMENTS:
        table.add_row(name, *(moment_text(d.moments[name]) for d in breakdown.devices))
    table.add_row("end", moment_text(breakdown.seconds), *[""] * (len(breakdown.devices) - 1), end_section=True)
    table.add_row("busy", *(f"{d.busy:.0%}" for d in breakdown.devices))
    table.add_row("articles", *(f"{d.rows:,}" for d in breakdown.devices))
    return table


def _summary(breakdown: Breakdown) -> Table:
    devices = breakdown.devices
    table = new_table("seconds from start", "first", "median", "last", "the last is")
    for name in MOMENTS:
        times = [d.moments[name] for d in devices]
        latest = max(devices, key=lambda d: d.moments[name])
        table.add_row(name, *map(moment_text, (min(times), statistics.median(times), max(times))), device_name(latest))
    table.add_row("end", "", "", moment_text(breakdown.seconds), "", end_section=True)
    table.add_row(f"{len(devices)} devices", "least", "median", "most", "the least has", end_section=True)
    busy, articles = [d.busy for d in devices], [float(d.rows) for d in devices]
    for label, values, show in (("busy", busy, "{:.0%}"), ("articles", articles, "{:,.0f}")):
        shown = map(show.format, (min(values), statistics.median(values), max(values)))
        table.add_row(label, *shown, device_name(devices[values.index(min(values))]))
    return table


def moment_text(seconds: float) -> str:
    """Return the seconds since the job began as text; "before" if they are negative, as a cluster had the model."""
    return f"{seconds:,.2f}" if seconds >= 0 else "before"


def device_name(device: DeviceTimes) -> str:
    """Return the host and the name of a device."""
    return f"{device.host} {_device(device)}"


def _device(device: DeviceTimes) -> str:
    """Return the name of a GPU, or of a CPU with its process, since a host may run several workers on it."""
    return device.device if device.device.startswith("cuda") else f"{device.device} {device.where.rpartition(':')[2]}"


_PREFIXES = ("", "k", "M", "G", "T", "P")


def print_profile(profile: Profile, console: PlainConsole) -> None:
    """Print the time, work and rates of every kernel, its place under the roofline, and how well it fills a GPU."""
    rate = profile.batch / profile.seconds
    console.print(f"{profile.batch:,} articles on {profile.device}: {time_text(profile.seconds)}, {rate:,.0f} a second")
    ceilings = profile.ceilings
    flop, moved = figure(ceilings.flop_per_second, "FLOP/s"), figure(ceilings.bytes_per_second, "B/s")
    console.print(f"ceilings: {flop}, {moved} ({ceilings.how})")
    console.print(_work(profile))
    console.print(_roofline(profile))
    if any(kernel.occupancy is not None for kernel in profile.kernels):
        console.print(_fill(profile))


def _work(profile: Profile) -> Table:
    table = _kernel_table("kernel", "alone", "in stream", "FLOP", "least B", "moved B", "FLOP/s", "B/s")
    for kernel in profile.kernels:
        judged = judge(kernel, profile.ceilings)
        times = map(time_text, (kernel.seconds, kernel.stream_seconds))
        moved = figure(kernel.counted_bytes or kernel.modelled_bytes) + ("" if kernel.counted_bytes else "*")
        rates = map(figure, (judged.flop_per_second, judged.bytes_per_second))
        table.add_row(kernel.name, *times, figure(kernel.flop), figure(kernel.least_bytes), moved, *rates)
    if not all(kernel.counted_bytes for kernel in profile.kernels):
        table.caption = "* modelled, not counted by the hardware"
        table.caption_justify = "left"
    return table


def _roofline(profile: Profile) -> Table:
    table = _kernel_table("kernel", "FLOP/B", "ceiling", "category", "bound by", "why")
    for column in table.columns[3:]:
        column.justify = "left"
    for kernel in profile.kernels:
        judged = judge(kernel, profile.ceilings)
        figures = f"{judged.intensity:,.1f}", f"{judged.ceiling_share:.0%}"
        table.add_row(kernel.name, *figures, kernel.category, judged.bound, judged.reason)
    return table


def _fill(profile: Profile) -> Table:
    table = _kernel_table("kernel", "occupancy", "registers", "shared", "waves", "tail waste", "tile waste")
    for k in profile.kernels:
        figures = (k.occupancy, k.registers, k.shared_bytes, k.waves, k.tail_waste, k.tile_waste)
        shown = zip(figures, ("{:.0%}", "{}", "{:,}", "{:.1f}", "{:.0%}", "{:.0%}"), strict=True)
        table.add_row(k.name, *("" if value is None else shape.format(value) for value, shape in shown))
    return table


def _kernel_table(*columns: str) -> Table:
    return new_table(*columns, overflow="ellipsis", padding=(0, 1, 0, 0))


def time_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"
    return f"{seconds:,.2f} s"


def figure(value: float, unit: str = "") -> str:
    """Return a value with three figures and a decimal prefix."""
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    space = " " if unit else ""
    return f"{value:.3g}{space}{_PREFIXES[power]}{unit}"


_BAR = 30


_OF_ASKING = {
    "share": ("asked", ".2%"), "accuracy": ("right", ".2%"), "agreement": ("same label as all", ".2%"),
    "recall": ("recall", ".2%"), "precision": ("precision", ".2%"), "calibration_error": ("calibration error", ".4f"),
}  # fmt: skip


def print_asking(figures: Mapping[str, Mapping[str, float]], console: PlainConsole, second: str = "network") -> None:
    """Print how good a model is if its network or encoder is asked about some texts, about all and about none.

    figures: the figures of each of these cases, by its name. second: "network" or "encoder".
    """
    shown = {key: about for key, about in _OF_ASKING.items() if key in figures["all"]}
    table = new_table(second, *(title for title, _ in shown.values()))
    for name, values in figures.items():
        table.add_row(name, *(f"{values[key]:{shape}}" for key, (_, shape) in shown.items()))
    console.print(table)


def print_reliability(
    reliability: Reliability, before: Reliability | None, diagram: bool, console: PlainConsole, is_calibrated: bool
) -> None:
    """Print the expected calibration error with and without the model's temperature, and a bar for each bin of scores.

    Parameters
    ----------
    reliability : Reliability
        The reliability with the temperature.
    before : Reliability or None
        The reliability without the temperature; None if the temperature is 1, or n-grams alone have their own.
    diagram : bool
        Whether to print the bars.
    console : PlainConsole
        The console to print to.
    is_calibrated : bool
        Whether a temperature was fitted to the model's scores.

    """
    if before is None:
        none = "" if is_calibrated else "; no temperature was fitted: broadsheet calibrate does that"
        console.print(f"expected calibration error {reliability.expected_error:.4f}{none}")
    else:
        console.print(
            f"expected calibration error {before.expected_error:.4f} before the model's temperature, "
            f"{reliability.expected_error:.4f} after it"
        )
    if not diagram:
        return
    table = new_table("score", "rows", "mean score", "right")
    table.add_column("│ marks the mean score")
    for one in reliability.bins:
        if one.rows:
            figures = f"{one.rows:,}", f"{one.score:.3f}", ratio_text(one.accuracy, one.interval)
            table.add_row(f"{one.low:.2f} – {one.high:.2f}", *figures, _bar(one.accuracy, one.score))
    console.print(table)


def _bar(length: float, mark: float) -> str:
    """Return a bar with a length from 0 to 1, and a mark at another place from 0 to 1."""
    filled, at = round(length * _BAR), min(round(mark * _BAR), _BAR - 1)
    cells = ("█" * filled).ljust(_BAR)
    return f"{cells[:at]}│{cells[at + 1 :]}".rstrip()


def print_thresholds(thresholds: Sequence[Threshold], console: PlainConsole) -> None:
    """Print the score from which labels have the wanted precision, for all labels and for each class."""
    target = f"{100 * thresholds[0].target:g}%"
    console.print(f"{target} of the labels are right from these scores on, with {CONFIDENCE:.0%} confidence each:")
    table = new_table("labels", "score from", "precision", "at least", "rows", "coverage")
    for one in thresholds[: _MOST_CLASSES + 1]:
        name = "all" if one.name is None else one.name
        if math.isnan(one.score):
            why = "no score" if one.needed is None else "too few rows"
            table.add_row(name, why, "–", "–", "0", "–")
        else:
            # Round up, because at a slightly lower score the precision may be too low.
            score = math.ceil(one.score * 1e4) / 1e4
            shares = (f"{share:.4f}" for share in (one.precision, one.bound))
            table.add_row(name, f"{score:.4f}", *shares, f"{one.rows:,}", f"{one.coverage:.1%}")
    if len(thresholds) > _MOST_CLASSES + 1:
        table.add_row(f"{len(thresholds) - 1 - _MOST_CLASSES} more")
    console.print(table)
    for line in _why_none(thresholds[: _MOST_CLASSES + 1], target):
        console.print(line, style="yellow", soft_wrap=True)


def _why_none(thresholds: Sequence[Threshold], target: str) -> Iterator[str]:
    """Yield a line for each kind of labels without a threshold, with the number of rows that one would take."""
    names = {one.name: "all labels" if one.name is None else one.name for one in thresholds}
    if few := [f"{names[one.name]} about {one.needed:,}" for one in thresholds if one.needed is not None]:
        yield f"too few rows to promise {target}. It takes, of rows with this label: {', '.join(few)}"
    if none := [names[one.name] for one in thresholds if math.isnan(one.score) and one.needed is None]:
        yield f"no score gives {target} among these rows: {', '.join(none)}"


def print_label_figures(counts: LabelCounts, console: PlainConsole) -> None:
    """Print micro and macro F1, and the figures of each class, the classes with most rows first."""
    console.print(
        f"micro F1 {ratio_text(counts.micro_f1)}, macro F1 {ratio_text(counts.macro_f1)}; "
        f"{counts.exact:,} of {counts.rows:,} rows were given exactly their labels"
    )
    figures = sorted(counts.per_class(), key=lambda one: -one.support)
    console.print(_by_class(figures, rows="support", labelled="given"))


def _by_class(figures: Sequence[ClassFigures | LabelFigures], **counts: str) -> Table:
    """Return a table of the figures of each class, up to a limit of classes.

    counts: the headings of further columns, each with the field that it shows.
    """
    table = new_table("class", "precision", "recall", "F1", *counts)
    for one in figures[:_MOST_CLASSES]:
        precision = ratio_text(one.precision, one.precision_interval)
        recall = ratio_text(one.recall, one.recall_interval)
        rows = (f"{getattr(one, field):,}" for field in counts.values())
        table.add_row(one.name, precision, recall, ratio_text(one.f1), *rows)
    if len(figures) > _MOST_CLASSES:
        table.add_row(f"{len(figures) - _MOST_CLASSES} more")
    return table


def print_confusion(confusion: Confusion, console: PlainConsole) -> None:
    """Print the accuracy, the figures of each class, and the confusion matrix (true class by row).

    For many classes it prints the most frequent mistakes instead of the matrix.
    """
    # Rows that were not judged.
    if confusion.without_truth:
        message = (
            f"not judged, because the model does not have their true class: {counted(confusion.without_truth, 'row')}"
        )
        console.print(message, style="yellow")
    without = int(confusion.unlabelled.sum())
    if without:
        console.print(f"not judged, since the score was too low for a label: {counted(without, 'row')}")
    if not confusion.rows:
        return

    # Figures, then the mistakes or the matrix. If the matrix is too wide, its columns have numbers.
    console.print(f"accuracy {accuracy_text(confusion)}")
    console.print(_by_class(confusion.per_class(), rows="support"))
    if len(confusion.classes) > _MOST_CLASSES // 2:
        if pairs := confusion.mistakes(_MOST_CLASSES // 2):
            table = new_table("true class", "most frequent mistakes", "rows")
            table.columns[1].justify = "left"
            for truth, label, rows in pairs:
                table.add_row(truth, label, f"{rows:,}")
            console.print(table)
    else:
        matrix = _matrix(confusion, confusion.classes)
        if console.measure(matrix, options=console.options.update(width=_UNBOUNDED)).maximum > console.width:
            matrix = _matrix(confusion, tuple(f"({i})" for i in range(1, 1 + len(confusion.classes))))
        console.print(matrix)


def _matrix(confusion: Confusion, headings: tuple[str, ...]) -> Table:
    """Return the matrix as a table with a row for each true class and a column for each label.

    headings: the headings of the columns. If they are numbers, the rows have them too.
    """
    matrix = new_table("true \\ labelled", *headings)
    for heading, name, row in zip(headings, confusion.classes, confusion.counts, strict=True):
        matrix.add_row(name if heading == name else f"{heading} {name}", *(f"{n:,}" for n in row))
    return matrix
