"""The latency breakdown in a terminal of 80 columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from .breakdown import MOMENTS, Breakdown, DeviceTimes
from .console import PlainConsole

_OWN_COLUMN = 4
"""Up to so many devices have a column each; of more, the table gives first, median and last."""


def print_breakdown(breakdown: Breakdown, console: PlainConsole) -> None:
    """The table of moments, throughput and busy share, and the verdict in one line, if there is one."""
    if breakdown.devices:
        few = len(breakdown.devices) <= _OWN_COLUMN
        console.print(_own_columns(breakdown) if few else _summary(breakdown))
        console.print(
            f"{breakdown.rows_per_second:,.0f} articles a second from first input to last output; "
            f"{breakdown.devices[0].device.partition(':')[0].upper().replace('CUDA', 'GPU')} busy {breakdown.busy:.0%}"
        )
    if breakdown.verdict:
        console.print(breakdown.verdict, style="bold")


def _table(*columns: RenderableType) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    return table


def _own_columns(breakdown: Breakdown) -> Table:
    table = _table("seconds from start", *(Group(d.host, _device(d)) for d in breakdown.devices))
    for name in MOMENTS:
        table.add_row(name, *(moment_text(d.moments[name]) for d in breakdown.devices))
    table.add_row("end", moment_text(breakdown.seconds), *[""] * (len(breakdown.devices) - 1), end_section=True)
    table.add_row("busy", *(f"{d.busy:.0%}" for d in breakdown.devices))
    table.add_row("articles", *(f"{d.rows:,}" for d in breakdown.devices))
    return table


def _summary(breakdown: Breakdown) -> Table:
    devices = breakdown.devices
    table = _table("seconds from start", "first", "median", "last", "the last is")
    for name in MOMENTS:
        times = [d.moments[name] for d in devices]
        latest = max(devices, key=lambda d: d.moments[name])
        table.add_row(name, *map(moment_text, (min(times), statistics.median(times), max(times))), device_name(latest))
    table.add_row("end", "", "", moment_text(breakdown.seconds), "", end_section=True)
    table.add_row(f"{len(devices)} devices", "least", "median", "most", "the least has", end_section=True)
    for label, value, show in (("busy", _busy, "{:.0%}"), ("articles", _rows, "{:,.0f}")):
        table.add_row(label, *_least_median_most(devices, value, show), device_name(min(devices, key=value)))
    return table


def _busy(device: DeviceTimes) -> float:
    return device.busy


def _rows(device: DeviceTimes) -> float:
    return device.rows


def _least_median_most(
    devices: tuple[DeviceTimes, ...], value: Callable[[DeviceTimes], float], show: str
) -> tuple[str, str, str]:
    values = [value(d) for d in devices]
    return show.format(min(values)), show.format(statistics.median(values)), show.format(max(values))


def moment_text(seconds: float) -> str:
    """Seconds since the job began; "before", on a cluster that had the model already."""
    return f"{seconds:,.2f}" if seconds >= 0 else "before"


def device_name(device: DeviceTimes) -> str:
    """Host and device."""
    return f"{device.host} {_device(device)}"


def _device(device: DeviceTimes) -> str:
    """A GPU; for a CPU the process too, since a host may run several workers on it."""
    return device.device if device.device.startswith("cuda") else f"{device.device} {device.where.rpartition(':')[2]}"
