"""A profile in a terminal of 80 columns: two tables and the ceilings."""

from __future__ import annotations

from rich import box
from rich.table import Table

from ..telemetry.profile import Point, Profile
from .console import PlainConsole
from .roofline import judge

_PREFIXES = ("", "k", "M", "G", "T", "P")


def print_profile(profile: Profile, console: PlainConsole) -> None:
    """Time, work and rates of every kernel; its place under the roofline; on a GPU, how well it fills the device."""
    rate = profile.batch / profile.seconds
    console.print(f"{profile.batch:,} articles on {profile.device}: {time_text(profile.seconds)}, {rate:,.0f} a second")
    ceilings = profile.ceilings
    flop, moved = figure(ceilings.flop_per_second, "FLOP/s"), figure(ceilings.bytes_per_second, "B/s")
    console.print(f"ceilings: {flop}, {moved} ({ceilings.how})")
    console.print(_work(profile))
    console.print(_roofline(profile))
    if any(kernel.occupancy is not None for kernel in profile.kernels):
        console.print(_fill(profile))


def print_sweep(points: list[Point], console: PlainConsole) -> None:
    """Latency and throughput by batch and precision."""
    table = _table("precision", "batch", "latency", "articles a second")
    for point in points:
        table.add_row(
            point.precision, f"{point.batch:,}", time_text(point.seconds), f"{point.articles_per_second:,.0f}"
        )
    console.print(table)


def _work(profile: Profile) -> Table:
    table = _table("kernel", "alone", "in stream", "FLOP", "least B", "moved B", "FLOP/s", "B/s")
    for kernel in profile.kernels:
        judged = judge(kernel, profile.ceilings)
        table.add_row(
            kernel.name,
            time_text(kernel.seconds),
            time_text(kernel.stream_seconds),
            figure(kernel.flop),
            figure(kernel.least_bytes),
            figure(kernel.counted_bytes or kernel.modelled_bytes) + ("" if kernel.counted_bytes else "*"),
            figure(judged.flop_per_second),
            figure(judged.bytes_per_second),
        )
    if not all(kernel.counted_bytes for kernel in profile.kernels):
        table.caption = "* modelled, not counted by the hardware"
        table.caption_justify = "left"
    return table


def _roofline(profile: Profile) -> Table:
    table = _table("kernel", "FLOP/B", "ceiling", "category", "bound by", "why")
    for column in table.columns[3:]:
        column.justify = "left"
    for kernel in profile.kernels:
        judged = judge(kernel, profile.ceilings)
        share = f"{judged.ceiling_share:.0%}"
        intensity = f"{judged.intensity:,.1f}"
        table.add_row(kernel.name, intensity, share, kernel.category, judged.bound, judged.reason)
    return table


def _fill(profile: Profile) -> Table:
    table = _table("kernel", "occupancy", "registers", "shared", "waves", "tail waste", "tile waste")
    for k in profile.kernels:
        table.add_row(
            k.name,
            _or_blank(k.occupancy, "{:.0%}"),
            _or_blank(k.registers, "{}"),
            _or_blank(k.shared_bytes, "{:,}"),
            _or_blank(k.waves, "{:.1f}"),
            _or_blank(k.tail_waste, "{:.0%}"),
            _or_blank(k.tile_waste, "{:.0%}"),
        )
    return table


def _or_blank(value: float | None, show: str) -> str:
    return "" if value is None else show.format(value)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def time_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"
    return f"{seconds:,.2f} s"


def figure(value: float, unit: str = "") -> str:
    """Three figures and a decimal prefix."""
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    space = " " if unit else ""
    return f"{value:.3g}{space}{_PREFIXES[power]}{unit}"
