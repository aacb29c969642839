"""Each kernel against the ceilings measured in the same run: what bounds it, and why.

The model is Williams, Waterman and Patterson's ("Roofline", 2009): a kernel of F operations over Q bytes takes at least
max(F / peak, Q / bandwidth).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..telemetry.profile import Ceilings, KernelProfile

NEAR = 0.5
"""A kernel that reaches this share of a ceiling is bound by it."""

_SHORT_SECONDS = 20e-6
_LOW_OCCUPANCY = 0.25
_MUCH_WASTE = 0.2


@dataclass(frozen=True)
class Judged:
    """A kernel and its verdict. intensity: FLOP a byte, over the least bytes. ceiling_share: the time the roofline
    allows over the time it took. bound: "compute", "memory" or "latency".
    """

    kernel: KernelProfile
    flop_per_second: float
    bytes_per_second: float
    intensity: float
    ceiling_share: float
    bound: str
    reason: str


def judge(kernel: KernelProfile, ceilings: Ceilings) -> Judged:
    """What bounds a kernel when it runs alone.

    Bytes are those that the hardware counted; where it did not, the larger of least and modelled. A kernel is
    memory-bound when moving them takes at least half its time.
    """
    compute = kernel.flop / ceilings.flop_per_second / kernel.seconds
    least = kernel.least_bytes / ceilings.bytes_per_second / kernel.seconds
    moved_bytes = kernel.counted_bytes or max(kernel.least_bytes, kernel.modelled_bytes)
    moved = moved_bytes / ceilings.bytes_per_second / kernel.seconds
    if compute >= NEAR and compute >= least:
        bound, reason = "compute", f"{compute:.0%} of the product ceiling"
    elif moved >= NEAR:
        bound, reason = "memory", _memory_reason(kernel, least, moved, moved_bytes)
    else:
        bound, reason = "latency", _latency_reason(kernel, compute, moved)
    return Judged(
        kernel,
        kernel.flop / kernel.seconds,
        kernel.least_bytes / kernel.seconds,
        kernel.flop / kernel.least_bytes,
        max(compute, least),
        bound,
        reason,
    )


def _memory_reason(kernel: KernelProfile, least: float, moved: float, moved_bytes: int) -> str:
    if least >= NEAR:
        return f"{least:.0%} of the copy ceiling, by its least bytes"
    if moved > 1:
        return f"{moved_bytes / kernel.least_bytes:.0f}× the least bytes, part cached"
    return f"{moved:.0%} of the copy ceiling, {moved_bytes / kernel.least_bytes:.0f}× the least"


def _latency_reason(kernel: KernelProfile, compute: float, moved: float) -> str:
    if kernel.seconds < _SHORT_SECONDS:
        return f"{kernel.seconds * 1e6:.0f} µs: hardly longer than a launch"
    if kernel.waves is not None and kernel.waves < 1:
        return f"{kernel.waves:.1f} waves do not fill the device"
    if kernel.tail_waste is not None and kernel.tail_waste > _MUCH_WASTE:
        return f"{kernel.tail_waste:.0%} lost in the last wave"
    if kernel.tile_waste is not None and kernel.tile_waste > _MUCH_WASTE:
        return f"{kernel.tile_waste:.0%} of each tile thrown away"
    if kernel.occupancy is not None and kernel.occupancy < _LOW_OCCUPANCY:
        return f"occupancy {kernel.occupancy:.0%}: too few warps to hide waits"
    return f"{compute:.0%} of product, {moved:.0%} of copy ceiling"
